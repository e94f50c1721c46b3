"""The lines around those that a search has found, as `path-number-text` between the hits."""

from __future__ import annotations

from collections.abc import Sequence

from forkrun.catalog import GrepCall
from forkrun.protocol import ToolLimits
from forkrun.tools.output import one_line
from forkrun.tools.paths import Workspace
from forkrun.tools.searching import lines_of, window


def with_surroundings(
    rows: Sequence[str],
    places: Sequence[tuple[str, int]],
    call: GrepCall,
    workspace: Workspace,
    *,
    limits: ToolLimits,
) -> list[str]:
    """Put the lines before and after it beside each row; "--" where lines are left out between.

    `places` are the path and line number of each row, in order. Ends where the room does.
    """
    shown: list[str] = []
    room = limits.result_chars
    open_path, lines, last = "", [""], 0
    hits = dict(zip(places, rows, strict=True))
    for path, number in places:
        if path != open_path:
            open_path, lines, last = path, lines_of(workspace, path), 0
        first = max(number - call.before, last + 1, 1) if lines else number
        if shown and (last == 0 or first > last + 1):
            shown.append("--")
        for at in range(first, max(number, min(number + call.after, len(lines))) + 1):
            row = hits.get((path, at)) or f"{one_line(path)}-{at}-{_text(lines, at)}"
            room -= len(row) + 1
            if room < 0 and shown:
                return [*shown, "[there is more; narrow the pattern or the path]"]
            shown.append(row)
            last = at
    return shown


def _text(lines: Sequence[str], at: int) -> str:
    return window(lines[at - 1], 0) if at <= len(lines) else ""
