"""The tool `read_file`: lines with numbers, or a picture."""

from __future__ import annotations

import os
import stat

from forkrun.catalog import ReadFileInput
from forkrun.protocol import Image
from forkrun.tools.content import Text, as_text, describe, is_binary
from forkrun.tools.failures import ToolError
from forkrun.tools.paths import Workspace

MAX_FILE_BYTES = 32 * 1024 * 1024
MAX_IMAGE_BYTES = 5 * 1024 * 1024
DEFAULT_LINES = 2000
_LINE_CHARS = 2000
_KINDS = (
    (stat.S_ISDIR, "a directory: list it with glob"),
    (stat.S_ISFIFO, "a named pipe, not a regular file"),
    (stat.S_ISSOCK, "a socket, not a regular file"),
    (stat.S_ISCHR, "a device, not a regular file"),
    (stat.S_ISBLK, "a device, not a regular file"),
)


def read_file(
    call: ReadFileInput, workspace: Workspace, path: str, *, seen: dict[str, bytes], limit: int
) -> tuple[str, tuple[Image, ...]]:
    """Give the lines asked for, as text of at most about `limit` characters, or the picture.

    `seen` takes the digest of what was read, by resolved path.
    """
    if call.limit is not None and call.limit < 1:
        raise ToolError(f"limit must be at least 1: {call.limit}")
    if call.offset is not None and call.offset < 0:
        raise ToolError(f"offset must be at least 1: {call.offset}")
    raw = load(workspace, path)
    seen[path] = digest(raw)
    media_type = _media_type(raw)
    if media_type:
        if len(raw) > MAX_IMAGE_BYTES:
            raise ToolError(
                f"{path} is a picture of {len(raw)} bytes; at most {MAX_IMAGE_BYTES} are shown"
            )
        return f"{path}: {media_type}, {len(raw)} bytes", (
            Image(media_type=media_type, content=raw),
        )
    text = as_text(raw)
    if is_binary(text):
        raise ToolError(f"{path} is a binary file{_kind_hint(raw)} of {len(raw)} bytes, not shown")
    if raw.startswith(b"%PDF-"):
        raise ToolError(f"{path} is a PDF of {len(raw)} bytes, not text: try pdftotext with bash")
    if not text.body:
        return f"[{path} is empty]", ()
    return _numbered(text, path, first=call.offset or 1, count=call.limit, limit=limit), ()


def load(workspace: Workspace, path: str) -> bytes:
    """Read a whole regular file by its resolved path.

    Raises ToolError for what is no regular file and for what is too large, and OSError.
    """
    raw, _ = load_with_stat(workspace, path)
    return raw


def load_with_stat(workspace: Workspace, path: str) -> tuple[bytes, os.stat_result]:
    """Read a whole regular file, and give its status as it was before the first byte was read."""
    check_regular(workspace, path)
    # Without waiting, for the name may be a pipe by now.
    descriptor = workspace.open(path, flags=os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        status = os.fstat(descriptor)
        _refuse_kinds(status, path)
        raw = bytearray()
        while chunk := os.read(descriptor, 1024 * 1024):
            raw += chunk
            if len(raw) > MAX_FILE_BYTES:
                raise ToolError(
                    f"{path} is larger than {MAX_FILE_BYTES} bytes; use bash to look at parts of it"
                )
    finally:
        os.close(descriptor)
    return bytes(raw), status


def check_regular(workspace: Workspace, path: str) -> os.stat_result:
    """Give the status of a regular file, without opening it; ToolError for every other kind."""
    if path == ".":
        raise ToolError("the path is a directory: list it with glob")
    with workspace.parent(path) as (directory, name):
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    _refuse_kinds(status, path)
    return status


def digest(raw: bytes) -> bytes:
    """Give what stands for the content of a file."""
    # The module behind hashlib, which loads in no time because it leaves OpenSSL alone.
    from _blake2 import blake2b

    return blake2b(raw, digest_size=20).digest()


def _refuse_kinds(status: os.stat_result, path: str) -> None:
    for is_kind, what in _KINDS:
        if is_kind(status.st_mode):
            raise ToolError(f"{path} is {what}")


def _numbered(text: Text, path: str, *, first: int, count: int | None, limit: int) -> str:
    lines = text.body.split("\n")
    if not lines[-1]:
        lines.pop()
    if first > len(lines):
        raise ToolError(f"offset {first} is past the end: {path} has {len(lines)} lines")
    last = min(len(lines), first - 1 + (count or DEFAULT_LINES))
    shown: list[str] = []
    room = limit
    for number in range(first, last + 1):
        row = f"{number:6}\t{_shortened(lines[number - 1])}"
        room -= len(row) + 1
        if room < 0 and shown:
            break
        shown.append(row)
    end = first + len(shown) - 1
    notes = [describe(text)] if describe(text) else []
    if first > 1 or end < len(lines):
        notes.append(f"lines {first} to {end} of {len(lines)}")
        notes += [f"go on with offset {end + 1}"] if end < len(lines) else []
    return "\n".join(shown + ([f"[{'; '.join(notes)}]"] if notes else []))


def _shortened(line: str) -> str:
    line = line.removesuffix("\r")
    if len(line) <= _LINE_CHARS:
        return line
    return f"{line[:_LINE_CHARS]} [… {len(line) - _LINE_CHARS} more characters in this line]"


def _media_type(raw: bytes) -> str | None:
    """Tell the picture formats that models take by their first bytes, whatever the name says."""
    if raw.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if raw.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if raw.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if raw[:4] == b"RIFF" and raw[8:12] == b"WEBP":
        return "image/webp"
    return None


def _kind_hint(raw: bytes) -> str:
    for magic, kind in ((b"\x7fELF", "ELF"), (b"PK\x03\x04", "zip"), (b"\x1f\x8b", "gzip")):
        if raw.startswith(magic):
            return f" ({kind})"
    return ""
