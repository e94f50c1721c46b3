"""What a directory holds, a few levels deep: for tools of others that list one by reading it."""

from __future__ import annotations

import os
from collections.abc import Callable

from forkrun.tools.output import one_line
from forkrun.tools.paths import Workspace

MAX_ROWS = 1000


def is_directory(workspace: Workspace, path: str) -> bool:
    """Say whether a resolved path is a directory; one that is not there is none."""
    try:
        os.close(workspace.open(path, flags=os.O_RDONLY | os.O_DIRECTORY))
    except OSError:
        return False
    return True


def view_directory(
    workspace: Workspace, path: str, *, levels: int, readable: Callable[[str], bool]
) -> str:
    """List files and directories, those with a trailing "/", in the order of their names.

    What begins with a dot is left out, and what the rules do not show.
    """
    rows: list[str] = []
    pending = [path]
    while pending and len(rows) <= MAX_ROWS:
        directory = pending.pop()
        below = []
        for name, is_folder in _entries(workspace, directory):
            inner = name if directory == "." else f"{directory}/{name}"
            if is_folder:
                below.append(inner)
            elif readable(inner):
                rows.append(one_line(inner))
        rows += [f"{one_line(inner)}/" for inner in below]
        if _depth(directory) - _depth(path) + 1 < levels:
            pending += below
    note = [f"[the first {MAX_ROWS}; there is more]"] if len(rows) > MAX_ROWS else []
    return "\n".join([*sorted(rows[:MAX_ROWS]), *note]) or f"[{path} is empty]"


def _entries(workspace: Workspace, path: str) -> list[tuple[str, bool]]:
    try:
        directory = workspace.open(path, flags=os.O_RDONLY | os.O_DIRECTORY)
    except OSError:  # gone, or not ours to read
        return []
    try:
        with os.scandir(directory) as entries:
            found = [
                (entry.name, entry.is_dir(follow_symlinks=False))
                for entry in entries
                if not entry.name.startswith(".")
            ]
    finally:
        os.close(directory)
    return sorted(found)


def _depth(path: str) -> int:
    return 0 if path == "." else path.count("/") + 1
