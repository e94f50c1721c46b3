"""The toolchains in use are shown, by their own directories; the home directory never is."""

from __future__ import annotations

from pathlib import Path

import pytest

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
    assert _found(home) == {".pyenv/versions/3.12.1"}
    for lie in (f"{home}/.docker/bin", f"{home}/bin", "/", str(home), "../..", ""):
        settings.write_text(f"home = {lie}\n")
        assert not _found(home) & {".", ".docker", ".docker/bin"}


@pytest.mark.parametrize("name", ["VIRTUAL_ENV", "CONDA_PREFIX", "JAVA_HOME"])
def test_variables_that_name_a_toolchain(home: Path, name: str) -> None:
    """They are believed, except where they name the home directory or what contains it."""
    assert _found(home, **{name: str(home / "miniconda3")}) == {"miniconda3"}
    for path in (home, home.parent, Path("/")):
        assert _found(home, **{name: str(path)}) == set()
