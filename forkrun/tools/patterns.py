"""Glob patterns as regular expressions over paths with "/"."""

from __future__ import annotations

import re

from forkrun.tools.failures import ToolError

_MOST_BRANCHES = 100
_PIECE = re.compile(r"\*+|\?|\[[!^]?\]?(?:\\.|[^\]\\])*\]|\\.|.", re.DOTALL)


def has_magic(part: str) -> bool:
    """Say whether a component of a pattern stands for anything but itself."""
    return any(character in part for character in "*?[{")


def path_matcher(pattern: str) -> re.Pattern[str]:
    """Search for whole paths: `*` and `?` within a name, `**` over directories, `[…]`, `{a,b}`.

    Brackets also match themselves, since they are common in names (`app/[id]/page.tsx`). Raises
    ToolError for a pattern that cannot be read.
    """
    try:
        regexes = [anchored_regex(b, brackets_are_names=True) for b in _branches(pattern)]
        return re.compile(rf"\A(?:{'|'.join(regexes)})")
    except re.error as error:
        raise ToolError(f"pattern {pattern!r} is not valid: {error}") from None


def name_matcher(pattern: str) -> re.Pattern[str]:
    """Search for paths by a pattern as of `rg --glob`: without a "/" it is about the name alone."""
    if "/" not in pattern.rstrip("/"):
        pattern = f"**/{pattern}"
    return path_matcher(pattern.removeprefix("/"))


def _branches(pattern: str) -> list[str]:
    """Write out the braces: "a.{b,c}" gives "a.b" and "a.c"."""
    found = re.search(r"\{([^{}]*,[^{}]*)\}", pattern)
    if not found:
        return [pattern]
    branches: list[str] = []
    for choice in found.group(1).split(","):
        branches += _branches(pattern[: found.start()] + choice + pattern[found.end() :])
        if len(branches) > _MOST_BRANCHES:
            raise ToolError(f"pattern has more than {_MOST_BRANCHES} alternatives")
    return branches


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
