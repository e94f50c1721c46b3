"""Read one rule: `Tool` or `Tool(pattern)`.

Names are ours, those that Claude Code uses for the same tools, `read` and `write` for all reading
and all writing tools, `*` for every tool, `task` for a subagent, and `mcp__server` or
`mcp__server__tool`.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from forkrun.catalog import INPUTS, READERS, WRITERS
from forkrun.errors import InputError
from forkrun.policy.glob import Glob, compile_glob
from forkrun.policy.paths import PathPattern, PatternError, compile_path

Effect = Literal["allow", "ask", "deny"]

PATH_TOOLS = READERS | WRITERS
NAMES: dict[str, frozenset[str]] = {
    **{name: frozenset({name}) for name in INPUTS},
    "task": frozenset({"task"}),
    "read": READERS,
    "write": WRITERS,
    "Bash": frozenset({"bash"}),
    "Read": frozenset({"read_file"}),
    "Write": frozenset({"write_file"}),
    "Edit": frozenset({"edit_file"}),
    "MultiEdit": frozenset({"edit_file"}),
    "Glob": frozenset({"glob"}),
    "Grep": frozenset({"grep"}),
    "Task": frozenset({"task"}),
    "Agent": frozenset({"task"}),
    "spawn": frozenset({"task"}),
}
_RULE = r"(?s:\s*([^\s()]+)\s*(?:\((.*)\))?\s*)"
_MCP = r"mcp__[A-Za-z0-9_-]+?(?:__(?:[A-Za-z0-9_-]+|\*))?"


class Rule(msgspec.Struct, frozen=True):
    """One rule. `tools` is None for every tool; without a pattern it is about every use of them.

    `origin` says where it stands, for reasons and errors ("", "the parent's ").
    """

    text: str
    effect: Effect
    tools: frozenset[str] | None
    pattern: str | None = None
    path: PathPattern | None = None
    globs: tuple[Glob, ...] = ()
    mcp_server: str | None = None
    origin: str = ""

    @property
    def has_pattern(self) -> bool:
        """Whether the rule looks at what a tool is used on, and not at its name alone."""
        return self.path is not None or bool(self.globs)

    def concerns(self, tool: str) -> bool:
        """Say whether the rule is about this tool at all."""
        if self.mcp_server is not None:
            return tool == self.mcp_server or tool.startswith(self.mcp_server + "__")
        return self.tools is None or tool in self.tools

    def __str__(self) -> str:
        return f"{self.origin}{self.effect} {self.text}"


class Layer(msgspec.Struct, frozen=True):
    """One layer of rules, parsed. `ask` rules deny too, since nobody can be asked."""

    allow: tuple[Rule, ...]
    ask: tuple[Rule, ...]
    deny: tuple[Rule, ...]


def parse_rule(text: str, *, effect: Effect, position: int, origin: str = "") -> Rule:
    """Read one rule; `position` counts from 1 in its list. Raises InputError, which names both."""

    def wrong(why: str, hint: str | None = None) -> InputError:
        return InputError(
            f"{origin}{effect} rule {position} is not valid: {text!r}: {why}", hint=hint
        )

    found = re.fullmatch(_RULE, text)
    if found is None:
        raise wrong("expected `Tool` or `Tool(pattern)`")
    name, pattern = found[1], found[2]
    if name == "*":
        if pattern is not None:
            raise wrong("`*` stands for every tool and takes no pattern")
        return Rule(text=text.strip(), effect=effect, tools=None, origin=origin)
    if name.startswith("mcp__"):
        if not re.fullmatch(_MCP, name) or pattern is not None:
            raise wrong("expected `mcp__server` or `mcp__server__tool`, without a pattern")
        return _mcp_rule(text.strip(), name=name, effect=effect, origin=origin)
    if name not in NAMES:
        raise wrong(f"there is no tool {name!r}", hint=_suggestion(name))
    tools = NAMES[name]
    if pattern is None:
        return Rule(text=text.strip(), effect=effect, tools=tools, origin=origin)
    try:
        return _pattern_rule(
            text.strip(), pattern=pattern, tools=tools, effect=effect, origin=origin
        )
    except PatternError as error:
        raise wrong(str(error)) from error


def _pattern_rule(
    text: str, *, pattern: str, tools: frozenset[str], effect: Effect, origin: str
) -> Rule:
    if not pattern.strip():
        raise PatternError("the pattern is empty; leave the brackets away to mean every use")
    if tools <= PATH_TOOLS:
        path = compile_path(pattern, deny=effect != "allow")
        return Rule(
            text=text, effect=effect, tools=tools, pattern=pattern, path=path, origin=origin
        )
    return Rule(
        text=text,
        effect=effect,
        tools=tools,
        pattern=squeeze(pattern),
        globs=_text_globs(pattern),
        origin=origin,
    )


def _text_globs(pattern: str) -> tuple[Glob, ...]:
    """Compile a command pattern; `x:*` and `x *` mean `x` alone or followed by anything."""
    if any(char in pattern for char in "\r\0\ud800\ud801"):
        raise PatternError("a pattern holds no carriage return, NUL or half of a surrogate pair")
    squeezed = squeeze(pattern)
    if squeezed in ("*", ":*"):
        return ()
    for ending in (":*", " *"):
        if squeezed.endswith(ending) and not squeezed.endswith("\\*"):
            head = squeezed.removesuffix(ending).rstrip(" ")
            return compile_glob(head), compile_glob(head + " *")
    return (compile_glob(squeezed),)


def squeeze(text: str) -> str:
    """Make every run of blanks and newlines one blank, and leave none at the ends."""
    return " ".join(re.split(r"[ \t\n]+", text)).strip(" ")


def _mcp_rule(text: str, *, name: str, effect: Effect, origin: str) -> Rule:
    server = name.removesuffix("__*")
    if name.endswith("__*") or "__" not in name.removeprefix("mcp__"):
        return Rule(text=text, effect=effect, tools=frozenset(), mcp_server=server, origin=origin)
    return Rule(text=text, effect=effect, tools=frozenset({name}), origin=origin)


def _suggestion(name: str) -> str:
    import difflib

    by_folded = {known.casefold(): known for known in reversed(NAMES)}  # ours win
    close = difflib.get_close_matches(name.casefold(), by_folded, n=2, cutoff=0.6)
    if close:
        return "did you mean " + " or ".join(f"`{by_folded[found]}`" for found in close) + "?"
    return "the names are " + ", ".join(sorted(NAMES)) + ", mcp__SERVER__TOOL and *"
