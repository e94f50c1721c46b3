"""The names and inputs under which a parent's tools are ours.

A fork shows the model the parent's list of tools, unchanged. Calls of Claude Code's tools and of
the Anthropic-defined bash and text-editor tools are translated into calls of ours; whatever else
the parent had is answered with a denial that says what is available. A fresh run has our names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from forkrun.catalog import INPUTS
from forkrun.protocol import ToolCall

Fields: TypeAlias = dict[str, Any]
STARTERS = frozenset({"task", "Task", "Agent", "spawn_agent", "dispatch_agent"})


class NotOurs(Exception):
    """A call that nothing here can run; the message says so to the model."""


def _bash(fields: Fields) -> tuple[str, Fields]:
    if fields.get("restart"):
        raise NotOurs("there is no session to restart: each call is a fresh shell")
    if fields.get("run_in_background"):
        raise NotOurs("commands cannot run in the background here: run it in the foreground")
    return "bash", {"command": fields.get("command")}


def _claude_code_bash(fields: Fields) -> tuple[str, Fields]:
    name, ours = _bash(fields)
    timeout_ms = fields.get("timeout")
    if isinstance(timeout_ms, int | float):
        ours["timeout"] = timeout_ms / 1000
    return name, ours


def _same(name: str) -> Callable[[Fields], tuple[str, Fields]]:
    return lambda fields: (name, fields)


def _grep(fields: Fields) -> tuple[str, Fields]:
    pattern = fields.get("pattern")
    if fields.get("-i") and isinstance(pattern, str):
        pattern = f"(?i){pattern}"
    kept: Fields = {name: fields[name] for name in ("path", "glob") if name in fields}
    return "grep", {"pattern": pattern, **kept}


def _text_editor(fields: Fields) -> tuple[str, Fields]:
    path = fields.get("path")
    match fields.get("command"):
        case "view":
            return "read_file", {"file_path": path, **_lines(fields.get("view_range"))}
        case "create":
            return "write_file", {"file_path": path, "content": fields.get("file_text")}
        case "str_replace":
            old, new = fields.get("old_str"), fields.get("new_str", "")
            return "edit_file", {"file_path": path, "old_string": old, "new_string": new}
        case command:
            raise NotOurs(
                f"the command {command!r} is not available: use view, create, str_replace"
            )


def _lines(view_range: Any) -> Fields:
    match view_range:
        case [int(first), -1]:
            return {"offset": first}
        case [int(first), int(last)]:
            return {"offset": first, "limit": last - first + 1}
    return {}


CLAUDE_CODE = {
    "Bash": _claude_code_bash,
    "Read": _same("read_file"),
    "Write": _same("write_file"),
    "Edit": _same("edit_file"),
    "Glob": _same("glob"),
    "Grep": _grep,
}
ANTHROPIC_DEFINED = {
    "bash_": _bash,
    "text_editor_": _text_editor,
}
"""By the beginning of the tool's `type`, which ends with a date."""

Translation = Callable[[Fields], tuple[str, Fields]]


class Names:
    """How the model may call our tools in one run."""

    def __init__(self, translations: Mapping[str, Translation], *, others: Sequence[str]) -> None:
        self._translations = dict(translations)
        self._others = frozenset(others)

    @classmethod
    def ours(cls, tools: Sequence[str]) -> Names:
        """Our own names and inputs, unchanged: the child says what does not exist."""
        return cls({}, others=())

    @classmethod
    def of_parent(cls, tools: Sequence[Mapping[str, Any]]) -> Names:
        """The names of a parent's tool list (its `tools` parameter)."""
        found: dict[str, Translation] = {}
        others = []
        for tool in tools:
            name = str(tool.get("name"))
            if translation := _translation(name, kind=str(tool.get("type") or "")):
                found[name] = translation
            else:
                others.append(name)
        return cls(found, others=others)

    def ours_for(self, call: ToolCall) -> ToolCall:
        """Give the call of ours that this call means. Raises NotOurs with words for the model."""
        if call.name in STARTERS and call.name in self._others:
            raise NotOurs("a subagent cannot start subagents: do the task yourself")
        if call.name in self._others:
            available = ", ".join(self._translations) or "none"
            raise NotOurs(f"{call.name} is not available to this fork; available: {available}")
        translation = self._translations.get(call.name)
        if translation is None:
            return call
        name, fields = translation(msgspec.json.decode(call.input, type=Fields))
        kept = {key: value for key, value in fields.items() if value is not None}
        return ToolCall(id=call.id, name=name, input=msgspec.json.encode(kept))


def _translation(name: str, *, kind: str) -> Translation | None:
    for beginning, translation in ANTHROPIC_DEFINED.items():
        if kind.startswith(beginning):
            return translation
    if kind in ("", "custom"):
        return CLAUDE_CODE.get(name) or (_same(name) if name in INPUTS else None)
    return None
