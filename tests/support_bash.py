"""Run a command in a real bash, unconfined in a directory of its own, and see what it did."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

EVIL = "#!/bin/sh\n: > P\n"


def prepare(directory: Path) -> None:
    """Lay what the commands of the tables expect: a file `f`, a link, a program that makes P."""
    (directory / "f").write_text("a\nb\n")
    evil = directory / "evil"
    evil.mkdir()
    for name in ("ls", "cat", "git-x", "pager"):
        (evil / name).write_text(EVIL)
        (evil / name).chmod(0o755)
    (directory / "script").write_text("touch P\n")


def run(command: str, directory: Path) -> subprocess.CompletedProcess[bytes]:
    """Run the command as `bash -c` with a small environment; wait for it and what it started."""
    env = {"PATH": "/usr/bin:/bin", "HOME": str(directory), "LC_ALL": "C.UTF-8"}
    return subprocess.run(
        ["bash", "-c", command],
        cwd=directory,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=20,
        check=False,
    )


def makes_p(command: str, directory: Path) -> bool:
    """Say whether the command makes the file P in a fresh directory."""
    prepare(directory)
    run(command, directory)
    return os.path.lexists(directory / "P")
