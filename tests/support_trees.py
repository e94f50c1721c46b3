"""Workspaces for whole runs: where an overlay can be had, and where it cannot; trees compared."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support_cli import HANG_S, environment, report, script

FILL = """
set -e
mkdir -p src/deep mnt locked "sp ace"
printf 'one\\ntwo\\nthree\\n' > src/a.py
printf 'no newline' > src/b.txt
printf 'crlf\\r\\nline\\r\\n' > src/crlf.txt
printf '#!/bin/sh\\necho hi\\n' > run.sh; chmod 755 run.sh
printf 'secret\\n' > locked/key; chmod 600 locked/key; chmod 700 locked
printf '\\0\\1\\2binary' > src/blob
printf 'x\\n' > "$(printf 'sp ace/q\\351')"
ln -s src/a.py link; ln -s /nowhere dangling
ln src/b.txt src/hard
truncate -s 20M sparse; printf end >> sparse
touch -d '2001-02-03 04:05:06.123456789' src/a.py src run.sh
"""

WORK = """
echo four >> src/a.py; rm src/crlf.txt; chmod 600 run.sh; ln -sf src/b.txt link; rm dangling
mkdir -p new/dir; echo n > new/dir/f; printf '\\0x' > new/blob; printf y > "$(printf 'new/\\351')"
echo w >> src/hard; echo k >> locked/key; rmdir src/deep; echo end >> sparse
"""
"""A change of every kind."""

SETTINGS = ("plain", "mount below", "in an overlay", "stacked overlays", "no sandbox")
"""What is under the workspace; in "mount below" and "stacked overlays" no overlay can be laid over
it, and in "no sandbox" none is mounted at all."""

_MOUNTS = {
    "mount below": "mount --bind {ws}/mnt {ws}/mnt",
    "in an overlay": (
        "mount -t tmpfs tmpfs {tmp}/u1; mkdir {tmp}/u1/u {tmp}/u1/w;"
        "mount -t overlay overlay -o lowerdir={ws},upperdir={tmp}/u1/u,workdir={tmp}/u1/w {ws}"
    ),
}
_MOUNTS["stacked overlays"] = (
    _MOUNTS["in an overlay"] + "; mount -t tmpfs tmpfs {tmp}/u2; mkdir {tmp}/u2/u {tmp}/u2/w;"
    "mount -t overlay overlay -o lowerdir={ws},upperdir={tmp}/u2/u,workdir={tmp}/u2/w {ws}"
)


class Site:
    """A workspace in one of the settings. Its mounts live in a namespace of their own, whose tree
    is seen below `/proc/PID/root`. A context manager."""

    def __init__(self, tmp: Path, setting: str) -> None:
        self.setting = setting
        self.home = tmp / "home"
        self.workspace = tmp / "ws"
        self.tmp = tmp
        for path in (self.home, self.workspace, tmp / "u1", tmp / "u2"):
            path.mkdir()
        self.flags: tuple[str, ...] = ("--sandbox", "none") if setting == "no sandbox" else ()
        self._namespace: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Site:
        self.sh(FILL)
        if mounts := _MOUNTS.get(self.setting):
            if os.geteuid() != 0 or shutil.which("unshare") is None:
                pytest.skip("mounting takes root and unshare(1)")
            mounts = mounts.format(ws=self.workspace, tmp=self.tmp)
            self._namespace = subprocess.Popen(
                ["unshare", "-m", "sh", "-c", f"set -e; {mounts}; echo up; read end || true"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            if self._namespace.stdout.readline() != b"up\n":
                self.__exit__()
                pytest.skip("this machine refuses these mounts")
        return self

    def __exit__(self, *details: object) -> None:
        if self._namespace:
            self._namespace.stdin.close()
            self._namespace.stdout.close()
            self._namespace.wait()

    @property
    def tree(self) -> Path:
        """The workspace, as it looks inside."""
        if self._namespace:
            return Path(f"/proc/{self._namespace.pid}/root{self.workspace}")
        return self.workspace

    @property
    def state(self) -> Path:
        return self.home / "state" / "forkrun"

    def sh(self, text: str) -> None:
        """Do something in the workspace, unconfined."""
        subprocess.run(self.inside(["bash", "-c", text]), cwd=self.workspace, check=True)

    def inside(self, command: list[str]) -> list[str]:
        if not self._namespace:
            return command
        target = ["nsenter", "-m", "-t", str(self._namespace.pid)]
        return [*target, "sh", "-c", 'cd "$0" && exec "$@"', str(self.workspace), *command]

    def command(self, *arguments: str) -> list[str]:
        """The command line of `forkrun ARGUMENTS` in this workspace."""
        return self.inside([sys.executable, "-m", "forkrun", *arguments])

    def forkrun(self, *arguments: str, exits: int = 0) -> subprocess.CompletedProcess[bytes]:
        """Run `forkrun ARGUMENTS`; it must end with this exit code."""
        command = self.command(*arguments)
        done = subprocess.run(
            command,
            cwd=self.workspace,
            env=environment(self.home),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=HANG_S,
            check=False,
        )
        assert done.returncode == exits, report(command, done, wanted=exits)
        return done

    def arguments(self, *lines: dict[str, Any]) -> tuple[str, ...]:
        """The flags of a run with these replies."""
        model = script(self.tmp / "script.jsonl", *lines)
        return ("spawn", "--prompt", "go", "--model", model, "--output-format", "json", *self.flags)

    def spawn(self, *lines: dict[str, Any], flags: tuple[str, ...] = (), exits: int = 0) -> Any:
        """Run a subagent with these replies and give its result."""
        done = self.forkrun(*self.arguments(*lines), *flags, exits=exits)
        return json.loads(done.stdout)

    def picture(self) -> dict[str, tuple[object, ...]]:
        """Describe the tree: type, mode, owner, times, content or target, and what it takes."""
        return picture(self.tree)

    def residue(self, *allowed: Path | str | None) -> list[str]:
        """What runs have left in the state directory and, under our names, in the workspace."""
        kept = {str(path) for path in allowed}
        places = self.state / "groups"  # where control groups are made: remembered, not left
        found = [path for path in self.state.rglob("*") if path.parent != places]
        left = [str(path) for path in found if path.is_file() or path.is_symlink()]
        left += [str(path) for path in (self.state / "views").glob("*")]
        left += [str(path) for path in (self.state / "journals").glob("*")]
        left += [str(path) for path in self.tree.rglob(".forkrun-*")]
        return [path for path in left if path not in kept]


def picture(top: Path | str) -> dict[str, tuple[object, ...]]:
    """Describe a tree wholly; only the times of access are left out."""
    found: dict[str, tuple[object, ...]] = {}
    pending = [os.fsencode(top)]
    while pending:
        directory = pending.pop()
        for entry in os.scandir(directory):
            at = entry.stat(follow_symlinks=False)
            content: object = None
            if entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
            elif entry.is_symlink():
                content = os.readlink(entry.path)
            elif stat.S_ISREG(at.st_mode):
                with open(entry.path, "rb") as file:
                    content = hashlib.file_digest(file, "sha256").hexdigest()
            name = os.path.relpath(entry.path, os.fsencode(top))
            is_file = stat.S_ISREG(at.st_mode)
            found[os.fsdecode(name)] = (
                *(at.st_mode, at.st_uid, at.st_gid, at.st_mtime_ns, content),
                (at.st_size, at.st_blocks, at.st_nlink) if is_file else None,
            )
    return found


def contents(top: Path | str) -> dict[str, tuple[object, ...]]:
    """Describe a tree by mode and content alone."""
    return {path: (found[0], found[4]) for path, found in picture(top).items()}


def changed(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    """Name the paths in which two pictures differ; directories by their own mode alone."""

    def seen(found: Any) -> Any:
        return found and ((*found[:3],) if stat.S_ISDIR(found[0]) else found)

    paths = before.keys() | after.keys()
    return {path for path in paths if seen(before.get(path)) != seen(after.get(path))}
