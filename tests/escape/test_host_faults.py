"""A host that is not as it should be costs one clear line and an exit code, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support_cli import call, environment, script
from support_denials import denying

ROOT = Path(__file__).resolve().parents[2]


def spawn(ws: Path, redirections: str, **extra: str) -> subprocess.CompletedProcess[bytes]:
    """Run a job that changes nothing by a shell with these redirections."""
    ws.mkdir(exist_ok=True)
    model = script(ws.parent / "s.jsonl", call("bash", command="true"), {"text": "done"})
    return subprocess.run(
        f'"{sys.executable}" -m forkrun spawn --prompt go --model {model} {redirections}',
        shell=True,
        cwd=ws,
        env=environment(ws.parent, **extra),
        capture_output=True,
        timeout=30,
        check=False,
    )


def test_a_host_in_order(tmp_path: Path) -> None:
    """The control."""
    done = spawn(tmp_path / "ws", "")
    assert (done.returncode, done.stdout) == (0, b"done\n")


@pytest.mark.parametrize(("what", "code"), [("> /dev/full", 1), ("--transcript /dev/full", 0)])
def test_a_full_disk_is_said_in_a_line(what: str, code: int, tmp_path: Path) -> None:
    """No room for the answer is an error, and none for the transcript a warning, in words."""
    done = spawn(tmp_path / "ws", what)
    assert done.returncode == code
    assert b"No space left" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_state_folder_that_cannot_be_made_is_said_in_a_line(tmp_path: Path) -> None:
    """A home that is read-only (containers) is an error in words, with what to do about it."""
    done = spawn(tmp_path / "ws", "", XDG_STATE_HOME="/proc/nowhere")
    assert b"Traceback" not in done.stderr
    assert b"/proc/nowhere" in done.stderr


@pytest.mark.parametrize("closed", ["<&-", "<&- 2>&-", "2>&-"])
def test_closed_standard_streams_are_no_channel(closed: str, tmp_path: Path) -> None:
    """Descriptors that are free take none of the numbers 0, 1 and 2."""
    done = spawn(tmp_path / "ws", closed)
    assert (done.returncode, done.stdout) == (0, b"done\n")


def test_a_closed_stdout_is_a_reader_that_has_gone(tmp_path: Path) -> None:
    """The run goes on; nothing is written into a descriptor that is something else."""
    done = spawn(tmp_path / "ws", ">&-")
    assert b"crashed" not in done.stderr


def test_the_lock_holds_every_requirement() -> None:
    """What a fresh checkout installs is all that the package needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = (ROOT / "requirements.lock").read_text().lower().replace("_", "-")
    names = [each.split(">")[0].split("=")[0].lower() for each in project["dependencies"]]
    assert [name for name in names if f"\n{name}==" not in f"\n{locked}"] == []


def test_commands_that_the_readme_names_exist() -> None:
    """`forkrun NAME` in the README is a command of this checkout."""
    shown = subprocess.run(
        [sys.executable, "-m", "forkrun", "--help"], capture_output=True, check=True
    ).stdout.decode()
    readme = (ROOT / "README.md").read_text()
    for name in ("spawn", "doctor", "apply", "recover"):
        assert f"forkrun {name}" not in readme or name in shown, name


@pytest.mark.skipif(os.geteuid() != 0, reason="only root works for another owner")
def test_root_commits_for_an_owner_without_namespaces(tmp_path: Path) -> None:
    """In tier lsm the child, which is the owner of the workspace, reaches its copy of it."""
    ws = tmp_path / "ws"
    ws.mkdir()
    for each in (tmp_path, *tmp_path.parents[:2]):
        each.chmod(0o755)
    os.chown(ws, 1000, 1000)
    model = script(tmp_path / "s.jsonl", call("bash", command="echo x > new"), {"text": "done"})
    state = tmp_path / "home"
    state.mkdir(mode=0o700)
    done = subprocess.run(
        [
            *denying("unshare", python=sys.executable),
            *(sys.executable, "-m", "forkrun", "spawn", "--prompt", "go", "--model", model),
            *("--sandbox", "lsm"),
        ],
        cwd=ws,
        env=environment(state),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert (ws / "new").read_text() == "x\n"
