"""The tools `write_file` and `edit_file`: what was asked, and never over another's change."""

from __future__ import annotations

import os
import re

import msgspec

from forkrun.catalog import Change, EditFileInput, EditsCall, WriteFileInput
from forkrun.tools.content import Text, as_text, describe
from forkrun.tools.failures import ToolError
from forkrun.tools.paths import Workspace
from forkrun.tools.reading import check_regular, digest, load_with_stat
from forkrun.tools.replacing import replace

_NUMBERED = re.compile(r"^\s*\d+\t", re.MULTILINE)
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_MOST_LINES_NAMED = 20


def write_file(
    call: WriteFileInput, workspace: Workspace, path: str, *, seen: dict[str, bytes]
) -> str:
    """Write exactly this content; say in one line what was done.

    Raises ToolError where the file is not what it was when it was last read or written here.
    """
    content = _encoded(call.content, key="content")
    if path == "." or call.file_path.endswith("/"):
        raise ToolError(f"{call.file_path} names a directory")
    note = ""
    before: os.stat_result | None = None
    try:
        before = check_regular(workspace, path)
        if path in seen:
            raw, before = load_with_stat(workspace, path)
            if digest(raw) != seen[path]:
                raise ToolError(
                    f"{path} has changed since it was read here; nothing was written. "
                    "Read it again and decide on what it holds now"
                )
            note = _lost(as_text(raw), as_text(content))
    except FileNotFoundError:
        before = None
    replace(workspace, path, content, before=before)
    seen[path] = digest(content)
    return f"{'wrote' if before else 'created'} {path}: {len(content)} bytes{note}"


def edit_file(
    call: EditFileInput | EditsCall, workspace: Workspace, path: str, *, seen: dict[str, bytes]
) -> str:
    """Replace the text; say in one line where. ToolError where it is not exactly one place.

    Of several edits each is made in what those before it left, and all of them or none.
    """
    changes: list[EditFileInput | Change]
    changes = [*call.edits] if isinstance(call, EditsCall) else [call]
    raw, before = load_with_stat(workspace, path)
    text, said = as_text(raw), []
    for number, change in enumerate(changes, start=1):
        try:
            body, where = _changed(change, text, path=path)
        except ToolError as error:
            if len(changes) == 1:
                raise
            raise ToolError(f"edit {number}: {error.text}; none of the edits was made") from None
        text = msgspec.structs.replace(text, body=body)
        said.append(where)
    content = text.with_body(text.body)
    replace(workspace, path, content, before=before)
    if seen.get(path) == digest(raw):
        seen[path] = digest(content)
    return "\n".join(said)


def _changed(change: EditFileInput | Change, text: Text, *, path: str) -> tuple[str, str]:
    """Give the body with one change made in it, and where that was, in words."""
    _encoded(change.new_string, key="new_string")
    if isinstance(change, Change) and change.after_line is not None:
        return _inserted(change.new_string, text, after=change.after_line, path=path)
    return _replaced(change, text, path=path)


def _inserted(new: str, text: Text, *, after: int, path: str) -> tuple[str, str]:
    lines = _LINE.findall(text.body)
    if after > len(lines):
        raise ToolError(f"{path} has {len(lines)} lines: nothing can be put after line {after}")
    if not text.is_known and not new.isascii():
        raise ToolError(f"the encoding of {path} is not known, and the new text is not ASCII")
    end = text.line_end
    added = new.replace("\r\n", "\n").replace("\n", end)
    head, tail = "".join(lines[:after]), "".join(lines[after:])
    if head and not head.endswith("\n"):
        added = end + added
    elif not added.endswith("\n"):
        added += end
    return head + added + tail, f"inserted text after line {after} of {path}"


def _replaced(change: EditFileInput | Change, text: Text, *, path: str) -> tuple[str, str]:
    if not change.old_string:
        raise ToolError("old_string must not be empty; write_file writes a whole file")
    if change.old_string == change.new_string:
        raise ToolError("old_string and new_string are the same; nothing was changed")
    places = list(_pattern(change.old_string).finditer(text.body))
    if not places:
        raise ToolError(f"old_string does not occur in {path}{_hint(change.old_string, text)}")
    lines = _line_numbers(text.body, places)
    if len(places) > 1 and not change.replace_all:
        raise ToolError(
            f"old_string occurs {len(places)} times in {path}, in lines {lines}; give more of the "
            "text around the one that is meant, or set replace_all"
        )
    _check_encoding(change.new_string, text, places, path=path)
    return _substitute(change, text, places), f"replaced {len(places)} in {path}, in line {lines}"


def _encoded(text: str, *, key: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ToolError(f"{key} is not valid text; nothing was changed") from None


def _lost(old: Text, new: Text) -> str:
    """Tell what the new content does not keep of the old form of the file."""
    before, after = describe(old), describe(new)
    return f" (the file had: {before}; now: {after or 'plain UTF-8'})" if before != after else ""


def _pattern(old: str) -> re.Pattern[str]:
    """Match the text with either line end, since a reader sees no difference."""
    lines = old.replace("\r\n", "\n").split("\n")
    return re.compile("\r?\n".join(map(re.escape, lines)))


def _substitute(call: EditFileInput | Change, text: Text, places: list[re.Match[str]]) -> str:
    new_lf = call.new_string.replace("\r\n", "\n")
    new_crlf = new_lf.replace("\n", "\r\n")
    means_crlf = "\r\n" in call.old_string
    usual = text.line_end
    pieces: list[str] = []
    position = 0
    for place in places:
        found = place.group()
        end = usual if "\n" not in found else "\r\n" if "\r\n" in found else "\n"
        pieces.append(text.body[position : place.start()])
        if end == "\r\n":
            pieces.append(new_crlf)
        else:  # a carriage return in the new text is meant, unless the old one had them as well
            pieces.append(new_lf if means_crlf else call.new_string)
        position = place.end()
    pieces.append(text.body[position:])
    return "".join(pieces)


def _check_encoding(new: str, text: Text, places: list[re.Match[str]], *, path: str) -> None:
    if text.is_known:
        return
    if not new.isascii():
        raise ToolError(
            f"the encoding of {path} is not UTF-8 and not known, and new_string is not ASCII: "
            "nothing was changed, for the file would be in two encodings"
        )
    if any(place.start() and not text.body[place.start() - 1].isascii() for place in places):
        raise ToolError(
            f"the encoding of {path} is not known, and old_string follows a byte that is not ASCII "
            "and may be half of a character: nothing was changed"
        )


def _line_numbers(body: str, places: list[re.Match[str]]) -> str:
    numbers = [str(body.count("\n", 0, place.start()) + 1) for place in places[:_MOST_LINES_NAMED]]
    return ", ".join(numbers) + (", …" if len(places) > _MOST_LINES_NAMED else "")


def _hint(old: str, text: Text) -> str:
    if not text.is_known and not old.isascii():
        return ", whose encoding is not UTF-8: only ASCII text can be found in it"
    bare = _NUMBERED.sub("", old)
    if bare != old and _pattern(bare).search(text.body):
        return "; leave out the line numbers that read_file puts before each line"
    words = old.split()
    near = re.search(r"\s+".join(map(re.escape, words)), text.body) if words else None
    if near:
        line = text.body.count("\n", 0, near.start()) + 1
        return f"; text that differs from it only in blanks is in line {line}"
    return ""
