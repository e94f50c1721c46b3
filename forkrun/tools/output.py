"""What commands print, made fit for a model: bounded while it arrives, then cleaned and cut."""

from __future__ import annotations

import re

_ESCAPE = re.compile(
    r"\x9b[0-?]*[ -/]*[@-~]|\x1b(?:"
    r"\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC: titles, links
    r"|[PX^_][^\x1b]*(?:\x1b\\)?"  # DCS, SOS, PM, APC
    r"|[ -/]*[0-Z\\`-~]"  # the short ones
    r")?"
)
_OVERWRITTEN = re.compile(r"[^\n]*\r(?=[^\r\n])")
_SILENT = re.compile(r"[\x07\x0e\x0f\x80-\x9f]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_FOREIGN = re.compile("[\ud800-\udfff]")


class Kept:
    """The first and the last bytes of a stream, at least `limit` of each where there are as many.

    `dropped` counts the bytes that fell out between.
    """

    def __init__(self, *, limit: int) -> None:
        self.dropped = 0
        self._limit = limit
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, chunk: bytes) -> None:
        """Take the next bytes of the stream."""
        room = self._limit - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        self._tail += chunk
        if len(self._tail) > 2 * self._limit:
            excess = len(self._tail) - self._limit
            del self._tail[:excess]
            self.dropped += excess

    def text(self, *, limit: int) -> str:
        """Give what was kept as clean text of at most about `limit` characters.

        Where something is missing in the middle, a line says how many bytes.
        """
        tail = bytes(self._tail)
        if not self.dropped:
            return cut(clean(bytes(self._head) + tail), limit=limit)
        head = clean(_whole(bytes(self._head)))
        return _join(head, clean(_whole_from(tail)), limit=limit, dropped=self.dropped)


def clean(raw: bytes) -> str:
    """Make text of what a program wrote for a terminal.

    Escape sequences go; of a line that overwrote itself the last state stays; what is not UTF-8,
    and control characters other than tab and line feed, become U+FFFD.
    """
    text = raw.decode("utf-8", "replace")
    if "\x1b" in text or "\x9b" in text:
        text = _ESCAPE.sub("", text)
    text = _SILENT.sub("", text)
    if "\r" in text:
        text = re.sub(r"\r+\n", "\n", text)
        text = _OVERWRITTEN.sub("", text).replace("\r", "")
    if "\b" in text:
        text = "\n".join(map(_back_spaced, text.split("\n")))
    return _CONTROL.sub("\ufffd", text)


def sendable(text: str) -> str:
    """Replace lone surrogates, which stand for foreign bytes in names and files."""
    return text if text.isascii() else _FOREIGN.sub("\ufffd", text)


def one_line(text: str) -> str:
    """Replace control characters, line breaks among them, so that a name cannot look like two."""
    return _CONTROL.sub("\ufffd", text).replace("\n", "\ufffd")


def cut(text: str, *, limit: int) -> str:
    """Give at most about `limit` characters: head, tail and the number of bytes between."""
    return text if len(text) <= limit else _join(text, "", limit=limit, dropped=0)


def _join(head: str, tail: str, *, limit: int, dropped: int) -> str:
    tail_limit = max(limit // 2, 1)
    if not tail:
        head, tail = head[:-tail_limit], head[-tail_limit:]
    for_head = max(limit - tail_limit, 0)
    dropped += _size(head[for_head:]) + _size(tail[:-tail_limit])
    return f"{head[:for_head]}\n[… {dropped} bytes dropped …]\n{tail[-tail_limit:]}"


def _back_spaced(line: str) -> str:
    shown: list[str] = []
    for character in line:
        if character != "\b":
            shown.append(character)
        elif shown:
            shown.pop()
    return "".join(shown)


def _whole(head: bytes) -> bytes:
    """Leave off a UTF-8 sequence that is cut at the end."""
    return head[: -_broken(head)] if _broken(head) else head


def _broken(head: bytes) -> int:
    for back in range(1, min(4, len(head) + 1)):
        byte = head[-back]
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if back < needed else 0
        if byte < 0x80:
            return 0
    return 0


def _whole_from(tail: bytes) -> bytes:
    """Leave off the continuation bytes that a cut UTF-8 sequence has left at the start."""
    start = 0
    while start < min(3, len(tail)) and 0x80 <= tail[start] < 0xC0:
        start += 1
    return tail[start:]


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
