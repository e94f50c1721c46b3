"""Write changes as a patch that `git apply` takes, and that `unpatch` reads without git.

Formats: git-diff(1), "generating patch text with -p"; diff-format.txt; binary patches are
base85 lines of a deflated "literal" (git's own apply.c reads them). The index line holds whole
blob ids (SHA-1), so whoever applies the patch can tell a file that has changed meanwhile.

What a patch of git cannot say stands in comment lines before the first file, which git skips:

    # forkrun patch 1
    # directory 755 path          a new directory (an empty one is nothing to git)
    # no-directory path           a directory that is gone
    # mode 600 path               permission bits that git does not keep
    # conflict changed path       the lines below are against what somebody else has made of it
    # left-out path               not in this patch (git takes no path with a part ".git")
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import string
import zlib
from collections.abc import Iterable, Iterator
from typing import BinaryIO

import msgspec

from forkrun.workspace.linediff import split_lines, write_hunks
from forkrun.workspace.records import Change, Changes, Node, Source
from forkrun.workspace.transfer import chunks

MAX_TEXT_BYTES = 2 * 1024 * 1024
MAX_FILE_BYTES = 512 * 1024 * 1024
NO_BLOB = "0" * 40
FIRST_LINE = b"# forkrun patch 1\n"

_MAX_TEXT_LINES = 100_000
_BINARY_HEAD_BYTES = 8000  # where git looks for a NUL
_PLAIN = frozenset(string.ascii_letters.encode() + string.digits.encode() + b"/._-+=@%,~^()[]{}")
_ESCAPES = {7: "a", 8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 34: '"', 92: "\\"}


class FileStat(msgspec.Struct, frozen=True, kw_only=True):
    """How much of one path changed: lines added and deleted, None for what is not text."""

    path: str
    kind: str
    added: int | None = None
    deleted: int | None = None


def write_patch(changes: Changes, out: BinaryIO) -> tuple[FileStat, ...]:
    """Write all changes as one patch, file by file, and return what `diffstat` shows.

    Holds at most one file of 2 MiB of text on each side in memory; larger files and those with a
    NUL are written as binary, files beyond 512 MiB and special files are left out and named.
    """
    writable = [each for each in changes.entries if _is_writable(each)]
    out.write(FIRST_LINE)
    for line in _comments(changes.entries, writable):
        out.write(line)
    return tuple(stat for each in writable for stat in _write_change(changes, each, out))


def diffstat(stats: Iterable[FileStat], *, max_files: int = 20) -> str:
    """Format the size of changes for people: a line for each path, and one for all."""
    stats = tuple(stats)
    width = min(60, max((len(printable(each.path)) for each in stats), default=0))
    lines = [f" {printable(each.path):<{width}} | {_amount(each)}" for each in stats[:max_files]]
    if len(stats) > max_files:
        lines.append(f" … and {len(stats) - max_files} more")
    added = sum(each.added or 0 for each in stats)
    deleted = sum(each.deleted or 0 for each in stats)
    files = "file" if len(stats) == 1 else "files"
    return "\n".join([*lines, f" {len(stats)} {files} changed, +{added} -{deleted}"])


def printable(path: str) -> str:
    """Make a name safe for a terminal: what cannot be printed is escaped."""
    return "".join(each if each.isprintable() else _escaped(each) for each in path)


def quote_path(path: str) -> str:
    """Quote a name as git does, where it holds anything but plain characters."""
    raw = os.fsencode(path)
    if raw and all(byte in _PLAIN for byte in raw):
        return path
    return '"' + "".join(map(_quoted_byte, raw)) + '"'


def git_mode(node: Node) -> str:
    """Return the mode that git has for a file or link."""
    if node.type == "symlink":
        return "120000"
    return "100755" if node.mode & 0o100 else "100644"


def blob_id(pieces: Iterable[bytes], size: int) -> str:
    """Return the name that git gives to a content."""
    digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


class _Side:
    """One side of a change: nothing, a link's target, or a file that is open."""

    def __init__(self, node: Node | None, fd: int | None) -> None:
        self.node = node
        self._fd = fd
        self._small = b"" if node is None else os.fsencode(node.target)
        self.size = len(self._small) if fd is None else os.fstat(fd).st_size
        self.id = NO_BLOB if node is None else blob_id(self.pieces(), self.size)

    def pieces(self) -> Iterator[bytes]:
        return iter([self._small]) if self._fd is None else chunks(self._fd)

    def is_text(self) -> bool:
        if self._fd is None:
            return True
        if self.size > MAX_TEXT_BYTES or b"\0" in os.pread(self._fd, _BINARY_HEAD_BYTES, 0):
            return False
        return sum(piece.count(b"\n") for piece in self.pieces()) <= _MAX_TEXT_LINES

    def lines(self) -> list[bytes]:
        return split_lines(b"".join(self.pieces()))


@contextlib.contextmanager
def _open_side(source: Source, path: str, node: Node | None) -> Iterator[_Side]:
    if node is None or node.type != "file":
        yield _Side(node, None)
        return
    fd = source.open_file(path)
    try:
        yield _Side(node, fd)
    finally:
        os.close(fd)


