"""The toolchains in use are shown, by their own directories; the home directory never is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from forkrun_sandbox.gitdirs import git_directories
from forkrun_sandbox.toolchains import toolchains


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home directory with the usual layouts, and secrets beside them."""
    for path in (
        ".pyenv/shims",
        ".pyenv/versions/3.12.1/bin",
        ".pyenv/versions/3.12.1/lib/python3.12",
        ".nvm/versions/node/v20/bin",
        ".nvm/versions/node/v20/lib",
        ".cargo/bin",
        ".docker/bin",
        ".local/bin",
        ".local/share/uv/tools",
        ".local/share/keyrings",
        "miniconda3/bin",
        "miniconda3/conda-meta",
        "bin",
        "apps/tool/bin",
        "apps/tool/lib",
        "project/.venv/bin",
    ):
        (tmp_path / "home" / path).mkdir(parents=True)
    home = tmp_path / "home"
    (home / ".pyenv/versions/3.12.1/lib/python3.12/os.py").write_text("")
    (home / "apps/tool/bin/tool").write_text("")
    (home / "bin/tool").symlink_to(home / "apps/tool/bin/tool")
    (home / ".cargo/credentials.toml").write_text("secret")
    (home / ".docker/config.json").write_text("secret")
    return home


def _found(home: Path, *path: str, **environ: str) -> set[str]:
    variables = {"HOME": str(home), "PATH": ":".join(str(home / p) for p in path), **environ}
    found = toolchains(variables, str(home / "project"))
    return {str(Path(path).relative_to(home)) for path in found}


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (".pyenv/shims", {".pyenv"}),
        (".nvm/versions/node/v20/bin", {".nvm/versions/node/v20"}),
        ("miniconda3/bin", {"miniconda3"}),
        (".cargo/bin", {".cargo/bin"}),
        (".docker/bin", {".docker/bin"}),
        (".local/bin", {".local/bin", ".local/share/uv"}),
        ("bin", {"bin", "apps/tool"}),
        (".", set()),
        ("no-such-directory", set()),
    ],
)
def test_a_directory_on_path(home: Path, entry: str, expected: set[str]) -> None:
    """Its prefix where that is a toolchain's alone, else the directory itself."""
    assert _found(home, entry) == expected


def test_the_base_of_an_environment_in_the_workspace(home: Path) -> None:
    """The installation that pyvenv.cfg names is shown, if it looks like one."""
    settings = home / "project/.venv/pyvenv.cfg"
    settings.write_text(f"home = {home}/.pyenv/versions/3.12.1/bin\n")
    parts = {".pyenv/versions/3.12.1/bin", ".pyenv/versions/3.12.1/lib"}
    assert _found(home) == parts
    for lie in (f"{home}/.docker/bin", f"{home}/bin", "/", str(home), "../..", ""):
        settings.write_text(f"home = {lie}\n")
        assert not _found(home) & {".", ".docker", ".docker/bin"}


@pytest.mark.parametrize("name", ["VIRTUAL_ENV", "CONDA_PREFIX", "JAVA_HOME"])
def test_variables_that_name_a_toolchain(home: Path, name: str) -> None:
    """They are believed, except where they name the home directory or what contains it."""
    assert _found(home, **{name: str(home / "miniconda3")}) == {"miniconda3"}
    for path in (home, home.parent, Path("/")):
        assert _found(home, **{name: str(path)}) == set()


PYTHON_PARTS = {".pyenv/versions/3.12.1/bin", ".pyenv/versions/3.12.1/lib"}


@pytest.fixture
def python(home: Path) -> Path:
    """An installation of Python that a pyvenv.cfg may name."""
    return home / ".pyenv/versions/3.12.1"


def test_a_base_shows_the_parts_that_python_needs(home: Path, python: Path) -> None:
    """What else lies in a prefix that an untrusted file names stays closed, links out of it too."""
    (python / "notes").mkdir()
    (python / "include").symlink_to(home / ".docker")
    (home / "project/.venv/pyvenv.cfg").write_text(f"home = {python}/bin\n")
    assert _found(home) == PYTHON_PARTS


