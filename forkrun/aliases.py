"""The names and inputs under which a parent's tools are ours.

A fork shows the model the parent's list of tools, unchanged. Calls of Claude Code's tools and of
the Anthropic-defined bash and text-editor tools are translated into calls of ours; whatever else
the parent had is answered with a denial that says what is available. A fresh run has our names.

A translation never looks at files and judges nothing: rules see the call of ours that it gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from forkrun.catalog import INPUTS
from forkrun.protocol import ToolCall

Fields: TypeAlias = dict[str, Any]
Translation = Callable[[Fields], tuple[str, Fields]]

VIEWED_LEVELS = 2
"""How deep the text editor's `view` lists a directory."""


class NotOurs(Exception):
    """A call that nothing here can run; the message says so to the model."""


class Names:
    """How the model may call our tools in one run."""

    def __init__(
        self,
        translations: Mapping[str, Translation] | None,
        *,
        listed: Sequence[str] = (),
        open_calls: Sequence[str] = (),
        may_start: bool = False,
    ) -> None:
        self._translations = None if translations is None else dict(translations)
        self._listed = frozenset(listed)
        self._open_calls = frozenset(open_calls)
        self._may_start = may_start

    @classmethod
    def ours(cls) -> Names:
        """Our own names and inputs, unchanged: the child says what does not exist."""
        return cls(None)

    @classmethod
    def of_parent(
        cls,
        tools: Sequence[Mapping[str, Any]],
        *,
        open_calls: Sequence[str] = (),
        may_start: bool = False,
    ) -> Names:
        """The names of a parent's tool list (its `tools` parameter).

        `open_calls` names the tools whose calls were open when the parent forked; what of them is
        not ours is taken for the tool that started the fork. `may_start`: such a tool is `task`.
        """
        found = {}
        listed = [str(tool.get("name")) for tool in tools]
        for name, tool in zip(listed, tools, strict=True):
            if translation := _translation(name, kind=str(tool.get("type") or "")):
                found[name] = translation
        return cls(found, listed=listed, open_calls=open_calls, may_start=may_start)

    @property
    def are_a_parents(self) -> bool:
        """Whether the list of tools is a parent's, which must not change."""
        return self._translations is not None

    def offer(self, names: Iterable[str]) -> tuple[str, ...]:
        """Let tools be called that are ours for this run alone, and give their names.

        In a fork those alone that the parent's list has.
        """
        if self._translations is None:
            return tuple(names)
        shown = tuple(name for name in names if name in self._listed)
        self._translations |= {name: _same(name) for name in shown}
        return shown

    def ours_for(self, call: ToolCall) -> ToolCall:
        """Give the call of ours that this call means. Raises NotOurs with words for the model."""
        if self._translations is None:
            return call
        if self._may_start and call.name not in self._translations and self._starts(call.name):
            return ToolCall(id=call.id, name="task", input=call.input)
        translation = self._translations.get(call.name)
        if translation is None:
            raise NotOurs(self._refusal(call.name))
        name, fields = translation(msgspec.json.decode(call.input, type=Fields))
        kept = {key: value for key, value in fields.items() if value is not None}
        return ToolCall(id=call.id, name=name, input=msgspec.json.encode(kept))

    def _starts(self, name: str) -> bool:
        return starts_agents(name) or name in self._open_calls

    def _refusal(self, name: str) -> str:
        if self._starts(name):
            return f"{name}: a subagent cannot start subagents: do the task yourself"
        available = ", ".join(self._translations or ()) or "none"
        return f"{name} is not available to this fork; available: {available}"


def starts_agents(name: str) -> bool:
    """Say whether a tool is by its name one that starts subagents."""
    return name.rpartition("__")[2].lower().replace("_", "") in _STARTERS


_STARTERS = frozenset(
    {
        *("agent", "delegate", "delegatetask", "dispatchagent", "fork", "forkrun", "newtask"),
        *("runagent", "runsubagent", "spawn", "spawnagent", "spawnsubagent", "subagent", "task"),
    }
)


def _translation(name: str, *, kind: str) -> Translation | None:
    for beginning, translation in ANTHROPIC_DEFINED.items():
        if kind.startswith(beginning):
            return translation
    if kind in ("", "custom"):
        return CLAUDE_CODE.get(name) or (_same(name) if name in INPUTS else None)
    return None


def _same(name: str) -> Translation:
    return lambda fields: (name, fields)


# -- commands ----------------------------------------------------------------------------------


def _bash(fields: Fields) -> tuple[str, Fields]:
    if fields.get("restart"):
        raise NotOurs("there is no session to restart: each call is a fresh shell")
    return "bash", {"command": fields.get("command")}


def _claude_code_bash(fields: Fields) -> tuple[str, Fields]:
    if fields.get("run_in_background"):
        raise NotOurs("commands cannot run in the background here: run it in the foreground")
    name, ours = _bash(fields)
    timeout = fields.get("timeout")
    if isinstance(timeout, int | float) and not isinstance(timeout, bool):
        timeout /= 1000  # theirs is in milliseconds
    return name, ours | {"timeout": timeout}


# -- files -------------------------------------------------------------------------------------