def _write_change(changes: Changes, change: Change, out: BinaryIO) -> Iterator[FileStat]:
    before, after = change.before, change.after
    if before is not None and after is not None and before.type != after.type:
        # Git has no change of type: the old goes, then the new comes.
        gone = msgspec.structs.replace(change, after=None, kind="deleted")
        come = msgspec.structs.replace(change, before=None)
        _write_pair(changes, gone, out)
        yield _write_pair(changes, come, out)
    elif not _is_directory(change):
        yield _write_pair(changes, change, out)
    else:
        yield FileStat(path=change.path + "/", kind=change.kind)


def _write_pair(changes: Changes, change: Change, out: BinaryIO) -> FileStat:
    with (
        _open_side(changes.old, change.path, change.before) as old,
        _open_side(changes.source, change.path, change.after) as new,
    ):
        lines = list(_header(change, old, new))
        if len(lines) > 1:  # a header with nothing in it is an error to git
            out.writelines(lines)
        if old.id == new.id:
            return FileStat(path=change.path, kind=change.kind, added=0, deleted=0)
        if old.is_text() and new.is_text():
            return _write_text(change, old, new, out)
        out.write(b"GIT binary patch\n")
        _write_literal(new, out)
        return FileStat(path=change.path, kind=change.kind)


def _write_text(change: Change, old: _Side, new: _Side, out: BinaryIO) -> FileStat:
    added = deleted = 0
    names = (_name("a", change.path, old.node), _name("b", change.path, new.node))
    pending = b"--- %b\n+++ %b\n" % names
    for hunk in write_hunks(old.lines(), new.lines()):
        out.write(pending + hunk)
        pending = b""
        lines = hunk.split(b"\n")[1:]
        added += sum(line.startswith(b"+") for line in lines)
        deleted += sum(line.startswith(b"-") for line in lines)
    return FileStat(path=change.path, kind=change.kind, added=added, deleted=deleted)


def _write_literal(side: _Side, out: BinaryIO) -> None:
    """Write a whole content: deflated, then lines of up to 52 bytes in base85."""
    out.write(b"literal %d\n" % side.size)
    deflate = zlib.compressobj()
    left = b""
    for piece in side.pieces():
        left = _write_base85(left + deflate.compress(piece), out)
    left = _write_base85(left + deflate.flush(), out)
    if left:
        out.write(_base85_line(left))
    out.write(b"\n")


def _write_base85(content: bytes, out: BinaryIO) -> bytes:
    whole = len(content) // 52 * 52
    for at in range(0, whole, 52):
        out.write(_base85_line(content[at : at + 52]))
    return content[whole:]


def _base85_line(content: bytes) -> bytes:
    length = len(content)
    sign = ord("A") + length - 1 if length <= 26 else ord("a") + length - 27
    return bytes([sign]) + base64.b85encode(content, pad=True) + b"\n"


def _header(change: Change, old: _Side, new: _Side) -> Iterator[bytes]:
    there = old.node or new.node
    assert there is not None
    names = (_name("a", change.path, there), _name("b", change.path, there))
    yield b"diff --git %b %b\n" % names
    mode = ""
    if old.node is None and new.node is not None:
        yield f"new file mode {git_mode(new.node)}\n".encode()
    elif new.node is None and old.node is not None:
        yield f"deleted file mode {git_mode(old.node)}\n".encode()
    elif old.node is not None and new.node is not None:
        mode = git_mode(new.node)
        if git_mode(old.node) != mode:
            yield f"old mode {git_mode(old.node)}\nnew mode {mode}\n".encode()
            mode = ""
    if old.id != new.id:
        yield f"index {old.id}..{new.id}{' ' if mode else ''}{mode}\n".encode()


def _name(side: str, path: str, node: Node | None) -> bytes:
    return b"/dev/null" if node is None else os.fsencode(quote_path(f"{side}/{path}"))


def _comments(entries: Iterable[Change], writable: list[Change]) -> Iterator[bytes]:
    kept = {id(each) for each in writable}
    for each in entries:
        name = quote_path(each.path)
        if id(each) not in kept:
            yield f"# left-out {name}\n".encode()
            continue
        if each.conflict is not None:
            yield f"# conflict {each.conflict} {name}\n".encode()
        if _is_directory(each) and each.after is None:
            yield f"# no-directory {name}\n".encode()
        elif each.after is not None and _is_directory(each) and each.kind == "added":
            yield f"# directory {each.after.mode:o} {name}\n".encode()
        elif each.after is not None and (each.kind == "mode" or _has_odd_mode(each.after)):
            yield f"# mode {each.after.mode:o} {name}\n".encode()


def _is_writable(change: Change) -> bool:
    nodes = [node for node in (change.before, change.after) if node is not None]
    if any(part.casefold() == ".git" for part in change.path.split("/")):
        return False
    return all(node.type != "special" and node.size <= MAX_FILE_BYTES for node in nodes)


def _has_odd_mode(node: Node) -> bool:
    return node.type == "file" and node.mode not in (0o644, 0o755)


def _is_directory(change: Change) -> bool:
    node = change.after or change.before
    return node is not None and node.type == "directory"


def _amount(stat: FileStat) -> str:
    if stat.path.endswith("/") or stat.kind == "mode":
        return {"mode": "mode"}.get(stat.kind, stat.kind)
    return "binary" if stat.added is None else f"+{stat.added} -{stat.deleted or 0}"


def _escaped(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape", "backslashreplace").decode()


def _quoted_byte(byte: int) -> str:
    if byte in _ESCAPES:
        return "\\" + _ESCAPES[byte]
    return chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}"
