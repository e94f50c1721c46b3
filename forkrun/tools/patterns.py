"""Glob patterns as regular expressions over paths with "/"."""

from __future__ import annotations

import re

from forkrun.tools.failures import ToolError
from forkrun.wildcards import anchored_regex

_MOST_BRANCHES = 100


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