def _multi_edit(fields: Fields) -> tuple[str, Fields]:
    return "edit_file", {"file_path": fields.get("file_path"), "edits": fields.get("edits", [])}


def _list(fields: Fields) -> tuple[str, Fields]:
    return "read_file", {"file_path": fields.get("path", "."), "levels": 1}


def _text_editor(fields: Fields) -> tuple[str, Fields]:
    path, command = fields.get("path"), fields.get("command")
    match command:
        case "view":
            lines = _lines(fields.get("view_range"))
            return "read_file", {"file_path": path, "levels": VIEWED_LEVELS, **lines}
        case "create":
            return "write_file", {"file_path": path, "content": fields.get("file_text")}
        case "str_replace":
            new = fields.get("new_str") or ""  # left out, it means: delete
            return "edit_file", {
                "file_path": path,
                "old_string": fields.get("old_str"),
                "new_string": new,
            }
        case "insert":
            return "edit_file", {"file_path": path, "edits": [_insertion(fields)]}
        case "undo_edit":
            raise NotOurs("undo_edit is not available: edit the file back with str_replace")
    raise NotOurs(
        f"the command {command!r} is not available: use view, create, str_replace or insert"
    )


def _insertion(fields: Fields) -> Fields:
    line = fields.get("insert_line")
    text = fields.get("insert_text", fields.get("new_str"))  # its name before 2025-07
    if not isinstance(line, int) or isinstance(line, bool) or line < 0:
        raise NotOurs("insert needs insert_line, the number of the line to insert after (0: first)")
    if not isinstance(text, str):
        raise NotOurs("insert needs insert_text, the text to insert")
    return {"after_line": line, "new_string": text}


def _lines(view_range: Any) -> Fields:
    match view_range:
        case None:
            return {}
        case [int(first), int(last)] if first >= 1 and (last == -1 or last >= first):
            return {"offset": first} | ({} if last == -1 else {"limit": last - first + 1})
    raise NotOurs(
        f"view_range must be [first, last], counted from 1, last -1 for the end: {view_range!r}"
    )


# -- searches ----------------------------------------------------------------------------------

_OUTPUTS = {"content": "lines", "files_with_matches": "files", "count": "counts"}
_TYPES = {
    "c": "*.{c,h}",
    "cpp": "*.{cpp,cc,cxx,hpp,hh,h}",
    "cs": "*.cs",
    "css": "*.css",
    "go": "*.go",
    "html": "*.{html,htm}",
    "java": "*.java",
    "js": "*.{js,jsx,mjs,cjs}",
    "json": "*.json",
    "kotlin": "*.{kt,kts}",
    "lua": "*.lua",
    "md": "*.{md,markdown}",
    "php": "*.php",
    "py": "*.{py,pyi}",
    "rb": "*.rb",
    "ruby": "*.rb",
    "rust": "*.rs",
    "sh": "*.{sh,bash,zsh}",
    "sql": "*.sql",
    "swift": "*.swift",
    "toml": "*.toml",
    "ts": "*.{ts,tsx,mts,cts}",
    "txt": "*.txt",
    "xml": "*.xml",
    "yaml": "*.{yaml,yml}",
}
"""Claude Code's `type` is ripgrep's; these are its common ones, as globs."""


def _grep(fields: Fields) -> tuple[str, Fields]:
    mode = fields.get("output_mode") or "files_with_matches"
    if mode not in _OUTPUTS:
        raise NotOurs(f"output_mode must be one of {', '.join(_OUTPUTS)}: {mode!r}")
    if fields.get("multiline"):
        raise NotOurs("multiline is not available: lines are searched one by one")
    around = fields.get("context", fields.get("-C")) or 0
    return "grep", {
        "pattern": fields.get("pattern"),
        "path": fields.get("path"),
        "glob": _glob_of(fields),
        "output": _OUTPUTS[mode],
        "ignore_case": fields.get("-i"),
        "before": fields.get("-B") or around,
        "after": fields.get("-A") or around,
        "skip": fields.get("offset"),
        "rows": fields.get("head_limit") or None,  # 0 is no limit
    }


def _glob_of(fields: Fields) -> Any:
    kind = fields.get("type")
    if kind is None or fields.get("glob") is not None:
        return fields.get("glob")
    if kind not in _TYPES:
        raise NotOurs(f"the type {kind!r} is not known: give a glob, such as *.{kind}")
    return _TYPES[kind]


CLAUDE_CODE: dict[str, Translation] = {
    "Bash": _claude_code_bash,
    "Read": _same("read_file"),
    "Write": _same("write_file"),
    "Edit": _same("edit_file"),
    "MultiEdit": _multi_edit,
    "Glob": _same("glob"),
    "Grep": _grep,
    "LS": _list,
    # Those of the text editor where a parent describes it as a tool of its own.
    "str_replace_editor": _text_editor,
    "str_replace_based_edit_tool": _text_editor,
}
ANTHROPIC_DEFINED: dict[str, Translation] = {
    "bash_": _bash,
    "text_editor_": _text_editor,
}
"""By the beginning of the tool's `type`, which ends with a date."""
