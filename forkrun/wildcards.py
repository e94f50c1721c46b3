"""Patterns for whole paths as regular expressions, as wildmatch of git and ripgrep reads them."""

from __future__ import annotations

import re

_PIECE = re.compile(r"\*+|\?|\[[!^]?\]?(?:\\.|[^\]\\])*\]|\\.|.", re.DOTALL)


def anchored_regex(pattern: str, *, brackets_are_names: bool = False) -> str:
    """Translate a pattern without braces into an expression for whole paths, as by wildmatch.

    With `brackets_are_names` a component with brackets also matches itself.
    """
    parts = [part for part in pattern.split("/") if part not in {"", "."}]
    regex = ""
    for position, part in enumerate(parts):
        is_last = position == len(parts) - 1
        if part == "**":
            regex += "[^/].*" if is_last else "(?:.+/)?"
            continue
        meant = _PIECE.sub(_translate_piece, part)
        if brackets_are_names and "[" in part:
            meant = f"(?:{meant}|{re.escape(part)})"
        regex += meant + ("" if is_last else "/")
    return rf"(?s:{regex})\Z"


def _translate_piece(piece: re.Match[str]) -> str:
    text = piece.group()
    if text.startswith("*"):
        return "[^/]*"
    if text == "?":
        return "[^/]"
    if text.startswith("[") and len(text) > 2:
        negated = "^/" if text[1] in "!^" else ""
        members = re.sub(r"\\(.)", r"\1", text[2 if negated else 1 : -1])
        return f"(?!/)[{negated}" + re.sub(r"([\\\[\]&~|^])", r"\\\1", members) + "]"
    return re.escape(text[1:] if len(text) == 2 else text)
