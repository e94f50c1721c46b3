"""The scripts of the checkout, run from a copy of it, without a network.

The copy's `.venv` shares its files (hard links) with the one that runs these tests; the scripts
replace files and never write into them.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PARTS = (
    "forkrun",
    "sandbox",
    "scripts",
    "pyproject.toml",
    "requirements.lock",
    "requirements-dev.lock",
)


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A copy of the checkout with no `.venv`, at a path with a space."""
    copy = tmp_path / "a copy"
    for name in PARTS:
        if (ROOT / name).is_dir():
            skip = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, copy / name, ignore=skip)
        else:
            copy.mkdir(exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    return copy


@pytest.fixture
def checkout(bare: Path) -> Path:
    """The same, set up."""
    venv = ROOT / ".venv"
    if Path(sys.executable) != venv / "bin" / "python":
        pytest.skip("needs the .venv that scripts/test makes")
    try:
        shutil.copytree(venv, bare / ".venv", symlinks=True, copy_function=os.link)
    except shutil.Error:
        pytest.skip("the temporary directory is on another file system than the checkout")
    return bare


def call(script: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(script), *arguments],
        cwd="/",
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def says(done: subprocess.CompletedProcess[str]) -> str:
    """Give stdout of a call that succeeded."""
    assert done.returncode == 0, f"{done.args}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
def test_forkrun_runs_from_anywhere_and_adds_nothing_to_stdout(checkout: Path) -> None:
    """From another working directory and through a link, the output is the command's alone; what
    the set-up does is told on stderr, and only when it does something."""
    link = checkout.parent / "link"
    link.symlink_to(checkout / "scripts" / "forkrun")
    first = says(call(checkout / "scripts" / "forkrun", "--version"))
    again = call(link, "--version")
    assert says(again) == first
    assert first.startswith("forkrun ")
    assert again.stderr == ""


@pytest.mark.slow
def test_a_change_of_the_sources_is_noticed(checkout: Path) -> None:
    """A file that is new, changed or gone is so in what runs; stderr says that it was installed."""
    script = checkout / "scripts" / "forkrun"
    installed = next((checkout / ".venv").glob("lib/python*/site-packages/forkrun"))
    says(call(script, "--version"))
    (checkout / "forkrun" / "extra.py").write_text("")
    changed = checkout / "forkrun" / "text.py"
    changed.write_text(changed.read_text() + "MARK = 1\n")
    done = call(script, "--version")
    says(done)
    assert "installing forkrun itself: 2 of" in done.stderr
    assert "MARK = 1" in (installed / "text.py").read_text()
    assert (installed / "extra.py").exists()
    (checkout / "forkrun" / "extra.py").unlink()
    says(call(script, "--version"))
    assert not list(installed.rglob("extra*"))


@pytest.mark.slow
def test_two_calls_at_once_do_not_meet(checkout: Path) -> None:
    """Calls that find the same change at the same time all run."""
    script = checkout / "scripts" / "forkrun"
    for path in (checkout / "forkrun").rglob("*.py"):
        os.utime(path, (1, 1))
    calls = [
        subprocess.Popen([script, "--version"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(4)
    ]
    outputs = [process.communicate(timeout=60) for process in calls]
    assert [process.returncode for process in calls] == [0] * 4, outputs
    assert len({stdout for stdout, _ in outputs}) == 1


def path_with(folder: Path, **programs: str) -> str:
    """Give a PATH that has what the scripts need of the system, and these programs."""
    folder.mkdir()
    for name in ("dirname", "readlink"):
        (folder / name).symlink_to(shutil.which(name) or "")
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return str(folder)


def test_without_a_python_that_will_do_there_is_one_clear_error(bare: Path) -> None:
    """A shim that does not run counts as no Python, and the error says what to do."""
    shim = "#!/bin/sh\necho 'shim: no such version' >&2\nexit 127\n"
    path = path_with(bare / "bin", python3=shim)
    done = call(bare / "scripts" / "forkrun", "--version", PATH=path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "forkrun: no Python of version 3.11 or later on PATH\n"
        "hint: install one, or set FORKRUN_PYTHON to its path\n"
    )


@pytest.mark.parametrize("script", ["forkrun", "test", "check", "fix"])
def test_a_python_asked_for_that_does_not_run_is_named(script: str, bare: Path) -> None:
    """FORKRUN_PYTHON is obeyed or refused, never passed over."""
    done = call(bare / "scripts" / script, FORKRUN_PYTHON="/no/such/python")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("forkrun: FORKRUN_PYTHON does not run: /no/such/python\nhint: ")


def test_somebody_else_s_broken_environment_is_left_alone(bare: Path) -> None:
    """A `.venv` that was not made by the scripts is never removed."""
    mine = bare / ".venv" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("keep")
    done = call(bare / "scripts" / "forkrun", FORKRUN_PYTHON=sys.executable)
    assert done.returncode == 1
    assert "this .venv was not made by us" in done.stderr
    assert mine.read_text() == "keep"
