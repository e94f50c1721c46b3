"""Walk over the workspace as a search should: without what git ignores and what tools installed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

import msgspec

from forkrun.ignoring import Rule, is_ignored, read_rules
from forkrun.tools.paths import Workspace

VENDORED = frozenset(
    {
        *(".git", ".hg", ".svn", ".jj"),
        *("node_modules", "bower_components", ".gradle", ".terraform"),
        *("venv", ".venv", "virtualenv", "__pycache__", ".eggs", ".tox", ".nox", ".direnv"),
        *(".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"),
    }
)
IGNORE_FILES = (".gitignore", ".ignore", ".rgignore")  # a later one has the last word
VENV_MARK = "pyvenv.cfg"
_MOST_IGNORE_BYTES = 1024 * 1024


def walk(workspace: Workspace, start: str) -> Iterator[str]:
    """Give the path of each file below a resolved directory, in the order of the names.

    Links are given as what they are and not followed. What cannot be read is passed over.
    """
    rules = _rules_above(workspace, start)
    pending = [_list(workspace, start, rules, is_start=True)]
    while pending:
        listing = pending[-1]
        path = next(listing.paths, None)
        if path is None:
            pending.pop()
        elif is_ignored(path, listing.rules):
            continue
        elif not path.endswith("/"):
            yield path
        else:
            pending.append(_list(workspace, path[:-1], listing.rules, is_start=False))


class _Listing(msgspec.Struct, frozen=True):
    """What is still to be visited in one directory, and the rules that hold there."""

    paths: Iterator[str]
    rules: tuple[Rule, ...]


def _list(workspace: Workspace, path: str, rules: tuple[Rule, ...], *, is_start: bool) -> _Listing:
    prefix = "" if path == "." else f"{path}/"
    try:
        directory = workspace.open(path, flags=os.O_RDONLY | os.O_DIRECTORY)
    except OSError:  # gone, or not ours to read
        return _Listing(iter(()), rules)
    try:
        with os.scandir(directory) as entries:
            found = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
        names = {name for name, _ in found}
        if VENV_MARK in names and not is_start:
            return _Listing(iter(()), rules)
        for name in IGNORE_FILES:
            if name in names:
                rules += _load(workspace, prefix + name, base=prefix)
    finally:
        os.close(directory)
    paths = (
        f"{prefix}{name}{'/' if is_directory else ''}"
        for name, is_directory in found
        if not (is_directory and name in VENDORED)
    )
    return _Listing(paths, rules)


def _rules_above(workspace: Workspace, start: str) -> tuple[Rule, ...]:
    """Load the ignore files of the directories above the one where the walk starts."""
    rules = _load(workspace, ".git/info/exclude", base="")
    parts = [] if start == "." else start.split("/")
    for depth in range(len(parts)):
        base = "".join(f"{part}/" for part in parts[:depth])
        for name in IGNORE_FILES:
            rules += _load(workspace, base + name, base=base)
    return rules


def _load(workspace: Workspace, path: str, *, base: str) -> tuple[Rule, ...]:
    try:
        descriptor = workspace.open(path, flags=os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return ()
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ()
        text = os.read(descriptor, _MOST_IGNORE_BYTES).decode("utf-8", "surrogateescape")
    finally:
        os.close(descriptor)
    return read_rules(text, base=base)
