"""What ignore files say: gitignore(5), one entry of a directory after the other.

Who asks begins at the top, so a rule is matched against one entry alone, as git does it; what lies
below an ignored directory is never asked about. Paths are relative to where the rules' bases are,
with bytes that are not UTF-8 as surrogates.

A child can write such files, so they are bounded: no match goes back over what it has passed, and
what is longer, or beyond, the bounds below is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice

import msgspec

from forkrun.wildcards import anchored_regex

MAX_RULES = 5_000
"""Of one ignore file."""

MAX_RULE_LENGTH = 1_024


class Rule(msgspec.Struct, frozen=True):
    """One line of an ignore file in the directory `base`, "" or "a/b/"."""

    base: str
    regex: re.Pattern[str]
    ignores: bool
    about_directories: bool


def read_rules(text: str, *, base: str) -> tuple[Rule, ...]:
    """Read an ignore file; lines that mean nothing are passed over, as git does."""
    lines = text.removeprefix("\ufeff").split("\n")
    rules = (_rule(line.removesuffix("\r"), base) for line in lines)
    return tuple(islice((rule for rule in rules if rule is not None), MAX_RULES))


def is_ignored(path: str, rules: Sequence[Rule]) -> bool:
    """Say whether the last rule that matches ignores the path; a directory ends in "/"."""
    return bool(last_word(path, rules))


def last_word(path: str, rules: Sequence[Rule]) -> bool | None:
    """Say what the last rule that matches says of a path below its base; None where none does."""
    is_directory = path.endswith("/")
    entry = path.removesuffix("/")
    for rule in reversed(rules):
        if (is_directory or not rule.about_directories) and rule.regex.match(entry, len(rule.base)):
            return rule.ignores
    return None


def _rule(line: str, base: str) -> Rule | None:
    if line.startswith("#"):
        return None
    stripped = line.rstrip(" ")
    if stripped != line:
        line = stripped + " " if stripped.endswith("\\") else stripped
    pattern = line.removeprefix("!").removesuffix("/")
    if not pattern or "//" in pattern or len(pattern) > MAX_RULE_LENGTH:
        return None
    if "/" not in pattern:
        pattern = f"**/{pattern}"
    try:
        regex = re.compile(anchored_regex(pattern.removeprefix("/")))
    except re.error:
        return None
    return Rule(base, regex, not line.startswith("!"), line.endswith("/"))
