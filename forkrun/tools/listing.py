"""The tool `glob`: files whose path matches, newest first."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from forkrun.catalog import GlobInput
from forkrun.tools.failures import ToolError
from forkrun.tools.output import one_line
from forkrun.tools.paths import Workspace
from forkrun.tools.patience import OutOfTime, Patience
from forkrun.tools.patterns import has_magic, path_matcher
from forkrun.tools.walking import walk

MAX_FILES = 1000
LIMIT_S = 20.0


def glob(
    call: GlobInput,
    workspace: Workspace,
    *,
    readable: Callable[[str], bool],
) -> str:
    """Give the paths that match, relative to the workspace, one a line."""
    if not call.pattern:
        raise ToolError("pattern must not be empty")
    if "\0" in call.pattern:
        raise ToolError("pattern contains a NUL character")
    start, rest = _split(call, workspace)
    if not rest:
        return _literal(workspace, start, call.pattern, readable=readable)
    if ".." in rest:
        raise ToolError(f"pattern {call.pattern!r} has .. after a wildcard")
    matcher = path_matcher("/".join(rest))
    prefix = 0 if start == "." else len(start) + 1
    found: list[tuple[int, str]] = []
    notes = []
    try:
        with Patience(limit_s=LIMIT_S) as patience:
            for path in walk(workspace, start):
                if patience.search(matcher, path[prefix:]) and readable(path):
                    found.append((_modified_ns(workspace, path), path))
    except OutOfTime:
        notes.append(f"stopped after {LIMIT_S:.0f} s: there may be more")
    found.sort(key=lambda pair: (-pair[0], pair[1]))
    if len(found) > MAX_FILES:
        notes.append(f"the newest {MAX_FILES} of {len(found)}")
    if not found:
        deeper = "" if "/" in call.pattern else f"; **/{call.pattern} looks in all directories"
        notes.append(f"no file matches {call.pattern}{deeper}")
    rows = [one_line(path) for _, path in found[:MAX_FILES]]
    return "\n".join(rows + [f"[{note}]" for note in notes])


def _split(call: GlobInput, workspace: Workspace) -> tuple[str, list[str]]:
    """Give the directory to start in, resolved, and the components that are to be matched.

    A component that exists as it is written is taken literally, brackets and all.
    """
    base = call.path or "."
    if call.pattern.startswith(("/", "~")):
        base = ""
    parts = [part for part in call.pattern.split("/") if part not in {"", "."}]
    lead = "/" if call.pattern.startswith("/") else ""
    taken = base
    while parts:
        step = f"{taken}/{parts[0]}" if taken else f"{lead}{parts[0]}"
        if has_magic(parts[0]) and not _exists(workspace, step):
            break
        taken = step
        parts.pop(0)
    return workspace.resolve(taken or lead or "."), parts


def _exists(workspace: Workspace, path: str) -> bool:
    try:
        os.stat(workspace.resolve(path), dir_fd=workspace.descriptor, follow_symlinks=False)
    except (OSError, ToolError):
        return False
    return True


def _literal(
    workspace: Workspace, path: str, pattern: str, *, readable: Callable[[str], bool]
) -> str:
    try:
        status = os.stat(path, dir_fd=workspace.descriptor, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return f"[no file matches {pattern}]"
    if stat.S_ISDIR(status.st_mode):
        inside = "*" if path == "." else f"{one_line(path)}/*"
        return f"{one_line(path)}/\n[a directory; {inside} gives what is in it]"
    return one_line(path) if readable(path) else f"[no file matches {pattern}]"


def _modified_ns(workspace: Workspace, path: str) -> int:
    try:
        status = os.stat(path, dir_fd=workspace.descriptor, follow_symlinks=False)
    except OSError:
        return 0
    return status.st_mtime_ns
