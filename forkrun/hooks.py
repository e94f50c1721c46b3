"""Hooks: what a user has done at four points of a run, by commands or by Python callables.

    SubagentStart   before the first request: may add to the prompt
    PreToolUse      before a call is judged by the rules: may deny it, or change its input
    PostToolUse     after a call: may tell the model something about its result
    SubagentStop    when a run would end: may send a completed one on, by saying what is missing

Hooks run in the parent, unconfined, with the user's environment: they come from the user's own file
or code, never from a project. Commands get JSON on stdin and answer by exit code or by JSON on
stdout, in the forms of Claude Code (code.claude.com, "Hooks reference"), so that hooks written for
it work here. One thing is stricter: a PreToolUse hook that fails, for whatever reason, denies.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from forkrun.aliases import CLAUDE_CODE
from forkrun.commands import run_command
from forkrun.errors import ConfigurationError
from forkrun.events import HookEvent
from forkrun.gate import Allow, Deny
from forkrun.hook_answers import MAX_WORDS_CHARS, HookOutcome, read_answer
from forkrun.protocol import ToolCall, ToolResult
from forkrun.record import Record

DEFAULT_TIMEOUT_S = 60.0
AFTER_CANCEL_S = 5.0
EventName = Literal["SubagentStart", "PreToolUse", "PostToolUse", "SubagentStop"]
EVENTS: tuple[EventName, ...] = ("SubagentStart", "PreToolUse", "PostToolUse", "SubagentStop")

THEIR_NAMES = {
    "bash": "Bash",
    "read_file": "Read",
    "write_file": "Write",
    "edit_file": "Edit",
    "glob": "Glob",
    "grep": "Grep",
    "task": "Agent",
}
"""Our tools by the names of Claude Code."""
_ALSO = {"task": ("Task",)}
_NAMES_ALONE = r"[A-Za-z0-9_,| -]*"


class HookInput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a hook is told: the fields that Claude Code sends, as far as they exist here.

    `tool_name` and `tool_input` speak of the tool as Claude Code does ("Bash", paths absolute, a
    timeout in ms); `tool` is our name of it. `agent_id` is the run's id, `agent_type` its label.

    >>> seen = []
    >>> hooks = forkrun.Hooks()
    >>> hooks.add("PreToolUse", lambda asked: seen.append((asked.tool_name, asked.tool_input)))
    >>> _ = forkrun.run_sync("Look", model="script:step.jsonl", hooks=hooks)
    >>> seen
    [('Bash', {'command': 'echo hello'})]
    """

    hook_event_name: EventName
    session_id: str
    agent_id: str
    agent_type: str
    cwd: str
    permission_mode: str = ""
    transcript_path: str | None = None
    prompt: str | None = None
    tool: str | None = None
    tool_name: str | None = None
    tool_input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    tool_response: dict[str, Any] | None = None
    stop_hook_active: bool | None = None
    stop_reason: str | None = None
    last_assistant_message: str | None = None


Hook = Callable[[HookInput], Any]
"""Returns None, Allow, Deny or a HookOutcome, or an awaitable of one of these. A function that is
not a coroutine function is called in a thread."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One hook: when it is asked, and what: a callable, or a command with its folder."""

    event: EventName
    matcher: str | None = None
    call: Any = None
    argv: tuple[str, ...] = ()
    folder: str = "/"
    timeout_s: float = DEFAULT_TIMEOUT_S

    @property
    def name(self) -> str:
        """A name for people."""
        return " ".join(self.argv[-1:]) or getattr(self.call, "__name__", type(self.call).__name__)


