"""The distribution: what the wheel holds, and that the pinned requirements are whole."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ("requirements.lock", "requirements-dev.lock")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
INGREDIENTS = ("pyproject.toml", "README.md", "LICENSE", "forkrun", "sandbox")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel from a copy, so that nothing is left in the checkout and nothing old gets in."""
    source = tmp_path_factory.mktemp("source")
    for name in INGREDIENTS:
        if (ROOT / name).is_dir():
            skip = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, source / name, ignore=skip)
        else:
            shutil.copy2(ROOT / name, source / name)
    target = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-I", "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    flags = ["--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", str(target)]
    run([*pip, *flags, str(source)])
    (built,) = target.glob("*.whl")
    return built


def run(argv: list[str]) -> str:
    """Run a command to its end; fail with all that it said."""
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{argv}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_wheel_holds_every_module_and_nothing_else(wheel: Path) -> None:
    """Both packages are in the wheel, whole and typed, `sandbox/` under its import name."""
    names = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    expected = {f"forkrun/{path}" for path in files_of(ROOT / "forkrun")}
    expected |= {f"forkrun_sandbox/{path}" for path in files_of(ROOT / "sandbox")}
    assert names == expected
    assert {"forkrun/py.typed", "forkrun_sandbox/py.typed"} <= names


def files_of(folder: Path) -> set[str]:
    paths = (p.relative_to(folder) for p in folder.rglob("*") if p.is_file())
    return {p.as_posix() for p in paths if "__pycache__" not in p.parts}


def test_the_wheel_imports_from_any_place(wheel: Path, tmp_path: Path) -> None:
    """Unpacked and put on the path, both packages import, from a working directory that has a
    package `sandbox` and a module `forkrun_sandbox` of its own."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "lib")
    (tmp_path / "sandbox").mkdir()
    (tmp_path / "sandbox" / "__init__.py").write_text("raise SystemExit('the wrong sandbox')")
    (tmp_path / "forkrun_sandbox.py").write_text("raise SystemExit('the wrong forkrun_sandbox')")
    code = (
        f"import os, sys; os.chdir({str(tmp_path)!r}); sys.path.insert(0, {str(tmp_path / 'lib')!r});"
        "import forkrun.protocol, forkrun_sandbox; print(forkrun_sandbox.__file__)"
    )
    assert run([sys.executable, "-I", "-c", code]).startswith(str(tmp_path / "lib"))


@pytest.mark.slow
def test_the_installed_command_says_its_version(wheel: Path, tmp_path: Path) -> None:
    """Installed into a fresh environment, `forkrun --version` prints the distribution's version."""
    home = tmp_path / "with a space"
    venv.create(home, with_pip=False)
    python = str(home / "bin" / "python")
    pip = [sys.executable, "-I", "-m", "pip", "--python", python, "install", "--quiet"]
    run([*pip, "--no-index", "--no-deps", "--disable-pip-version-check", str(wheel)])
    borrow_packages(home)
    said = run([str(home / "bin" / "forkrun"), "--version"])
    assert said.split() == ["forkrun", PROJECT["project"]["version"]]


def borrow_packages(home: Path) -> None:
    """Lend the dependencies of this environment to a fresh one, at the end of its path."""
    (site,) = home.glob("lib/python*/site-packages")
    ours = next(p for p in sys.path if p.endswith("site-packages"))
    (site / "borrowed.pth").write_text(ours + "\n")


@pytest.mark.parametrize("lock", [*LOCKS, "requirements-recipes.lock"])
def test_every_requirement_is_pinned_by_hash_and_names_no_address(lock: str) -> None:
    """A lock file is nothing but names, exact versions, markers and hashes."""
    requirement = re.compile(r"[a-z0-9-]+==[0-9a-z.+]+( ; [\w'.<>=!() ]+)?( --hash=sha256:\w{64})+")
    text = (ROOT / lock).read_text(encoding="utf-8")
    for line in re.sub(r" \\\n +", " ", text).splitlines():
        assert requirement.fullmatch(line), line


def test_tests_run_with_the_very_versions_that_users_get() -> None:
    """Every pin of the runtime requirements stands in those for development too."""
    runtime, development = (set(pins(lock)) for lock in LOCKS)
    assert runtime <= development


def pins(lock: str) -> list[str]:
    lines = (ROOT / lock).read_text(encoding="utf-8").splitlines()
    return [line.split()[0] for line in lines if not line.startswith(" ")]


def test_the_lock_files_cover_what_the_project_declares() -> None:
    """Every declared dependency has its pin."""
    runtime, development = ({line.split("==")[0] for line in pins(lock)} for lock in LOCKS)
    assert set(names(PROJECT["project"]["dependencies"])) <= runtime
    assert set(names(PROJECT["dependency-groups"]["dev"])) <= development


def names(requirements: list[str]) -> list[str]:
    return [re.split(r"[^A-Za-z0-9-]", text)[0] for text in requirements]


@pytest.mark.parametrize("script", ["forkrun", "test", "recipes", "check", "fix", "_ready"])
def test_a_script_is_executable_and_plain_sh(script: str) -> None:
    """Every script can be called and parses with the system's sh."""
    path = ROOT / "scripts" / script
    assert os.access(path, os.X_OK)
    run(["/bin/sh", "-n", str(path)])
