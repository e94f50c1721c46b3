"""The documents say what is so: their lists equal the tree, their commands run, their links lead somewhere."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support_cli import environment

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def names_in(folder: Path) -> set[str]:
    """The modules and packages directly in a package."""
    return {
        path.stem
        for path in folder.iterdir()
        if path.stem != "__init__" and (path.suffix == ".py" or (path / "__init__.py").exists())
    }


def listed(text: str) -> set[str]:
    """The names in the first column of the tables."""
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    return {name for row in rows for name in re.findall(r"`([a-z_]+)`", row.split("|")[1])}


def test_the_architecture_lists_every_module() -> None:
    """The rooms of ARCHITECTURE.md are those of the tree, no more and no less."""
    rooms = (ROOT / "ARCHITECTURE.md").read_text().split("## The rooms")[1].split("\n## ")[0]
    agent, sandbox = rooms.split("| `sandbox/`")
    assert listed(agent) == names_in(ROOT / "forkrun")
    assert listed(sandbox) | {"__main__"} == names_in(ROOT / "sandbox")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    """Every relative link of a document names a file or folder of the project."""
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), target


def commands() -> list[str]:
    """The shell commands that the README shows."""
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


@pytest.mark.parametrize("command", commands())
def test_the_readmes_commands_run(command: str, tmp_path: Path) -> None:
    """Each command of the README works as pasted, from the checkout, with no key."""
    program, *arguments = shlex.split(command)
    assert program == "scripts/forkrun"
    done = subprocess.run(
        [sys.executable, "-m", "forkrun", *arguments],
        cwd=ROOT,
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_readmes_first_answer_is_right(tmp_path: Path) -> None:
    """The first command names pytest, with the file and the line that show it."""
    done = subprocess.run(
        [sys.executable, "-m", "forkrun", *shlex.split(commands()[0])[1:]],
        cwd=ROOT,
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    match = re.search(r"pyproject\.toml:(\d+): .*pytest", done.stdout)
    assert match, done.stdout
    line = (ROOT / "pyproject.toml").read_text().splitlines()[int(match[1]) - 1]
    assert "pytest" in line


def test_the_readmes_python_runs(tmp_path: Path) -> None:
    """The lines of Python in the README run as they stand."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.startswith("completed ")
