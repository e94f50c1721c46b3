"""The tool `grep`: lines that match, as `path:line:text`.

With ripgrep where there is one on PATH, else with Python's `re`; both leave out the same files
and give the same lines. A fork whose parent's tool can do more may ask for files or counts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping

from forkrun.catalog import GrepCall
from forkrun.protocol import ToolLimits
from forkrun.tools.bash import find_program
from forkrun.tools.content import as_text, is_binary
from forkrun.tools.failures import ToolError
from forkrun.tools.output import one_line
from forkrun.tools.paths import Workspace
from forkrun.tools.patience import OutOfTime, Patience
from forkrun.tools.patterns import name_matcher
from forkrun.tools.reading import check_regular, load
from forkrun.tools.walking import walk

LIMIT_S = 20.0
MAX_FILE_BYTES = 10 * 1024 * 1024
_WINDOW = 400
_BEFORE_HIT = 100
_LINE_BREAK = re.compile(r"\n|(?<!\\)(?:\\\\)*\\n")


class Enough(Exception):
    """The result is full."""


class Hits:
    """The lines that were found, up to `limit` characters; those that must not be seen stay out.

    What is kept of them, a call may choose: the lines, only the files, or counts by file.
    """

    def __init__(self, call: GrepCall, *, limit: int, shows: Callable[[str], bool]) -> None:
        self.rows: list[str] = []
        self.lines: list[tuple[str, int]] = []  # path and number of each of the rows
        self._output = call.output
        self._count = 0
        self._room = limit
        self._most = None if call.rows is None else call.skip + call.rows
        self._shows = shows
        self._path = ""
        self._is_shown = False

    def clear(self) -> None:
        """Begin anew."""
        self.rows, self.lines, self._path, self._count = [], [], "", 0

    def add(self, path: str, number: int, line: str, *, at: int) -> None:
        """Take a line whose match begins `at` that character; Enough when there is no room."""
        is_new = path != self._path
        if is_new:
            self._path, self._is_shown, self._count = path, self._shows(path), 0
        if not self._is_shown:
            return
        self._count += 1
        if self._output == "counts" and not is_new:
            self.rows[-1] = f"{one_line(path)}:{self._count}"
        elif self._output == "lines" or is_new:
            self._append(path, number, line, at=at)

    def _append(self, path: str, number: int, line: str, *, at: int) -> None:
        tail = {"lines": f":{number}:{window(line, at)}", "counts": ":1", "files": ""}
        row = one_line(path) + tail[self._output]
        self._room -= len(row) + 1
        if self.rows and (self._room < 0 or len(self.rows) == self._most):
            raise Enough
        self.rows.append(row)
        self.lines.append((path, number))


def grep(
    call: GrepCall,
    workspace: Workspace,
    *,
    readable: Callable[[str], bool],
    env: Mapping[str, str],
    limits: ToolLimits,
) -> str:
    """Give the lines that match, and notes on what was left out."""
    if not call.pattern:
        raise ToolError("pattern must not be empty")
    if "\0" in call.pattern or "\0" in (call.glob or ""):
        raise ToolError("a pattern contains a NUL character")
    if _LINE_BREAK.search(call.pattern):
        raise ToolError("pattern must not contain a line break: lines are searched one by one")
    start = workspace.resolve(call.path or ".")
    is_directory = _is_directory(workspace, start)
    hits = Hits(call, limit=limits.result_chars, shows=_shows(call.glob, readable))
    limit_s = min(LIMIT_S, limits.tool_timeout_s)
    ripgrep = find_program("rg", env)
    notes: list[str] = []
    try:
        is_searched = False
        if ripgrep:
            from forkrun.tools.ripgrep import search_with_ripgrep

            is_searched = search_with_ripgrep(
                ripgrep, call, workspace, start, hits=hits, env=env, limit_s=limit_s
            )
        if not is_searched:
            hits.clear()
            _search(call, workspace, start, hits=hits, limit_s=limit_s, is_directory=is_directory)
    except Enough:
        notes.append("there are more matches; narrow the pattern or the path")
    except OutOfTime:
        notes.append(f"stopped after {limit_s:g} s: there may be more")
    rows = hits.rows[call.skip :]
    if not rows:
        notes.append("no line matches" if not hits.rows else f"there are {len(hits.rows)} in all")
    if call.output == "lines" and (call.before or call.after):
        from forkrun.tools.surroundings import with_surroundings

        rows = with_surroundings(rows, hits.lines[call.skip :], call, workspace, limits=limits)
    return "\n".join(rows + [f"[{note}]" for note in notes])


def _search(
    call: GrepCall,
    workspace: Workspace,
    start: str,
    *,
    hits: Hits,
    limit_s: float,
    is_directory: bool,
) -> None:
    try:
        pattern = re.compile(call.pattern, re.IGNORECASE if call.ignore_case else 0)
    except (re.error, RecursionError, OverflowError) as error:
        raise ToolError(f"pattern is not a valid regular expression: {error}") from None
    is_literal = re.fullmatch(r"[\w -]+", call.pattern) and not call.ignore_case
    literal = call.pattern if is_literal else ""
    with Patience(limit_s=limit_s) as patience:
        for path in walk(workspace, start) if is_directory else [start]:
            patience.check()
            for number, line in enumerate(lines_of(workspace, path, literal), start=1):
                match = patience.search(pattern, line)
                if match:
                    hits.add(path, number, line, at=match.start())


def lines_of(workspace: Workspace, path: str, literal: str = "") -> list[str]:
    """Give the lines of a file, none where no line can match: it does not hold the literal text,
    or is too large, binary, unreadable or no file."""
    try:
        if check_regular(workspace, path).st_size > MAX_FILE_BYTES:
            return []
        text = as_text(load(workspace, path))
    except (OSError, ToolError):
        return []
    if literal not in text.body or is_binary(text):
        return []
    return [line.removesuffix("\r") for line in text.body.removesuffix("\n").split("\n")]


def _is_directory(workspace: Workspace, start: str) -> bool:
    if start == ".":
        return True
    try:
        os.close(workspace.open(start, flags=os.O_RDONLY | os.O_DIRECTORY))
    except NotADirectoryError:
        check_regular(workspace, start)
        return False
    return True


def _shows(glob: str | None, readable: Callable[[str], bool]) -> Callable[[str], bool]:
    if not glob:
        return readable
    matcher = name_matcher(glob.removeprefix("!"))
    wanted = not glob.startswith("!")
    return lambda path: bool(matcher.search(path)) == wanted and readable(path)


def window(line: str, at: int) -> str:
    """Give a line, or of a long one what is around the match."""
    line = one_line(line)
    if len(line) <= _WINDOW:
        return line
    first = max(min(at - _BEFORE_HIT, len(line) - _WINDOW), 0)
    before = "… " if first else ""
    after = " …" if first + _WINDOW < len(line) else ""
    return f"{before}{line[first : first + _WINDOW]}{after} [line of {len(line)} characters]"
