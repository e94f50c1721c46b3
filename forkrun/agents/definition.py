"""What the fields of an agent file mean: which of our tools, which rules, which bounds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

import msgspec

from forkrun.agents.matter import Field, Matter, read_matter
from forkrun.catalog import INPUTS
from forkrun.errors import InputError
from forkrun.policy.rules import NAMES, parse_rule
from forkrun.text import one_line

Scope = Literal["project", "user"]

MODELS = {
    "sonnet": "claude-sonnet-5-5",
    "opus": "claude-opus-5-5",
    "haiku": "claude-haiku-5-5",
}
"""The short names of models; "inherit" is whatever the caller uses."""

ALSO_CALLED = {"LS": "Glob", "NotebookRead": "Read"}
"""Tools that one of ours does the work of."""

IGNORED = frozenset(
    (
        *("skills", "mcpServers", "hooks", "memory", "background", "effort", "isolation"),
        *("color", "initialPrompt"),
    )
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Something in a file that is not, or not quite, as its writer will expect.

    `line` counts from 1. With `is_fatal` the agent cannot be used.
    """

    line: int
    message: str
    is_fatal: bool = False


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """One agent, as its file defines it.

    `tools`: names of ours, None for all. `allow` and `deny`: rules. `model`: a Claude model id,
    None for the caller's. `max_turns`: replies of the model. `is_read_only`: nothing of the
    workspace may be changed. `system`: the text below the head. `path`: the file; `scope`: whose.

    >>> text = '''---
    ... name: reviewer
    ... description: Reviews a change.
    ... tools: Read, Grep, Bash(git diff:*)
    ... ---
    ... Look for mistakes.'''
    >>> agent = forkrun.Agent.parse(text, path="reviewer.md")
    >>> agent.name, agent.tools, agent.system
    ('reviewer', ('bash', 'read_file', 'grep'), 'Look for mistakes.')
    """

    name: str
    description: str
    system: str
    tools: tuple[str, ...] | None = None
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    model: str | None = None
    max_turns: int | None = None
    is_read_only: bool = False
    path: str
    scope: Scope = "user"
    problems: tuple[Problem, ...] = ()

    @property
    def is_usable(self) -> bool:
        """Whether a run can be made of it."""
        return not any(problem.is_fatal for problem in self.problems)

    @classmethod
    def parse(cls, text: str, *, path: str, scope: Scope = "user") -> Agent:
        """Read a definition; whatever is wrong with it stands in `problems`."""
        matter = read_matter(text)
        stem = path.rpartition("/")[2].removesuffix(".md")
        if matter is None:
            problem = Problem(line=1, message="the file does not begin with ---", is_fatal=True)
            return cls(
                name=stem, description="", system="", path=path, scope=scope, problems=(problem,)
            )
        return _Reading(matter, stem=stem).agent(path=path, scope=scope)