def test_a_base_that_an_earlier_run_could_have_made_is_not_shown(home: Path) -> None:
    """A subdirectory of a repository cannot have the rest of it shown by planting a `lib`."""
    project = home / "project"
    (project / ".git").mkdir()
    (project / "sub/.venv").mkdir(parents=True)
    planted = project / "private"
    (planted / "bin").mkdir(parents=True)
    (planted / "lib/python3.12").mkdir(parents=True)
    (planted / "lib/python3.12/os.py").write_text("")
    (project / "sub/.venv/pyvenv.cfg").write_text(f"home = {planted}/bin\n")
    variables = {"HOME": str(home), "PATH": "/usr/bin"}
    assert toolchains(variables, str(project / "sub")) == ()
    shutil.rmtree(project / ".git")  # the control: not known to be anybody's but the user's
    assert set(toolchains(variables, str(project / "sub"))) == {f"{planted}/bin", f"{planted}/lib"}


@pytest.mark.parametrize("entry", ["project/bin", "project/.venv/bin", "project/link"])
def test_links_in_the_workspace_do_not_lead_out_of_it(home: Path, entry: str) -> None:
    """A directory on PATH that an earlier run may have written opens nothing by its links."""
    ours = home / entry
    if ours.name == "link":
        ours.symlink_to(home / ".docker")
    else:
        ours.mkdir(exist_ok=True)
        (ours / "tool").symlink_to(home / ".cargo/credentials.toml")
        (ours / "python3").symlink_to(home / ".docker/config.json")
    assert _found(home, entry) == set()
    (home / "bin/key").symlink_to(home / ".cargo/credentials.toml")
    assert ".cargo" in _found(home, "bin")  # the control: a link of the user's own is followed


@pytest.mark.parametrize("name", ["VIRTUAL_ENV", "CONDA_PREFIX", "JAVA_HOME"])
def test_a_variable_that_names_a_link_in_the_workspace(home: Path, name: str) -> None:
    """What was put in place of the environment in the workspace is not shown for it."""
    shutil.rmtree(home / "project/.venv")
    (home / "project/.venv").symlink_to(home / ".docker")
    variables = {name: str(home / "project/.venv")}
    assert _found(home, "project/.venv/bin", **variables) == set()


def test_an_environment_elsewhere_that_the_workspace_links_to(home: Path, python: Path) -> None:
    """A link to what is a virtual environment is followed: to its parts and to its base."""
    environment = home / ".virtualenvs/x"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin/python").symlink_to(python / "bin/python")
    (environment / "pyvenv.cfg").write_text(f"home = {python}/bin\n")
    shutil.rmtree(home / "project/.venv")
    (home / "project/.venv").symlink_to(environment)
    found = _found(home, "project/.venv/bin", VIRTUAL_ENV=str(home / "project/.venv"))
    assert found == {"project/.venv/bin", "project/.venv/pyvenv.cfg", *PYTHON_PARTS}


def test_an_environment_beside_the_workspace(home: Path, python: Path) -> None:
    """In a subdirectory of a repository, the repository's environment works."""
    project = home / "project"
    (project / ".git").mkdir()
    (project / "sub").mkdir()
    (project / ".venv/bin/python").symlink_to(python / "bin/python")
    (project / ".venv/pyvenv.cfg").write_text(f"home = {python}/bin\n")
    variables = {"HOME": str(home), "PATH": f"{project}/.venv/bin"}
    found = toolchains(variables, str(project / "sub"))
    shown = {str(Path(path).relative_to(home)) for path in found}
    assert shown == {"project/.venv/bin", "project/.venv/pyvenv.cfg", *PYTHON_PARTS}


LOOK = """
import sys
from forkrun_sandbox.gitdirs import git_directories
from forkrun_sandbox.toolchains import toolchains
print(toolchains({"HOME": sys.argv[2], "PATH": "/usr/bin"}, sys.argv[1]), git_directories(sys.argv[1]))
"""


