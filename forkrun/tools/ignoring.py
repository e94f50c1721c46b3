"""What ignore files say: gitignore(5), one entry of a directory after the other.

A walk asks about each entry on its way down, so a rule is matched against that entry alone, as git
does it; what lies below an ignored directory is never asked about.
"""

from __future__ import annotations

import re

import msgspec

from forkrun.tools.patterns import anchored_regex


class Rule(msgspec.Struct, frozen=True):
    """One line of an ignore file in the directory `base`, "" or "a/b/"."""

    base: str
    regex: re.Pattern[str]
    ignores: bool
    about_directories: bool


def read_rules(text: str, *, base: str) -> tuple[Rule, ...]:
    """Read an ignore file; lines that mean nothing are passed over, as git does."""
    rules = (
        _rule(line.removesuffix("\r"), base) for line in text.removeprefix("\ufeff").split("\n")
    )
    return tuple(rule for rule in rules if rule is not None)


def is_ignored(path: str, rules: tuple[Rule, ...]) -> bool:
    """Say whether the last rule that matches ignores the path; a directory ends in "/"."""
    is_directory = path.endswith("/")
    entry = path.removesuffix("/")
    for rule in reversed(rules):
        if (is_directory or not rule.about_directories) and rule.regex.match(entry, len(rule.base)):
            return rule.ignores
    return False


def _rule(line: str, base: str) -> Rule | None:
    if line.startswith("#"):
        return None
    while line.endswith(" ") and not line.endswith("\\ "):
        line = line[:-1]
    pattern = line.removeprefix("!").removesuffix("/")
    if not pattern or "//" in pattern:
        return None
    if "/" not in pattern:
        pattern = f"**/{pattern}"
    try:
        regex = re.compile(anchored_regex(pattern.removeprefix("/")))
    except re.error:
        return None
    return Rule(base, regex, not line.startswith("!"), line.endswith("/"))