class _Reading:
    """One file, while its fields are made sense of."""

    def __init__(self, matter: Matter, *, stem: str) -> None:
        self._matter = matter
        self._stem = stem
        self._problems = [Problem(line=line, message=text) for line, text in matter.faults]

    def agent(self, *, path: str, scope: Scope) -> Agent:
        tools, allow = self._tools()
        removed, deny = self._disallowed()
        if removed:
            tools = tuple(t for t in (INPUTS if tools is None else tools) if t not in removed)
        name, description = self._name(), self._description()
        is_read_only = self._permission_mode()
        model, max_turns = self._model(scope), self._max_turns()
        self._unknown_keys()
        if not self._matter.body:
            self._say(1, "there is no text below the head, so nothing to tell the agent")
        if tools == ():
            self._say(self._line("tools"), "no tool is left for this agent")
        return Agent(
            name=name,
            description=description,
            system=self._matter.body,
            tools=tools,
            allow=allow,
            deny=deny,
            model=model,
            max_turns=max_turns,
            is_read_only=is_read_only,
            path=path,
            scope=scope,
            problems=tuple(sorted(self._problems, key=lambda problem: problem.line)),
        )

    def _name(self) -> str:
        name = self._text("name")
        if name is None:
            self._say(1, f"name is missing; called {self._stem} after its file")
            return self._stem
        if not _NAME.fullmatch(name):
            message = f"no name of an agent: {one_line(name, width=60)}"
            self._say(self._line("name"), message, is_fatal=True)
        return name

    def _description(self) -> str:
        description = self._text("description")
        if not description:
            self._say(1, "description is missing, so no parent can know when to choose this agent")
        return description or ""

    def _tools(self) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
        """Give the tools, and the rules where an entry has a pattern."""
        field = self._matter.fields.get("tools")
        if field is None or field.value in ("", "*", ["*"]):
            return None, ()
        entries = list(self._entries(field, effect="allow"))
        names = frozenset().union(*(NAMES[_tool_of(entry)] for entry in entries))
        rules = tuple(entries) if any("(" in entry for entry in entries) else ()
        return tuple(tool for tool in INPUTS if tool in names), rules

    def _disallowed(self) -> tuple[frozenset[str], tuple[str, ...]]:
        """Give the tools that are taken away, and the rules for those that are so in part."""
        field = self._matter.fields.get("disallowedTools")
        entries = list(self._entries(field, effect="deny")) if field else []
        whole = (NAMES[entry] for entry in entries if "(" not in entry)
        return frozenset().union(*whole), tuple(entry for entry in entries if "(" in entry)

    def _entries(self, field: Field, *, effect: Literal["allow", "deny"]) -> Iterator[str]:
        """Give the entries of a list of tools that mean something here; report the others."""
        for position, entry in enumerate(_split(field.value), start=1):
            name = _tool_of(entry)
            name = ALSO_CALLED.get(name, name)
            entry = name + entry[len(_tool_of(entry)) :]  # noqa: PLW2901 - the same under our name
            if name.startswith("mcp__"):
                self._say(field.line, f"no MCP server is given to subagents here: {entry}")
            elif name not in NAMES or not NAMES[name] <= set(INPUTS):
                self._say(field.line, f"there is no such tool here: {one_line(entry, width=60)}")
            else:
                try:
                    parse_rule(entry, effect=effect, position=position)
                    yield entry
                except InputError as error:
                    self._say(field.line, str(error))

    def _model(self, scope: Scope) -> str | None:
        model = self._text("model")
        if model in (None, "", "inherit", "default"):
            return None
        assert model is not None
        if model in MODELS:
            return MODELS[model]
        if scope == "user" and (model == "offline" or model.startswith("script:")):
            return model
        if not re.fullmatch(r"claude-[\w.-]+", model):
            known = ", ".join(MODELS)
            message = (
                f"not a model ({known}, inherit or a Claude model id): {one_line(model, width=60)}"
            )
            self._say(self._line("model"), message)
            return None
        return model

    def _max_turns(self) -> int | None:
        text = self._text("maxTurns")
        if text is None:
            return None
        if not re.fullmatch(r"[1-9][0-9]{0,5}", text):
            message = f"maxTurns is no number of turns: {one_line(text, width=60)}"
            self._say(self._line("maxTurns"), message)
            return None
        return int(text)

    def _permission_mode(self) -> bool:
        mode = self._text("permissionMode")
        if mode in (None, "default", "acceptEdits", "dontAsk", "auto"):
            return False
        if mode == "plan":
            return True
        message = "is not known here"
        if mode == "bypassPermissions":
            message = "gives no rights here: what is allowed is the caller's to say"
        self._say(
            self._line("permissionMode"),
            f"permissionMode {one_line(mode or '', width=40)} {message}",
        )
        return False

    def _unknown_keys(self) -> None:
        known = {
            *("name", "description", "tools", "disallowedTools"),
            "model",
            "maxTurns",
            "permissionMode",
        }
        for key, field in self._matter.fields.items():
            if key in IGNORED:
                self._say(field.line, f"{key} has no effect here")
            elif key not in known:
                self._say(field.line, f"unknown key: {one_line(key, width=60)}")

    def _text(self, key: str) -> str | None:
        field = self._matter.fields.get(key)
        if field is None:
            return None
        if not isinstance(field.value, str):
            self._say(field.line, f"{key} is a list, where one text is expected")
            return ", ".join(field.value)
        return field.value.strip()

    def _line(self, key: str) -> int:
        field = self._matter.fields.get(key)
        return field.line if field else 1

    def _say(self, line: int, message: str, *, is_fatal: bool = False) -> None:
        self._problems.append(Problem(line=line, message=message, is_fatal=is_fatal))


def _tool_of(entry: str) -> str:
    return entry.partition("(")[0].strip()


def _split(value: str | list[str]) -> Iterator[str]:
    """Split a list of tools at the commas that stand outside of brackets."""
    if isinstance(value, list):
        for item in value:
            yield from _split(item)
        return
    depth, entry = 0, ""
    for char in value.strip().removeprefix("[").removesuffix("]") + ",":
        depth += (char == "(") - (char == ")")
        if char in ",\n" and depth <= 0:
            if entry.strip().strip("\"'- "):
                yield entry.strip().strip("\"'- ")
            entry = ""
        else:
            entry += char
    if entry.strip(" ,"):
        yield entry.strip(" ,")
