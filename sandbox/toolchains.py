"""Which paths beyond the system's a program needs: toolchains in use, and the git directory.

Found by looking at names and files, never by running anything: the workspace may have been written
by somebody hostile. For that reason a pointer found in the workspace is followed only where the
place that it names points back, or cannot hold anything but a toolchain.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

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
_MAX_LINKS = 500


def toolchains(environ: Mapping[str, str], workspace: str) -> tuple[str, ...]:
    """Give the directories to make readable, so that the programs on PATH work inside.

    Never the home directory, nor what contains it. `workspace` is searched for the virtual
    environments in it, whose base interpreters usually lie elsewhere.
    """
    homes = _homes(environ)
    found: dict[str, None] = {}
    for name in _VARIABLES:
        path = environ.get(name, "")
        if os.path.isabs(path) and os.path.isdir(path):
            found.update(dict.fromkeys((path, *_base_of(path))))
    for entry in environ.get("PATH", "").split(os.pathsep):
        if os.path.isabs(entry) and os.path.isdir(entry):
            found.update(dict.fromkeys(_of_bin(os.path.normpath(entry), homes)))
    for environment in _environments_in(workspace):
        found.update(dict.fromkeys(_base_of(environment)))
    return _tidy(found, homes, workspace)


def git_directories(workspace: str) -> tuple[str, ...]:
    """Give the git directories of `workspace` that lie outside of it.

    For a subdirectory of a repository that is its `.git`; for a worktree or a submodule what its
    `.git` file names, if that place names it in turn.
    """
    home = os.path.expanduser("~")
    directory = workspace
    while directory not in ("/", home):
        entry = os.path.join(directory, ".git")
        if os.path.isfile(entry) and not os.path.islink(entry):
            return tuple(_linked_git(entry, workspace))
        if os.path.isdir(entry):
            if directory == workspace or not _is_git_directory(entry):
                return ()
            return (os.path.realpath(entry), *_alternates(entry))
        directory = os.path.dirname(directory)
    return ()


def _homes(environ: Mapping[str, str]) -> tuple[str, ...]:
    found = {os.path.expanduser("~"), environ.get("HOME", "")}
    return tuple({os.path.realpath(home) for home in found if os.path.isabs(home)} - {"/"})


def _of_bin(directory: str, homes: tuple[str, ...]) -> Iterator[str]:
    """Give what a directory on PATH needs: its prefix if that is a toolchain's, else itself."""
    if _is_system(directory):
        return
    yield from _prefix_of(directory, homes)
    for target in _link_targets(directory):
        yield from _prefix_of(os.path.dirname(target), homes)


def _prefix_of(directory: str, homes: tuple[str, ...]) -> Iterator[str]:
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
        yield from _base_of(prefix)


def _link_targets(directory: str) -> Iterator[str]:
    """Give where the programs in a directory really are, if they are links out of it."""
    try:
        names = sorted(os.listdir(directory))[:_MAX_LINKS]
    except OSError:
        return
    for name in names:
        path = os.path.join(directory, name)
        if os.path.islink(path):
            target = os.path.realpath(path)
            if os.path.isfile(target) and os.path.dirname(target) != directory:
                yield target


def _environments_in(workspace: str) -> Iterator[str]:
    try:
        names = sorted(os.listdir(workspace))
    except OSError:
        return
    for name in names:
        path = os.path.join(workspace, name)
        if os.path.isfile(os.path.join(path, "pyvenv.cfg")) and not os.path.islink(path):
            yield path


def _base_of(environment: str) -> Iterator[str]:
    """Give the installation that a virtual environment is based on: `home` in its pyvenv.cfg.

    The file may lie: what it names must look like an installation of Python.
    """
    for key, value in _settings(os.path.join(environment, "pyvenv.cfg")):
        if key != "home" or not os.path.isabs(value):
            continue
        for directory in {os.path.normpath(value), os.path.realpath(value)}:
            prefix = os.path.dirname(directory)
            if os.path.basename(directory) == "bin" and _is_python_prefix(prefix):
                yield prefix
        for target in _link_targets(value):
            prefix = os.path.dirname(os.path.dirname(target))
            if os.path.basename(target).startswith("python") and _is_python_prefix(prefix):
                yield prefix


def _is_python_prefix(prefix: str) -> bool:
    try:
        names = os.listdir(os.path.join(prefix, "lib"))
    except OSError:
        return False
    return any(
        name.startswith("python3") and os.path.isfile(os.path.join(prefix, "lib", name, "os.py"))
        for name in names
    )


def _settings(path: str) -> Iterator[tuple[str, str]]:
    for line in _text(path).splitlines():
        key, separator, value = line.partition("=")
        if separator:
            yield key.strip().lower(), value.strip()


def _linked_git(entry: str, workspace: str) -> Iterator[str]:
    """Follow a `.git` file: gitrepository-layout(5)."""
    kind, _, named = _text(entry).strip().partition(": ")
    target = os.path.realpath(os.path.join(os.path.dirname(entry), named))
    if kind != "gitdir" or _is_inside(target, workspace) or not _points_back(target, entry):
        return
    common = _text(os.path.join(target, "commondir")).strip()
    shared = os.path.realpath(os.path.join(target, common)) if common else target
    if _is_git_directory(shared):
        yield from dict.fromkeys((shared, target))
        yield from _alternates(shared)


def _points_back(target: str, entry: str) -> bool:
    """Say whether a git directory belongs to this `.git` file: a worktree's, or a submodule's."""
    back = _text(os.path.join(target, "gitdir")).strip()
    if back:
        return os.path.realpath(os.path.join(target, back)) == os.path.realpath(entry)
    for key, value in _settings(os.path.join(target, "config")):
        if key == "worktree":
            tree = os.path.realpath(os.path.join(target, value.strip('"')))
            return tree == os.path.realpath(os.path.dirname(entry))
    return False


def _is_git_directory(path: str) -> bool:
    return os.path.isfile(os.path.join(path, "HEAD")) and all(
        os.path.isdir(os.path.join(path, name)) for name in ("objects", "refs")
    )


def _alternates(git_directory: str) -> Iterator[str]:
    objects = os.path.join(git_directory, "objects")
    for line in _text(os.path.join(objects, "info", "alternates")).splitlines():
        path = os.path.realpath(os.path.join(objects, line))
        if os.path.basename(path) == "objects" and os.path.isdir(path):
            yield path


def _text(path: str) -> str:
    """Read a small file, or nothing: what is not there or not text has nothing to say."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65536)
    except OSError:
        return ""


def _is_system(path: str) -> bool:
    return any(_is_inside(path, prefix) for prefix in _SYSTEM)


def _is_inside(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _tidy(found: dict[str, None], homes: tuple[str, ...], workspace: str) -> tuple[str, ...]:
    """Leave out what may not be shown, what is visible anyway, and what lies in another."""
    kept: list[str] = []
    for path in sorted({os.path.normpath(path) for path in found}, key=len):
        real = os.path.realpath(path)
        contains_home = any(_is_inside(home, real) for home in homes) or real == "/"
        is_visible = _is_system(real) or _is_inside(real, workspace)
        is_covered = path == real and any(_is_inside(path, other) for other in kept)
        is_special = any(_is_inside(real, place) for place in ("/proc", "/sys", "/dev"))
        if not (
            contains_home or is_visible or is_covered or is_special or real in ("/tmp", "/etc")
        ):
            kept.append(path)
    return tuple(kept)
