"""Overlays for the tests of forkrun.workspace: mounted for real, in a mount namespace of their own."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from forkrun.workspace.views import View

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
    assert done.returncode == 0, (command, script, done.stdout, done.stderr)
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
            found[os.path.relpath(path, top)] = (stat.S_IFMT(at.st_mode), stat.S_IMODE(at.st_mode), content)
    return found


def _skip(reason: str) -> None:
    if os.environ.get("FORKRUN_REQUIRE_SANDBOX"):
        pytest.fail(reason)
    pytest.skip(reason)
