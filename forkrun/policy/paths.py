r"""Match workspace-relative paths against gitignore-style patterns.

    name        deny: a file or directory of this name, at any depth, and all beneath it
                allow: the file or directory at the top of the workspace, and all beneath it
    /name, a/b  from the top of the workspace
    *  ?        any characters, any one character, of one name
    [a-z] [!a]  one character of a set, never `/`
    **          as a whole name: any number of directories
    \x          the character x itself

An allow rule and a deny rule are read differently where a reader could be in doubt, and always to
the narrower right. An allow pattern is anchored, and one that ends in a name with `*`, `?` or `[`
takes names of that directory and nothing deeper (`out/*`; `out/**` for all beneath). A deny pattern
covers all that is beneath what it matches, and `secrets/*` and `secrets/**` the directory as well.

Paths are `str` with surrogate escapes, so every byte that a name can hold counts; case matters.

This is not left to a library: the one at hand costs a child 35 ms to import, more than the rest of
its start, and has neither the two readings nor errors for what cannot be meant.
"""

from __future__ import annotations

import re

import msgspec


class PatternError(ValueError):
    """A pattern that cannot be meant; the message says where."""


class PathPattern(msgspec.Struct, frozen=True):
    """A pattern, compiled. `literal` is the path that it names, where it holds no wildcard;
    `subtree` the directory for a pattern `directory/**` ("" for all)."""

    text: str
    names: tuple[str, ...]
    matcher: re.Pattern[str]
    literal: str | None
    subtree: str | None

    def matches(self, path: str) -> bool:
        """Say whether the pattern covers this path, relative to the workspace ("." for itself)."""
        return self.matcher.fullmatch("" if path == "." else path) is not None


def compile_path(text: str, *, deny: bool) -> PathPattern:
    """Compile one pattern for a rule that denies, or for one that allows; raise PatternError."""
    names = _names(text)
    if deny and len(names) == 1 and not text.startswith("/"):
        names = ["**", *names]
    last = names[-1]
    while len(names) > 1 and names[-1] == names[-2] == "**":
        names.pop()
    body = _expression(names)
    if deny or not _is_wild(last):
        body = rf"(?:{body})(?:/.*)?"
    if deny and len(names) > 1 and last in ("*", "**"):
        directory = _expression(names[:-1])
        body = rf"{body}|{directory}"
    if names == ["**"] or (deny and names == ["**", "*"]):
        body = r".*"
    literal_names = [name for name in names if not _is_wild(name)]
    head = "/".join(map(_unescape, names[:-1]))
    return PathPattern(
        text=text,
        names=tuple(names),
        matcher=re.compile(body, re.DOTALL),
        literal="/".join(map(_unescape, names)) if literal_names == names else None,
        subtree=head if last == "**" and literal_names == names[:-1] else None,
    )


def _names(text: str) -> list[str]:
    if text.startswith("!"):
        raise PatternError("a pattern cannot be negated with `!`: write a deny rule")
    if text.startswith("~"):
        raise PatternError("patterns are relative to the workspace: `~` means nothing here")
    if text.startswith("//"):
        raise PatternError("patterns are relative to the workspace: `//` means nothing here")
    if "\0" in text:
        raise PatternError("a path holds no NUL")
    names = text.removeprefix("./").removeprefix("/").removesuffix("/").split("/")
    for name in names:
        if name == "":
            raise PatternError("an empty name between two slashes" if len(names) > 1 else "empty")
        if name in (".", ".."):
            raise PatternError(f"rules act on resolved paths, which never hold the name `{name}`")
    return names


def _expression(names: list[str]) -> str:
    parts = []
    for position, name in enumerate(names):
        is_last = position == len(names) - 1
        if name == "**":
            parts.append(".+" if is_last else "(?:.+/)?")
        else:
            parts.append(_name_expression(name) + ("" if is_last else "/"))
    return "".join(parts)


def _name_expression(name: str) -> str:
    parts, position = [], 0
    while position < len(name):
        char = name[position]
        if char == "*":
            while name[position + 1 : position + 2] == "*":
                position += 1
            parts.append("[^/]*")
        elif char == "?":
            parts.append("[^/]")
        elif char == "[":
            expression, position = _set_expression(name, position)
            parts.append(expression)
        elif char == "\\":
            position += 1
            if position == len(name):
                raise PatternError("a backslash at the end of a name")
            parts.append(re.escape(name[position]))
        else:
            parts.append(re.escape(char))
        position += 1
    return "".join(parts)


def _set_expression(name: str, start: int) -> tuple[str, int]:
    """Translate the set that opens at `start`; give the expression and where it closes."""
    position = start + 1
    negated = name[position : position + 1] in ("!", "^")
    position += negated
    end = name.find("]", position + 1)
    if end < 0:
        raise PatternError(f"`[` without `]`: {name[start:]}")
    members = name[position:end]
    if "[:" in members or "\\" in members:
        raise PatternError(f"classes and escapes inside `[ ]` are not known: {name[start:]}")
    try:
        expression = (
            "[" + ("^/" if negated else "") + re.sub(r"([\[\]^&~|])", r"\\\1", members) + "]"
        )
        re.compile(expression)
    except re.error as error:
        raise PatternError(f"not a set of characters: [{members}]") from error
    return rf"(?!/){expression}", end


def _is_wild(name: str) -> bool:
    return any(char in "*?[" for char in re.sub(r"\\.", "", name, flags=re.DOTALL))


def _unescape(name: str) -> str:
    return re.sub(r"\\(.)", r"\1", name, flags=re.DOTALL)
