"""The gate of the parent: judges a call by the rules and by the caller's own word, before it runs.

Rules on paths are judged again where the path is resolved, in the child; and the kernel holds what
both have decided.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from forkrun.policy import Policy
from forkrun.protocol import ToolCall


class Allow(msgspec.Struct, frozen=True):
    """The caller allows a call.

    >>> forkrun.run_sync(
    ...     "Look", model="script:step.jsonl", can_use_tool=lambda tool, wanted: forkrun.Allow()
    ... ).denials
    ()
    """


class Deny(msgspec.Struct, frozen=True):
    """The caller forbids a call; the model reads the reason.

    >>> def judge(tool, wanted):
    ...     return forkrun.Deny("not on a Sunday") if tool == "bash" else forkrun.Allow()
    >>> result = forkrun.run_sync("Look", model="script:step.jsonl", can_use_tool=judge)
    >>> result.denials[0].reason
    'not on a Sunday'
    """

    reason: str


Verdict = Allow | Deny
CanUseTool = Callable[[str, Mapping[str, Any]], Verdict | Awaitable[Verdict]]
"""Called in the parent with the name and the input of a call; may be a coroutine function."""


LONG_COMMAND_CHARS = 1_000
"""From here on a command is read in a thread: some texts take half a second to parse."""


class Gate:
    """Judges calls for one run."""

    def __init__(self, policy: Policy, *, can_use_tool: CanUseTool | None = None) -> None:
        self._policy = policy
        self._can_use_tool = can_use_tool

    async def refusal(self, call: ToolCall) -> str | None:
        """Say why a call may not run, or None where nothing here speaks against it."""
        wanted = msgspec.json.decode(call.input, type=dict[str, Any])
        reason = await self._against_the_rules(call.name, wanted)
        return await self._forbidden(call.name, wanted) if reason is None else reason

    async def _against_the_rules(self, name: str, wanted: Mapping[str, Any]) -> str | None:
        """Judge what is not judged in the child, where paths are resolved."""
        if name == "bash" and isinstance(command := wanted.get("command"), str):
            return await self._judged(command)
        if name == "task":
            agent = wanted.get("agent") or wanted.get("subagent_type")
            return self._policy.judge("task", agent if isinstance(agent, str) else "")
        return self._policy.judge(name) if name.startswith("mcp__") else None

    async def _judged(self, command: str) -> str | None:
        if len(command) < LONG_COMMAND_CHARS:
            return self._policy.judge("bash", command)
        return await asyncio.to_thread(self._policy.judge, "bash", command)

    async def _forbidden(self, name: str, wanted: Mapping[str, Any]) -> str | None:
        """Ask the caller; whatever is neither Allow nor Deny has not allowed."""
        if self._can_use_tool is None:
            return None
        try:
            verdict = self._can_use_tool(name, wanted)
            if inspect.isawaitable(verdict):
                verdict = await verdict
        except Exception as error:  # noqa: BLE001 - a judge that fails has not allowed
            return f"the judge of this call failed: {type(error).__name__}"
        if isinstance(verdict, Deny):
            return verdict.reason or "the caller denied this call"
        if isinstance(verdict, Allow):
            return None
        return f"the judge of this call gave neither Allow nor Deny: {type(verdict).__name__}"
