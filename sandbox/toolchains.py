"""Which paths beyond the system's a program needs: the toolchains in use.

Found by looking at names and files, never by running anything. The user's environment is believed,
as far as it leads: what lies in the workspace, or in the repository around it, may have been
written by an earlier run, and there a link or a file that names another place is followed only to
what looks like an installation of Python, of which only the parts that Python needs are shown.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping

from .hearsay import is_inside, settings

# Visible in every sandbox.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/opt", "/nix", "/gnu")
# Variables that name the directory of a toolchain.
_VARIABLES = (
    *("VIRTUAL_ENV", "CONDA_PREFIX", "PYENV_ROOT", "RBENV_ROOT", "ASDF_DATA_DIR", "MISE_DATA_DIR"),
    *("JAVA_HOME", "GOROOT", "RUSTUP_HOME", "DOTNET_ROOT", "JULIA_BINDIR", "VOLTA_HOME"),
)
# Hidden directories of the home directory that hold toolchains and nothing else. Others, as
# .cargo and .docker, keep credentials beside their `bin`, of which then only `bin` is shown.
_TOOL_HOMES = frozenset(
    """.pyenv .rbenv .nodenv .goenv .jenv .nvm .asdf .volta .deno .bun .sdkman .fnm .juliaup .ghcup
    .rustup .conda .dotnet .pixi .proto .virtualenvs .venv""".split()
)
_LOCAL_PARTS = ("lib", "share/pipx", "share/uv", "share/mise", "share/pnpm", "share/fnm", "pipx")
_PREFIX_SIGNS = (
    "lib",
    "lib64",
    "libexec",
    "conda-meta",
    "pyvenv.cfg",
    "include",
    "pkg",
    "versions",
)
_BIN_NAMES = ("bin", "sbin", "shims", "condabin", "Scripts")
# What of an installation or a virtual environment is shown where an untrusted file names it.
_PARTS = (
    *("bin", "lib", "lib64", "libexec", "include", "ssl", "conda-meta"),
    *("share/terminfo", "pyvenv.cfg"),
)
_MAX_LINKS = 500
_MAX_ENVIRONMENTS = 32


def toolchains(environ: Mapping[str, str], workspace: str) -> tuple[str, ...]:
    """Give the directories to make readable, so that the programs on PATH work inside.

    Never the home directory, nor what contains it. `workspace` is searched for the virtual
    environments in it, whose base interpreters usually lie elsewhere.
    """
    homes = _homes(environ)
    grounds = _grounds(workspace, homes)
    found: dict[str, None] = {}
    for name in _VARIABLES:
        path = environ.get(name, "")
        if os.path.isabs(path) and os.path.isdir(path):
            found.update(dict.fromkeys(_of_variable(os.path.normpath(path), grounds)))
    for entry in dict.fromkeys(environ.get("PATH", "").split(os.pathsep)):
        if os.path.isabs(entry) and os.path.isdir(entry):
            found.update(dict.fromkeys(_of_path(os.path.normpath(entry), homes, grounds)))
    for environment in _environments_in(workspace):
        found.update(dict.fromkeys(_base_of(environment, grounds)))
    return _tidy(found, homes, workspace)


def _grounds(workspace: str, homes: tuple[str, ...]) -> str:
    """Give what an earlier run may have written: the outermost repository around the workspace."""
    grounds = directory = workspace
    while directory != "/" and directory not in homes:
        if os.path.lexists(os.path.join(directory, ".git")):
            grounds = directory
        directory = os.path.dirname(directory)
    return grounds


def _of_variable(path: str, grounds: str) -> Iterator[str]:
    if not _leads_through(path, grounds):
        yield path
        yield from _base_of(path, grounds)
    elif _is_environment(path):
        yield from _environment(path, grounds)
    elif os.path.realpath(path) == path:
        yield path


def _of_path(entry: str, homes: tuple[str, ...], grounds: str) -> Iterator[str]:
    """Give what a directory on PATH needs."""
    if not _leads_through(entry, grounds):
        yield from _of_bin(entry, homes, grounds)
        return
    prefix = os.path.dirname(entry)
    if os.path.realpath(entry) == entry:
        yield prefix if entry.endswith("/node_modules/.bin") else entry
    if os.path.basename(entry) in _BIN_NAMES and _is_environment(prefix):
        yield from _environment(prefix, grounds)


def _leads_through(path: str, grounds: str) -> bool:
    return is_inside(path, grounds) or is_inside(os.path.realpath(path), grounds)


def _homes(environ: Mapping[str, str]) -> tuple[str, ...]:
    found = {os.path.expanduser("~"), environ.get("HOME", "")}
    return tuple({os.path.realpath(home) for home in found if os.path.isabs(home)} - {"/"})


def _of_bin(directory: str, homes: tuple[str, ...], grounds: str) -> Iterator[str]:
    """Give what a directory of the user's needs: its prefix if that is a toolchain's, else itself.

    And the same of where the programs in it really are.
    """
    if _is_system(directory):
        return
    yield from _prefix_of(directory, homes, grounds)
    for target in _link_targets(directory):
        yield from _prefix_of(os.path.dirname(target), homes, grounds)


def _prefix_of(directory: str, homes: tuple[str, ...], grounds: str) -> Iterator[str]:
    if _is_system(directory):
        return
    yield directory
    prefix = os.path.dirname(directory)
    if os.path.basename(directory) not in _BIN_NAMES or prefix in homes or prefix == "/":
        return
    if os.path.basename(prefix) == ".local":
        for part in _LOCAL_PARTS:
            if os.path.isdir(os.path.join(prefix, part)):
                yield os.path.join(prefix, part)
        return
    name = os.path.basename(prefix)
    is_hidden = name.startswith(".") and os.path.dirname(prefix) in homes
    if is_hidden and name not in _TOOL_HOMES:
        return
    if any(os.path.exists(os.path.join(prefix, sign)) for sign in _PREFIX_SIGNS):
        yield prefix
        yield from _base_of(prefix, grounds)


def _link_targets(directory: str) -> Iterator[str]:
    """Give where the programs in a directory really are, if they are links out of it."""
    try:
        with os.scandir(directory) as entries:
            first = sorted(entries, key=lambda entry: entry.name)[:_MAX_LINKS]
    except OSError:
        return
    for entry in first:
        if entry.is_symlink():
            target = os.path.realpath(entry.path)
            if os.path.isfile(target) and os.path.dirname(target) != directory:
                yield target


def _environments_in(workspace: str) -> Iterator[str]:
    """Give the virtual environments in a directory, the first few of them."""
    try:
        names = sorted(os.listdir(workspace))
    except OSError:
        return
    paths = (os.path.join(workspace, name) for name in names)
    found = (
        path
        for path in paths
        if os.path.isfile(os.path.join(path, "pyvenv.cfg")) and not os.path.islink(path)
    )
    yield from itertools.islice(found, _MAX_ENVIRONMENTS)


def _is_environment(path: str) -> bool:
    """Say whether a directory is a virtual environment: it has a pyvenv.cfg and a Python."""
    return os.path.isfile(os.path.join(path, "pyvenv.cfg")) and any(
        os.path.lexists(os.path.join(path, "bin", name)) for name in ("python", "python3")
    )


def _environment(path: str, grounds: str) -> Iterator[str]:
    yield from _parts_of(path)
    yield from _base_of(path, grounds)


def _parts_of(prefix: str) -> Iterator[str]:
    """Give the parts of an installation that Python needs, if they really lie in it."""
    real = os.path.realpath(prefix)
    for name in _PARTS:
        path = os.path.join(prefix, name)
        if os.path.exists(path) and is_inside(os.path.realpath(path), real):
            yield path


def _base_of(environment: str, grounds: str) -> Iterator[str]:
    """Give the installation that a virtual environment is based on: `home` in its pyvenv.cfg.

    The file may lie: what it names must look like an installation of Python, and lie elsewhere
    than where an earlier run could have made it look so.
    """
    home = dict(settings(os.path.join(environment, "pyvenv.cfg"))).get("home", "")
    if not os.path.isabs(home):
        return
    places = [os.path.normpath(home), os.path.realpath(home)]
    for target in _link_targets(home):
        if os.path.basename(target).startswith("python"):
            places.append(os.path.dirname(target))
    for directory in dict.fromkeys(places):
        prefix = os.path.dirname(directory)
        real = os.path.realpath(prefix)
        is_apart = not is_inside(real, grounds) and not is_inside(grounds, real)
        if os.path.basename(directory) == "bin" and is_apart and _is_python_prefix(prefix):
            yield from _parts_of(prefix)


def _is_python_prefix(prefix: str) -> bool:
    try:
        names = os.listdir(os.path.join(prefix, "lib"))
    except OSError:
        return False
    return any(
        name.startswith("python3") and os.path.isfile(os.path.join(prefix, "lib", name, "os.py"))
        for name in names
    )


def _is_system(path: str) -> bool:
    return any(is_inside(path, prefix) for prefix in _SYSTEM)


def _tidy(found: dict[str, None], homes: tuple[str, ...], workspace: str) -> tuple[str, ...]:
    """Leave out what may not be shown, what is visible anyway, and what lies in another."""
    kept: list[str] = []
    for path in sorted({os.path.normpath(path) for path in found}, key=len):
        real = os.path.realpath(path)
        contains_home = any(is_inside(home, real) for home in homes) or real == "/"
        is_visible = _is_system(real) or is_inside(real, workspace)
        is_covered = path == real and any(is_inside(path, other) for other in kept)
        is_special = any(is_inside(real, place) for place in ("/proc", "/sys", "/dev"))
        is_not_utf8 = any("\ud800" <= c <= "\udfff" for c in path + real)  # os.fsdecode
        is_shared = is_special or real in ("/tmp", "/etc")
        if not (contains_home or is_visible or is_covered or is_shared or is_not_utf8):
            kept.append(path)
    return tuple(kept)