@pytest.mark.parametrize("kind", ["fifo", "endless", "device", "directory", "not text", "long"])
@pytest.mark.parametrize(
    "name", ["pyvenv.cfg", ".git", "gitdir", "commondir", "config", "alternates"]
)
def test_what_is_read_neither_blocks_nor_grows(home: Path, name: str, kind: str) -> None:
    """A FIFO, a device, a huge or binary file where a pointer should be: nothing is shown for it."""
    project, store = home / "project", home / "store/worktrees/project"
    (store / "objects").mkdir(parents=True)
    (project / ".git").write_text(f"gitdir: {store}\n")
    (store / "gitdir").write_text(f"{project}/.git\n")
    (home / "project/sub").mkdir()
    places = {"pyvenv.cfg": project / ".venv/pyvenv.cfg", ".git": project / ".git"}
    path = places.get(name, store / name)
    if name == "alternates":
        (project / ".git").unlink()
        subprocess.run(["git", "init", "-q", str(project)], check=True)
        path = project / ".git/objects/info/alternates"
    if name == "config":
        (store / "gitdir").unlink()
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "endless":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "directory":
        path.mkdir()
    elif kind == "not text":
        path.write_bytes(b"gitdir: /\0home = /\0x\xff\n")
    else:
        path.write_text("home = /usr/bin/" + "../bin/" * 9000 + "\n")
    workspace = project / "sub" if name == "alternates" else project
    path_of_package = Path(sys.modules["forkrun_sandbox"].__path__[0]).parent
    done = subprocess.run(
        [sys.executable, "-c", LOOK, str(workspace), str(home)],
        env={"PYTHONPATH": str(path_of_package)},
        capture_output=True,
        text=True,
        timeout=10,
        check=True,
    )
    assert done.stdout == f"() {((str(project / '.git')),) if name == 'alternates' else ()}\n"


def test_many_environments_take_no_time(home: Path) -> None:
    """Only a few environments of a workspace are looked at, and of each one line."""
    for number in range(300):
        place = home / f"project/e{number}"
        place.mkdir()
        (place / "pyvenv.cfg").write_text("home = /usr/bin\n" * 3000)
    done = subprocess.run(
        [sys.executable, "-c", LOOK, str(home / "project"), str(home)],
        env={"PYTHONPATH": str(Path(sys.modules["forkrun_sandbox"].__path__[0]).parent)},
        timeout=20,
        check=True,
        capture_output=True,
    )
    assert done.stdout == b"() ()\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a subdirectory, and a private one beside it."""
    for name in ("repository", "private"):
        subprocess.run(["git", "init", "-q", str(tmp_path / name)], check=True)
    (tmp_path / "repository/sub").mkdir()
    return tmp_path / "repository"


def test_alternates_open_nothing(repository: Path, tmp_path: Path) -> None:
    """A line in a file of the repository cannot make the objects of another one readable."""
    alternates = repository / ".git/objects/info/alternates"
    for place in ("private/.git/objects", "repository/.git/objects", "no/objects"):
        alternates.write_text(f"{tmp_path / place}\n")
        assert git_directories(str(repository / "sub")) == (str(repository / ".git"),)


def test_a_git_directory_that_is_a_link_is_not_followed(repository: Path, tmp_path: Path) -> None:
    """`.git` above the workspace cannot be a way to another repository."""
    shutil.rmtree(repository / ".git")
    (repository / ".git").symlink_to(tmp_path / "private/.git")
    assert git_directories(str(repository / "sub")) == ()
    assert git_directories(str(repository)) == ()


@pytest.mark.parametrize("target", ["planted", "planted/worktrees/sub"])
def test_a_common_directory_elsewhere_is_not_followed(
    repository: Path, tmp_path: Path, target: str
) -> None:
    """A planted worktree that points back cannot name another repository as its common one."""
    planted = repository / target
    planted.mkdir(parents=True)
    (planted / "gitdir").write_text(f"{repository}/sub/.git\n")
    (planted / "commondir").write_text(f"{tmp_path}/private/.git\n")
    (repository / "sub/.git").write_text(f"gitdir: {planted}\n")
    assert git_directories(str(repository / "sub")) == ()


def test_a_submodule_and_its_worktree(repository: Path, tmp_path: Path) -> None:
    """The control: what git makes itself is found, in both forms."""
    git = ("git", "-c", "protocol.file.allow=always", "-c", "user.name=a", "-c", "user.email=a@b")
    commit = (*git, "commit", "-q", "--allow-empty", "-m", "one")
    subprocess.run(commit, cwd=tmp_path / "private", check=True)
    add = (*git, "submodule", "--quiet", "add", str(tmp_path / "private"), "module")
    subprocess.run(add, cwd=repository, check=True)
    tree = (*git, "worktree", "add", "-q", str(tmp_path / "tree"))
    subprocess.run(tree, cwd=repository / "module", check=True)
    store = (str(repository / ".git/modules/module"),)
    assert git_directories(str(repository / "module")) == store
    assert git_directories(str(tmp_path / "tree")) == store
