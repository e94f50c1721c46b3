"""Search with ripgrep: fast, and never a step longer than linear.

A pattern is never taken for an option and no configuration is read. Files that are chosen by a
glob are still left out when an ignore file names them, which `rg --glob` would not do.
"""

from __future__ import annotations

import os
from base64 import b64decode
from collections.abc import Mapping
from contextlib import suppress

import msgspec

from forkrun.catalog import GrepCall
from forkrun.tools.command import run_command
from forkrun.tools.environment import command_environment
from forkrun.tools.paths import Workspace
from forkrun.tools.patience import OutOfTime
from forkrun.tools.searching import MAX_FILE_BYTES, Hits
from forkrun.tools.walking import VENDORED, VENV_MARK

_OPTIONS = (
    "--no-config",
    "--json",
    "--no-messages",
    "--no-require-git",
    "--no-ignore-global",
    "--hidden",
    "--crlf",
    "--engine=auto",
    "--sort=path",
    f"--max-filesize={MAX_FILE_BYTES}",
    *(f"--glob=!{name}/" for name in sorted(VENDORED)),
)


def search_with_ripgrep(
    program: str,
    call: GrepCall,
    workspace: Workspace,
    start: str,
    *,
    hits: Hits,
    env: Mapping[str, str],
    limit_s: float,
) -> bool:
    """Search below a resolved path; return False where ripgrep cannot take it or the pattern.

    Raises OutOfTime, and what `hits` raises.
    """
    try:
        directory = workspace.open(start, flags=os.O_RDONLY | os.O_DIRECTORY)
    except NotADirectoryError:  # a file, or by now a link, which ripgrep would follow
        return False
    base = "" if start == "." else f"{start}/"
    try:
        matches = _Matches(hits, workspace, base)
        ended = run_command(
            [program, *_OPTIONS, *_chosen(call), "--regexp", call.pattern, "--", "./"],
            matches,
            directory=directory,
            env=command_environment(env, workspace=workspace.root),
            timeout_s=limit_s,
        )
    finally:
        os.close(directory)
    if ended.timed_out:
        raise OutOfTime
    return matches.is_complete


class _Text(msgspec.Struct, frozen=True):
    """Text as ripgrep prints it: base64 where it is not UTF-8."""

    text: str | None = None
    base64: str | None = msgspec.field(default=None, name="bytes")

    def raw(self) -> bytes:
        return self.text.encode() if self.text is not None else b64decode(self.base64 or "")


class _Submatch(msgspec.Struct, frozen=True):
    start: int


class _Match(msgspec.Struct, frozen=True):
    path: _Text
    lines: _Text
    line_number: int
    submatches: tuple[_Submatch, ...]


class _Line(msgspec.Struct, frozen=True):
    type: str
    data: msgspec.Raw


class _Matches:
    """Takes what ripgrep prints. `is_complete` once it has come to its own end."""

    def __init__(self, hits: Hits, workspace: Workspace, base: str) -> None:
        self.is_complete = False
        self._hits = hits
        self._workspace = workspace
        self._base = base
        self._rest = bytearray()
        self._is_foreign: dict[str, bool] = {}

    def add(self, chunk: bytes) -> None:
        self._rest += chunk
        if b"\n" not in chunk:
            return
        lines = self._rest.split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            with suppress(msgspec.MsgspecError):  # a word on stderr, in the same stream
                self._take(msgspec.json.decode(line, type=_Line))

    def _take(self, line: _Line) -> None:
        if line.type == "summary":
            self.is_complete = True
        if line.type != "match":
            return
        match = msgspec.json.decode(line.data, type=_Match)
        path = self._base + os.fsdecode(match.path.raw()).removeprefix("./")
        if self._is_in_virtual_environment(path):
            return
        raw = match.lines.raw()
        at = len(raw[: match.submatches[0].start].decode("utf-8", "replace"))
        text = raw.decode("utf-8", "replace").removesuffix("\n").removesuffix("\r")
        self._hits.add(path, match.line_number, text, at=at)

    def _is_in_virtual_environment(self, path: str) -> bool:
        """Look at the directories of the path from the top, each of them once in all."""
        is_foreign = False
        end = path.find("/", len(self._base))
        while end > 0 and not is_foreign:
            directory = path[:end]
            if directory not in self._is_foreign:
                self._is_foreign[directory] = self._exists(f"{directory}/{VENV_MARK}")
            is_foreign = self._is_foreign[directory]
            end = path.find("/", end + 1)
        return is_foreign

    def _exists(self, path: str) -> bool:
        try:
            os.stat(path, dir_fd=self._workspace.descriptor, follow_symlinks=False)
        except OSError:
            return False
        return True


def _chosen(call: GrepCall) -> list[str]:
    return [*_only(call.glob), *(["--ignore-case"] if call.ignore_case else [])]


def _only(glob: str | None) -> list[str]:
    """Let ripgrep pass over files by their name. A type, unlike a glob, respects ignore files."""
    if not glob or "/" in glob or glob.startswith("!"):
        return []
    return ["--type-clear=forkrun", f"--type-add=forkrun:{glob}", "--type=forkrun"]
