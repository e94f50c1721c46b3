"""Text that came from a model or a tool, made fit for a terminal and for a bound."""

from __future__ import annotations

import re

_ESCAPES = (
    r"(?s:\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movements
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)"  # OSC, DCS, SOS, PM, APC: titles, links
    r"|\x1b[ -/]*[0-~])"  # two-character escapes
)
_CONTROLS = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"


def printable(text: str) -> str:
    """Take out terminal escapes; turn other control characters but tab and newline into U+FFFD."""
    without_escapes = re.sub(_ESCAPES, "", text.replace("\r\n", "\n"))
    return re.sub(_CONTROLS, "\N{REPLACEMENT CHARACTER}", without_escapes)


def clip(text: str, max_bytes: int, *, note: str) -> str:
    """Cut text to at most `max_bytes` of UTF-8, the note included, at a character's border."""
    encoded = text.encode()
    if len(encoded) <= max_bytes:
        return text
    room = max_bytes - len(note.encode())
    return encoded[:room].decode(errors="ignore") + note


def one_line(text: str, *, width: int) -> str:
    """Fold text to one line of at most `width` characters, for people."""
    folded = " ".join(printable(text[: 4 * width]).split())
    return folded if len(folded) <= width else folded[: width - 1] + "…"


def sayable(path: str) -> str:
    """Give a path as text that can be encoded: bytes that are not UTF-8 become `\\xNN`."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
