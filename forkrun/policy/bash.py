"""Judge a bash command by rules: what denies it, and what in it no rule allows.

Denials look at every simple command wherever it stands, at what hides behind programs that run
others, and at the text itself. Permissions look at plain commands only: lists and pipelines of
simple commands, each of which some rule allows as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import msgspec

from forkrun.policy import git
from forkrun.policy.glob import HELD, Glob
from forkrun.policy.plain import agrees
from forkrun.policy.programs import (
    EVALUATORS,
    FINDERS,
    OTHER_RUNNERS,
    PLAIN_RUNNERS,
    REDEFINERS,
    RESERVED,
    RUNNERS,
    SHELLS,
    SOURCES,
    base_name,
    behind,
    holds_command,
    is_dangerous,
)
from forkrun.policy.rules import Rule, squeeze
from forkrun.policy.shell import Command, Redirect, Script, Word, read_script

_MAX_DEPTH = 8
_MAX_CHARS = 400_000  # of all the commands that one text is found to hold
_SUBSTITUTION = re.compile(r"\$\(|`")
_PARTS = re.compile(r"[ \t\n;&|()<>=]")


class Denial(msgspec.Struct, frozen=True):
    """A rule that forbids a command, or may for all that can be told, and the part it is about."""

    rule: Rule
    part: str
    is_certain: bool


def denial(text: str, *, rules: Sequence[Rule], script: Script) -> Denial | None:
    """Find what of these denying rules with a pattern forbids the command, or None."""
    for rule in rules:
        if _matches(rule.globs, squeeze(text)):
            return Denial(rule=rule, part=text, is_certain=True)
    if not rules:
        return None
    left = _MAX_CHARS
    for found in _everything(script, depth=0):
        if isinstance(found, str):
            return Denial(rule=rules[0], part=found, is_certain=False)
        left -= len(found.raw) + 20
        if left < 0:
            return Denial(rule=rules[0], part="so many commands in one", is_certain=False)
        for rule in rules:
            if any(_may_match(rule.globs, form) for form in _forms(found)):
                return Denial(rule=rule, part=found.shown, is_certain=True)
    return None


def not_allowed(
    text: str, *, rules: Sequence[Rule], script: Script, may_write: Callable[[str], bool]
) -> str | None:
    """Say what of the command these allowing rules do not admit, or None where they admit all.

    `may_write` says whether rules allow to write a path of the workspace, for redirections.
    """
    if script.doubts:
        return f"this command cannot be judged with certainty ({script.doubts[0]})"
    part = script.beyond[0] if script.beyond else None
    if part is None and not agrees(text, script):
        return "this command cannot be judged with certainty (two readings of it differ)"
    part = part or _redirection_not_allowed(script, may_write=may_write)
    for command in script.commands:
        part = part or _part_not_allowed(command, rules)
    if part is None and not any(command.words for command in script.commands):
        part = "a command that runs no program"
    return f"{part} is not allowed" if part else None


def _redirection_not_allowed(script: Script, *, may_write: Callable[[str], bool]) -> str | None:
    moves = any(c.words and c.words[0].text in ("cd", "pushd", "popd") for c in script.commands)
    for redirect in script.redirects:
        if not _is_harmless(redirect, may_write=may_write, moves=moves):
            return f"the redirection `{redirect.raw}`"
    return None


def _part_not_allowed(command: Command, rules: Sequence[Rule]) -> str | None:
    for assignment in command.assignments:
        if is_dangerous(assignment.name):
            return f"setting the variable {assignment.name}"
    if not command.words:
        return None
    unsafe = git.unsafe_option(command)
    if unsafe is not None and not any(unsafe in rule.text for rule in rules):
        return f"git's option `{unsafe}`"
    if any(glob.matches(form) for rule in rules for glob in rule.globs for form in _exact(command)):
        return None
    inner = behind(command) if command.words[0].value in PLAIN_RUNNERS else None
    if inner is not None and base_name(inner.words[0]) != "git":
        return _part_not_allowed(inner, rules)
    return f"`{command.shown}`"


def _exact(command: Command) -> tuple[str, str]:
    return command.raw, command.value


def _is_harmless(redirect: Redirect, *, may_write: Callable[[str], bool], moves: bool) -> bool:
    if redirect.target is None:
        return True
    target = redirect.target.text
    names = target.split("/")
    duplicates = redirect.operator in (">&", "<&") and re.fullmatch(r"\d+-?|-", target) is not None
    if duplicates or target in ("/dev/null", "/dev/stdout", "/dev/stderr"):
        return True
    if not redirect.target.is_known or target.startswith("/") or ".." in names:
        return False
    inside = "/".join(name for name in names if name not in ("", "."))
    return redirect.operator == "<" or (not moves and inside != "" and may_write(inside))


def _everything(script: Script, *, depth: int) -> Iterator[Command | str]:
    """Give every command in a script and behind its commands, and every doubt as a string."""
    if depth > _MAX_DEPTH:
        yield "commands within commands"
        return
    yield from script.doubts
    for command in script.commands:
        yield from _with_hidden(command, depth=depth)


def _with_hidden(command: Command, *, depth: int) -> Iterator[Command | str]:
    for assignment in command.assignments:
        if assignment.value is not None and holds_command(assignment.name):
            yield from _as_script(assignment.value, depth=depth)
        elif _SUBSTITUTION.search(assignment.value.text if assignment.value else ""):
            yield f"`{assignment.raw}`, which may be evaluated"
    if not command.words:
        return
    if not command.words[0].is_known:
        yield f"the command name `{command.words[0].raw}`, which is not known before it runs"
        return
    if command.words[0].raw in RESERVED:
        yield f"the reserved word `{command.words[0].raw}`"
        return
    yield command
    yield from _behind_name(command, depth=depth)


def _behind_name(command: Command, *, depth: int) -> Iterator[Command | str]:
    """Give what a command runs by virtue of its name: wrappers, shells, finders, evaluators."""
    name = base_name(command.words[0])
    if name in EVALUATORS and any(_SUBSTITUTION.search(word.text) for word in command.words):
        yield f"`{command.shown}`, which evaluates its arguments"
    elif name in REDEFINERS:
        yield f"`{name}`, which changes what names of commands mean"
    elif name in SHELLS or name in SOURCES:
        yield from _of_shell(command, depth=depth)
    elif name in FINDERS:
        yield from _of_finder(command, FINDERS[name], depth=depth)
    elif name in RUNNERS:
        inner = behind(command)
        if inner is not None:
            yield from _with_hidden(inner, depth=depth)
        else:
            yield from _of_every_word(command.words[1:], depth=depth)
    elif name in OTHER_RUNNERS:
        yield from _of_every_word(command.words[1:], depth=depth)
        yield from _as_script(_joined(command.words[1:]), depth=depth)


def _of_shell(command: Command, *, depth: int) -> Iterator[Command | str]:
    """Give what a shell runs: the text after -c, else a script, which is a program like others."""
    words = command.words[1:]
    for position, word in enumerate(words):
        if not word.is_known:
            yield f"`{word.raw}`, which a shell runs"
            return
        if re.fullmatch(r"-[a-zA-Z]*c[a-zA-Z]*", word.text):
            if position + 1 == len(words):
                break
            yield from _as_script(words[position + 1], depth=depth)
            return
        if not word.text.startswith(("-", "+")):
            if word.text.startswith(("/dev/", "/proc/")):
                break
            return
    yield f"`{command.shown}`, which reads its commands from elsewhere"


def _of_finder(command: Command, options: frozenset[str], *, depth: int) -> Iterator[Command | str]:
    for position, word in enumerate(command.words):
        if word.text in options:
            yield from _with_hidden(Command((), command.words[position + 1 :]), depth=depth)


def _of_every_word(words: Sequence[Word], *, depth: int) -> Iterator[Command | str]:
    """Give the command that begins at each word, and the script that a word with blanks holds."""
    for position, word in enumerate(words):
        if word.is_known:
            yield from _with_hidden(Command((), tuple(words[position:])), depth=depth + 1)
            if _PARTS.search(word.text):
                yield from _as_script(word, depth=depth)
        elif not re.match(r"\w+=", word.value):
            yield f"`{word.raw}`, which may be a command"


def _as_script(word: Word, *, depth: int) -> Iterator[Command | str]:
    if not word.is_known:
        yield f"`{word.raw}`, which is run as a command"
        return
    yield from _everything(read_script(word.value.replace(HELD, " ")), depth=depth + 1)


def _joined(words: Sequence[Word]) -> Word:
    return Word(
        raw=" ".join(word.raw for word in words), value=" ".join(word.text for word in words)
    )


def _forms(command: Command) -> Iterator[str]:
    """Give the texts of a command that a denial may be about."""
    value = command.value.replace(HELD, " ")
    yield value
    yield squeeze(command.raw)
    name = command.words[0].text
    if "/" in name:
        yield base_name(command.words[0]) + value[len(name) :]


def _matches(globs: Sequence[Glob], text: str) -> bool:
    return any(glob.matches(text) for glob in globs)


def _may_match(globs: Sequence[Glob], text: str) -> bool:
    return any(glob.may_match(text) for glob in globs)
