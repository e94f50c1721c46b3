"""Patterns for whole paths as regular expressions, as wildmatch of git and ripgrep reads them."""

from __future__ import annotations

import re

_PIECE = re.compile(r"\*+|\?|\[[!^]?\]?(?:\\.|[^\]\\])*\]|\\.|.", re.DOTALL)


def anchored_regex(pattern: str, *, brackets_are_names: bool = False) -> str:
    """Translate a pattern without braces into an expression for whole paths, as by wildmatch.

    With `brackets_are_names` a component with brackets also matches itself. Whoever wrote the
    pattern, matching never backtracks from one star into an earlier one: what follows a star has a
    fixed length, so its first place is as good as any, and is taken for good (an atomic group).
    """
    parts = [part for part in pattern.split("/") if part not in {"", "."}]
    regex, below = "", ""  # `below`: the components since the last `**`
    is_anywhere = False
    for position, part in enumerate(parts):
        is_last = position == len(parts) - 1
        if part != "**":
            below += _translate_name(part, brackets_are_names=brackets_are_names, is_last=is_last)
        elif is_last:
            regex, below = regex + _first_place(below, is_anywhere=is_anywhere), "[^/].*"
            is_anywhere = False
        elif below or not is_anywhere:
            regex, below = regex + _first_place(below, is_anywhere=is_anywhere), ""
            is_anywhere = True
    if is_anywhere and parts[-2:-1] == ["**"]:
        regex += "(?:.*/)?+"  # one component is left, and that is the last
    elif is_anywhere:
        regex += "(?:[^/]++/)*"
    return rf"(?s:{regex}{below})\Z"


def _first_place(below: str, *, is_anywhere: bool) -> str:
    """Match components that another `**` follows, at the first place where they stand."""
    if not below:
        return ""
    return f"(?>(?:[^/]++/)*?{below})" if is_anywhere else below


def _translate_name(part: str, *, brackets_are_names: bool, is_last: bool) -> str:
    runs = [""]  # what stands between the stars
    for piece in _PIECE.finditer(part):
        if piece.group().startswith("*"):
            runs.append("")
        else:
            runs[-1] += _translate_piece(piece.group())
    first, *others = runs
    meant = first + "".join(f"(?>[^/]*?{run})" for run in others[:-1])
    if others:
        meant += f"[^/]*{others[-1]}"
    if brackets_are_names and "[" in part:
        meant = f"(?:{meant}|{re.escape(part)})"
    return f"(?>{meant}" + ("\\Z)" if is_last else "/)")


def _translate_piece(text: str) -> str:
    if text == "?":
        return "[^/]"
    if text.startswith("[") and len(text) > 2:
        negated = "^/" if text[1] in "!^" else ""
        members = re.sub(r"\\(.)", r"\1", text[2 if negated else 1 : -1])
        return f"(?!/)[{negated}" + re.sub(r"([\\\[\]&~|^])", r"\\\1", members) + "]"
    return re.escape(text[1:] if len(text) == 2 else text)
