"""Reads what the command of a hook says, by its exit code or as JSON, in Claude Code's forms."""

from __future__ import annotations

from typing import Any

import msgspec

from forkrun.commands import Answer

MAX_WORDS_CHARS = 10_000


class HookOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a hook says. `block`: why the call, or the end, must not be. `updated_input`: what
    the input shall be instead, in the terms of `tool_input`. `words`: what the model shall read.

    >>> hooks = forkrun.Hooks()
    >>> hooks.add("SubagentStart", lambda asked: forkrun.HookOutcome(words="The build is red."))
    >>> forkrun.run_sync("Look", model="script:replies.jsonl", hooks=hooks).stop_reason
    'completed'
    """

    block: str | None = None
    updated_input: dict[str, Any] | None = None
    words: str | None = None


def read_answer(event: str, answer: Answer) -> HookOutcome:
    """Read what a command said. Raises ValueError for what it cannot have meant."""
    if answer.status == 2:
        return HookOutcome(block=_bounded(answer.stderr) or "a hook forbids it")
    if answer.status != 0:
        raise ValueError(f"exit {answer.status}: {_bounded(answer.stderr)}")
    if not answer.stdout.lstrip().startswith("{"):
        is_start = event == "SubagentStart"
        return HookOutcome(words=_bounded(answer.stdout) or None if is_start else None)
    said = msgspec.json.decode(answer.stdout, type=_Said)
    specific = said.hook_specific_output
    return HookOutcome(
        block=_objection(said),
        updated_input=specific.updated_input,
        words=specific.additional_context and _bounded(specific.additional_context),
    )


class _Specific(msgspec.Struct, rename="camel"):
    permission_decision: str | None = None
    permission_decision_reason: str | None = None
    updated_input: dict[str, Any] | None = None
    additional_context: str | None = None


class _Said(msgspec.Struct, rename="camel"):
    decision: str | None = None
    reason: str | None = None
    stop_reason: str | None = None
    hook_specific_output: _Specific = msgspec.field(default_factory=_Specific)
    keeps_on: bool = msgspec.field(default=True, name="continue")


def _objection(said: _Said) -> str | None:
    specific = said.hook_specific_output
    if not said.keeps_on:
        return _bounded(said.stop_reason or "a hook forbids it")
    if specific.permission_decision == "ask":
        reason = specific.permission_decision_reason or "a hook asks for a person's word"
        return _bounded(f"{reason} (nobody can be asked here)")
    if specific.permission_decision == "deny":
        return _bounded(specific.permission_decision_reason or "a hook forbids it")
    if said.decision in ("block", "deny"):
        return _bounded(said.reason or "a hook forbids it")
    known = (None, "allow", "defer"), (None, "approve", "allow")
    if specific.permission_decision not in known[0] or said.decision not in known[1]:
        raise ValueError("it answered with a decision that is not known here")
    return None


def _bounded(text: str) -> str:
    return text.strip()[:MAX_WORDS_CHARS]
