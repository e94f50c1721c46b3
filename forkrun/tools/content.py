"""The bytes of a file as text and back, without a change to what was not meant.

Text files keep their byte-order mark, their encoding and their line ends. A file that is in no
encoding known here is carried through byte by byte (Python's "surrogateescape"), so that ASCII
can be edited in it and nothing else is touched.
"""

from __future__ import annotations

import msgspec

_MARKS = (
    (b"\xef\xbb\xbf", "utf-8"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
)


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """A file as text: `mark` its byte-order mark, `codec` its encoding, "ascii" for an unknown one.

    In the body of a file with an unknown encoding each byte above 127 is a lone surrogate.
    """

    body: str
    mark: bytes
    codec: str

    @property
    def is_known(self) -> bool:
        """Say whether the encoding is known."""
        return self.codec != "ascii"

    @property
    def line_end(self) -> str:
        """Give the line end that most lines have."""
        windows = self.body.count("\r\n")
        return "\r\n" if windows * 2 > self.body.count("\n") else "\n"

    def with_body(self, body: str) -> bytes:
        """Encode another body as this file is encoded; UnicodeEncodeError where that cannot be."""
        return self.mark + body.encode(self.codec, "strict" if self.is_known else "surrogateescape")


def as_text(raw: bytes) -> Text:
    """Decode a file: by its byte-order mark, else as UTF-8, else as ASCII with foreign bytes."""
    for mark, codec in _MARKS:
        if raw.startswith(mark):
            try:
                return Text(body=raw[len(mark) :].decode(codec), mark=mark, codec=codec)
            except UnicodeDecodeError:
                break
    try:
        return Text(body=raw.decode(), mark=b"", codec="utf-8")
    except UnicodeDecodeError:
        return Text(body=raw.decode("ascii", "surrogateescape"), mark=b"", codec="ascii")


def is_binary(text: Text) -> bool:
    """Say whether it is no text at all: it has NUL bytes near its start."""
    return "\0" in text.body[:8192]


def describe(text: Text) -> str:
    """Name what a reader of the text does not see: mark, encoding, line ends; "" if plain."""
    notes = []
    if not text.is_known:
        notes.append("not UTF-8: bytes that are no ASCII are shown as \ufffd")
    elif text.codec != "utf-8":
        notes.append(text.codec.upper())
    if text.mark:
        notes.append("byte-order mark")
    if text.line_end == "\r\n":
        notes.append("CRLF line ends")
    return ", ".join(notes)