class Hooks:
    """The hooks of a user, in the order in which they are asked.

    >>> hooks = forkrun.Hooks()
    >>> hooks.add("PreToolUse", lambda asked: forkrun.Deny("not now"), matcher="Bash")
    >>> result = forkrun.run_sync("Look", model="script:step.jsonl", hooks=hooks)
    >>> result.denials[0].reason
    'not now'
    """

    def __init__(
        self,
        entries: Sequence[Entry] = (),
        *,
        source: str | None = None,
        unknown: Sequence[str] = (),
    ) -> None:
        """`source` is the file that they stand in; `unknown` the events there that we have not."""
        self.entries = list(entries)
        self.source = source
        self.unknown = tuple(unknown)

    def add(
        self,
        event: EventName,
        hook: Hook,
        *,
        matcher: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        """Ask this callable at this point, for the tools whose name matches (None: all of them)."""
        entry = Entry(event=event, matcher=matcher, call=hook, timeout_s=timeout_s)
        self.entries.append(_checked(entry, where=entry.name))

    @classmethod
    def from_file(cls, path: str) -> Hooks:
        """Read hooks from a JSON file, which may be a whole settings file of Claude Code.

        Commands run in the file's own folder. Raises ConfigurationError, saying where.
        """
        path = os.path.realpath(path)
        try:
            with open(path, "rb") as file:
                found = msgspec.json.decode(file.read())
        except OSError as error:
            raise ConfigurationError(f"cannot read the hooks ({error.strerror}): {path}") from error
        except msgspec.DecodeError as error:
            raise ConfigurationError(f"the hooks are not JSON: {error}: {path}") from error
        table = found.get("hooks", found) if isinstance(found, dict) else None
        if not isinstance(table, dict):
            raise ConfigurationError(f"the hooks must be a JSON object, by event: {path}")
        entries = [
            entry
            for event in EVENTS
            for entry in _entries(event, table.get(event, []), folder=os.path.dirname(path))
        ]
        return cls(entries, source=path, unknown=sorted(table.keys() - set(EVENTS)))

    def check_outside(self, workspace: str) -> None:
        """Raise ConfigurationError where the file lies in the workspace, for a child to write."""
        if self.source and os.path.commonpath([self.source, workspace]) == workspace:
            raise ConfigurationError(
                f"the hooks lie in the workspace, where a subagent can change them: {self.source}",
                hint="keep them elsewhere, in ~/.config/forkrun say",
            )


class _Group(msgspec.Struct, forbid_unknown_fields=True):
    hooks: list[_Command]
    matcher: str | None = None


class _Command(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["command"]
    command: str
    args: list[str] | None = None
    timeout: float = DEFAULT_TIMEOUT_S
    statusMessage: str | None = None


def _entries(event: EventName, groups: Any, *, folder: str) -> list[Entry]:
    try:
        read = msgspec.convert(groups, list[_Group])
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"hooks: {event}: {error}") from error
    found = []
    for group in read:
        for command in group.hooks:
            argv: tuple[str, ...] = ("/bin/sh", "-c", command.command)
            if command.args is not None:
                argv = (command.command, *command.args)
            entry = Entry(
                event=event,
                matcher=group.matcher,
                argv=argv,
                folder=folder,
                timeout_s=command.timeout,
            )
            found.append(_checked(entry, where=command.command))
    return found


def _checked(entry: Entry, *, where: str) -> Entry:
    if entry.event not in EVENTS:
        raise ConfigurationError(f"hooks: there is no event {entry.event!r}")
    if not 0 < entry.timeout_s < 86_400:
        raise ConfigurationError(
            f"hooks: {entry.event}: not a timeout: {entry.timeout_s:g}: {where}"
        )
    try:
        re.compile("" if entry.matcher in (None, "*") else entry.matcher)
    except re.error as error:
        raise ConfigurationError(
            f"hooks: {entry.event}: not a pattern ({error}): {entry.matcher}"
        ) from error
    return entry


class Denied(Exception):
    """A hook forbids a call; the message is for the model."""


class RunHooks:
    """The hooks at work in one run."""

    def __init__(
        self,
        hooks: Hooks | None,
        *,
        run_id: str,
        label: str | None,
        workspace: str,
        environ: Mapping[str, str],
        transcript: str | None,
        record: Record,
    ) -> None:
        self._entries = hooks.entries if hooks else []
        self._common: dict[str, Any] = {
            "session_id": run_id,
            "agent_id": run_id,
            "agent_type": label or "subagent",
            "cwd": workspace,
            "permission_mode": "default",
            "transcript_path": transcript and os.path.abspath(transcript),
        }
        self._environ = {
            **environ,
            "CLAUDE_PROJECT_DIR": workspace,
            "FORKRUN_RUN_ID": run_id,
        }
        self._workspace = workspace
        self._has_sent_on = False
        self._record = record

    async def before_start(self, prompt: str) -> str:
        """Give the prompt, with what the hooks add to it."""
        outcomes = await self._ask("SubagentStart", prompt=prompt)
        return "\n\n".join([prompt, *(o.words for o in outcomes if o.words)])

    async def before_call(self, call: ToolCall) -> ToolCall:
        """Give the call as it shall be. Raises Denied."""
        if not self._has("PreToolUse"):
            return call
        for entry in self._matching("PreToolUse", *_names(call.name)):
            outcome = await self._outcome(entry, self._about(entry.event, call))
            if outcome.block is not None:
                raise Denied(outcome.block)
            if outcome.updated_input is not None:
                call = _updated(call, outcome.updated_input)
        return call

    async def after_call(self, call: ToolCall, result: ToolResult) -> list[str]:
        """Give what the model shall read beside the result."""
        if not self._has("PostToolUse"):
            return []
        response = {"text": result.text, "is_error": result.is_error, "denied": result.denied}
        words = []
        for entry in self._matching("PostToolUse", *_names(call.name)):
            about = msgspec.structs.replace(self._about(entry.event, call), tool_response=response)
            outcome = await self._outcome(entry, about)
            words += [text for text in (outcome.block, outcome.words) if text]
        return [f"[hook after {call.name} {call.id}] {text}" for text in words]

    async def before_end(self, message: str) -> str | None:
        """Say why a completed run must go on, or None where it may end."""
        outcomes = await self._ask(
            "SubagentStop",
            stop_hook_active=self._has_sent_on,
            stop_reason="completed",
            last_assistant_message=message,
        )
        reasons = [outcome.block for outcome in outcomes if outcome.block]
        self._has_sent_on = bool(reasons)
        return "\n".join(reasons) or None

    async def after_end(self, stop_reason: str, message: str) -> None:
        """Tell of an end that no hook can change; after a cancel only so long as a person waits."""
        within_s = AFTER_CANCEL_S if stop_reason == "cancelled" else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._ask(
                    "SubagentStop",
                    stop_hook_active=self._has_sent_on,
                    stop_reason=stop_reason,
                    last_assistant_message=message,
                )

    def _has(self, event: EventName) -> bool:
        return any(entry.event == event for entry in self._entries)

    async def _ask(self, event: EventName, **fields: Any) -> list[HookOutcome]:
        agent = str(self._common["agent_type"])
        asked = HookInput(hook_event_name=event, **self._common, **fields)
        return [await self._outcome(entry, asked) for entry in self._matching(event, agent)]

    def _matching(self, event: EventName, *names: str) -> list[Entry]:
        return [e for e in self._entries if e.event == event and _matches(e.matcher, names)]

    def _about(self, event: EventName, call: ToolCall) -> HookInput:
        return HookInput(
            hook_event_name=event,
            **self._common,
            tool=call.name,
            tool_name=THEIR_NAMES.get(call.name, call.name),
            tool_input=_their_input(call, workspace=self._workspace),
            tool_use_id=call.id,
        )

    async def _outcome(self, entry: Entry, asked: HookInput) -> HookOutcome:
        began = time.monotonic()
        failed = None
        try:
            async with asyncio.timeout(entry.timeout_s):
                outcome = await (
                    self._command(entry, asked) if entry.argv else _called(entry, asked)
                )
        except TimeoutError:
            failed = f"it did not answer within {entry.timeout_s:g} s"
        except Exception as error:  # noqa: BLE001 - whatever a hook does, the run has an end
            failed = f"{type(error).__name__}: {error}"[:MAX_WORDS_CHARS]
        if failed is not None:
            is_gate = entry.event == "PreToolUse"
            outcome = HookOutcome(
                block=f"the hook {entry.name!r} failed: {failed}" if is_gate else None
            )
        self._record.event(
            HookEvent,
            event=entry.event,
            hook=entry.name,
            tool_use_id=asked.tool_use_id,
            outcome="failed" if failed else "blocked" if outcome.block else "passed",
            message=failed or outcome.block,
            duration_s=round(time.monotonic() - began, 6),
        )
        return outcome

    async def _command(self, entry: Entry, asked: HookInput) -> HookOutcome:
        answer = await run_command(
            entry.argv,
            stdin=msgspec.json.encode(asked),
            cwd=entry.folder,
            environ=self._environ,
        )
        return read_answer(entry.event, answer)


async def _called(entry: Entry, asked: HookInput) -> HookOutcome:
    if inspect.iscoroutinefunction(entry.call):
        said = await entry.call(asked)
    else:
        said = await asyncio.to_thread(entry.call, asked)
        said = await said if isinstance(said, Awaitable) else said
    if isinstance(said, HookOutcome):
        return said
    if isinstance(said, Deny):
        return HookOutcome(block=said.reason)
    if said is None or isinstance(said, Allow):
        return HookOutcome()
    raise TypeError(f"a hook returns None, Allow, Deny or a HookOutcome, not {type(said).__name__}")


def _names(tool: str) -> tuple[str, ...]:
    return (tool, THEIR_NAMES.get(tool, tool), *_ALSO.get(tool, ()))


def _matches(matcher: str | None, names: Sequence[str]) -> bool:
    if matcher in (None, "", "*"):
        return True
    assert matcher is not None
    if re.fullmatch(_NAMES_ALONE, matcher):
        wanted = {name.strip() for name in re.split(r"[|,]", matcher)}
        return any(name in wanted for name in names)
    return any(re.search(matcher, name) for name in names)


def _their_input(call: ToolCall, *, workspace: str) -> dict[str, Any]:
    """Give the input in Claude Code's terms."""
    fields = msgspec.json.decode(call.input, type=dict[str, Any])
    for key in ("file_path", "path"):
        if isinstance(fields.get(key), str):
            fields[key] = os.path.normpath(os.path.join(workspace, fields[key]))
    if call.name == "bash" and isinstance(fields.get("timeout"), int | float):
        fields["timeout"] = fields["timeout"] * 1000
    return fields


def _updated(call: ToolCall, fields: dict[str, Any]) -> ToolCall:
    """Give the call with an input in Claude Code's terms."""
    translation = CLAUDE_CODE.get(THEIR_NAMES.get(call.name, ""))
    ours = translation(fields)[1] if translation else fields
    kept = {key: value for key, value in ours.items() if value is not None}
    return ToolCall(id=call.id, name=call.name, input=msgspec.json.encode(kept))
