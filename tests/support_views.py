"""Overlays for the tests of forkrun.workspace: mounted for real, in a mount namespace of their own."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from forkrun.workspace.changes import read_changes
from forkrun.workspace.commit import commit_changes
from forkrun.workspace.selection import select_changes
from forkrun.workspace.views import View, open_view

_MOUNT = """
set -e
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2,workdir=$3,userxattr" "$1"
cd "$1"
set +e
. "$4"
"""


def unshare() -> list[str]:
    """The command line of a mount namespace, as root or as an ordinary user."""
    return ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]


def require_overlay(tmp: Path) -> None:
    """Skip where this machine cannot mount an overlay (CI turns the skip into a failure)."""
    if shutil.which("unshare") is None:
        _skip("no unshare(1)")
    for name in ("lower", "upper", "work"):
        (tmp / name).mkdir()
    script = tmp / "script"
    script.write_text("true\n")
    done = subprocess.run(
        [*unshare(), "bash", "-c", _MOUNT, "-", tmp / "lower", tmp / "upper", tmp / "work", script],
        capture_output=True,
        check=False,
    )
    if done.returncode:
        _skip(f"no overlay here: {done.stderr.decode()}")


def work_in(view: View, script: str, *, upper: str | None = None, work: str | None = None) -> str:
    """Run a bash script in a view, as a child would; everything is dead when this returns."""
    at = Path(view.directory) / "script"
    at.write_text(script)
    if view.copy is not None:
        command = ["bash", "-c", 'cd "$1"; . "$2"', "-", view.copy, str(at)]
    else:
        command = [
            *unshare(), "bash", "-c", _MOUNT, "-",
            view.workspace, upper or view.upper, work or view.work, str(at),
        ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, check=False)
    at.unlink()
    assert done.returncode == 0, (script[:500], done.stdout[-500:], done.stderr[-500:])
    return done.stdout.decode()


def picture(top: Path | str) -> dict[str, tuple[object, ...]]:
    """Describe a tree wholly: path → type, mode, and content or target."""
    found: dict[str, tuple[object, ...]] = {}
    for directory, names, files in os.walk(top):
        for name in names + files:
            path = os.path.join(directory, name)
            at = os.lstat(path)
            content: object = None
            if stat.S_ISLNK(at.st_mode):
                content = os.readlink(path)
            elif stat.S_ISREG(at.st_mode):
                content = hashlib.sha256(Path(path).read_bytes()).hexdigest()
            found[os.path.relpath(path, top)] = (
                stat.S_IFMT(at.st_mode),
                stat.S_IMODE(at.st_mode),
                content,
            )
    return found


class Bench:
    """A workspace, a state directory, and what the tests do with them."""

    def __init__(self, tmp: Path, form: str) -> None:
        self.workspace = tmp / "workspace"
        self.state = tmp / "state"
        self.form = form
        self.count = 0
        self.workspace.mkdir()

    def view(self, **options):
        self.count += 1
        return open_view(
            str(self.workspace),
            run_id=f"run-{self.count}",
            state_dir=str(self.state),
            form=self.form,
            **options,
        )

    def write(self, path: str, content: str | bytes = "x\n", mode: int = 0o644) -> Path:
        at = self.workspace / path
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_bytes(content.encode() if isinstance(content, str) else content)
        at.chmod(mode)
        return at

    def run(self, script: str, *, meanwhile=lambda: None, may_write=lambda path: True, **options):
        """Work in a view and commit what is allowed: (the outcome, the selection)."""
        with self.view() as view:
            work_in(view, script)
            meanwhile()
            chosen = select_changes(view, read_changes(view), may_write=may_write, **options)
            return commit_changes(chosen.changes, state_dir=str(self.state)), chosen

    def residue(self) -> list[str]:
        """What is left in the state directory and under our names in the workspace."""
        left = [str(path) for path in self.state.rglob("*") if path.parent != self.state]
        return left + [str(path) for path in self.workspace.rglob(".forkrun-*")]


def _skip(reason: str) -> None:
    if os.environ.get("FORKRUN_REQUIRE_SANDBOX"):
        pytest.fail(reason)
    pytest.skip(reason)
