"""Apply what stands in one section of a patch: hunks at their very place, or a binary literal.

`section_line` is the number of the section's first line, which errors name.
"""

from __future__ import annotations

import base64
import os
import re
import zlib
from typing import IO, BinaryIO

from forkrun.errors import InputError
from forkrun.workspace.linediff import NO_NEWLINE
from forkrun.workspace.patch import MAX_FILE_BYTES

MAX_LINE_BYTES = 4 * 1024 * 1024
_HOLE_BYTES = 4096

_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


def apply_hunks(patch: BinaryIO, old: IO[bytes], made: IO[bytes], *, section_line: int) -> None:
    """Write the old file with all hunks of a section applied. Raises InputError."""
    at = 1
    while (line := patch.readline(MAX_LINE_BYTES)) and not line.startswith(b"diff --git "):
        match = _HUNK.match(line)
        if match is None:
            continue
        start = int(match[1]) + (int(match[2] or 1) == 0)
        while at < start and (kept := old.readline()):
            made.write(kept)
            at += 1
        at += _apply_hunk(patch, old, made, _Counts(line, section_line))
    while kept := old.read(1024 * 1024):
        made.write(kept)


def inflate_literal(patch: BinaryIO, made: IO[bytes], *, section_line: int) -> None:
    """Write the content of a binary patch, in bounded pieces. Raises InputError."""
    patch.readline(MAX_LINE_BYTES)
    word, _, size_text = patch.readline(MAX_LINE_BYTES).partition(b" ")
    if word != b"literal" or not size_text.strip().isdigit():
        raise bad_patch(section_line, "a binary patch that is no literal")
    size = int(size_text)
    if size > MAX_FILE_BYTES:
        raise bad_patch(section_line, f"a binary file of {size} bytes, more than {MAX_FILE_BYTES}")
    inflate = zlib.decompressobj()
    try:
        while made.tell() <= size and (line := patch.readline(MAX_LINE_BYTES)).strip():
            pending = _base85(line)
            while pending and made.tell() <= size:
                _write_with_holes(made, inflate.decompress(pending, 1024 * 1024))
                pending = inflate.unconsumed_tail
    except (zlib.error, ValueError) as error:
        raise bad_patch(section_line, f"a binary patch that cannot be read: {error}") from None
    if made.tell() != size:
        raise bad_patch(section_line, f"a binary patch of another size than {size}")


def _write_with_holes(made: IO[bytes], content: bytes) -> None:
    """Write content, but pass over blocks that hold nothing but NUL."""
    for at in range(0, len(content), _HOLE_BYTES):
        block = content[at : at + _HOLE_BYTES]
        if block.count(0) == len(block):
            made.seek(len(block), os.SEEK_CUR)
        else:
            made.write(block)


def skip_hunk(patch: BinaryIO, line: bytes, *, section_line: int) -> int:
    """Read past a hunk, whose lines may look like anything; return how many lines it had."""
    counts = _Counts(line, section_line)
    lines = 0
    while counts.is_open():
        counts.take(_body_line(patch, section_line)[:1])
        lines += 1
    return lines


def bad_patch(number: int, what: str) -> InputError:
    """Return the error that says what is wrong with a patch, and in which line."""
    return InputError(f"the patch cannot be used: line {number}: {what}")


class _Counts:
    """How many old and new lines of a hunk are still to come."""

    def __init__(self, line: bytes, section_line: int) -> None:
        match = _HUNK.match(line)
        if match is None:
            raise bad_patch(section_line, "not a hunk")
        self.section_line = section_line
        self._old = int(match[2] or 1)
        self._new = int(match[4] or 1)

    def is_open(self) -> bool:
        """Whether there are lines to come."""
        return self._old > 0 or self._new > 0

    def take(self, sign: bytes) -> None:
        """Count one line by its sign; an empty line is one of context, whose blank was lost."""
        self._old -= sign in (b" ", b"-", b"\n")
        self._new -= sign in (b" ", b"+", b"\n")


def _apply_hunk(patch: BinaryIO, old: IO[bytes], made: IO[bytes], counts: _Counts) -> int:
    """Apply one hunk where the old file stands; return how many of its lines were used."""
    used = 0
    while counts.is_open():
        body = _body_line(patch, counts.section_line)
        sign = body[:1]
        content = body if sign == b"\n" else body[1:]
        position = patch.tell()
        if patch.readline(MAX_LINE_BYTES) == NO_NEWLINE:
            content = content[:-1]
        else:
            patch.seek(position)
        counts.take(sign)
        if sign != b"+":
            used += 1
            if old.readline(len(content) + 1) != content:
                raise bad_patch(counts.section_line, "a hunk does not fit")
        if sign != b"-":
            made.write(content)
    return used


def _body_line(patch: BinaryIO, section_line: int) -> bytes:
    line = patch.readline(MAX_LINE_BYTES)
    while line[:1] == b"\\":
        line = patch.readline(MAX_LINE_BYTES)
    if line[:1] not in (b" ", b"+", b"-", b"\n"):
        raise bad_patch(section_line, "a hunk is cut short")
    return line


def _base85(line: bytes) -> bytes:
    """Decode one line of up to 52 bytes, whose first character is the length."""
    sign = line[0]
    length = sign - ord("A") + 1 if sign <= ord("Z") else sign - ord("a") + 27
    return base64.b85decode(line[1:].rstrip(b"\n"))[:length]
