"""The gate of the parent: judges a call by the rules and by the caller's own word, before it runs.

Rules on paths are judged again where the path is resolved, in the child; and the kernel holds what
both have decided.
"""

from __future__ import annotations

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


class Gate:
    """Judges calls for one run."""

    def __init__(self, policy: Policy, *, can_use_tool: CanUseTool | None = None) -> None:
        self._policy = policy
        self._can_use_tool = can_use_tool

    async def refusal(self, call: ToolCall) -> str | None:
        """Say why a call may not run, or None where nothing here speaks against it."""
        wanted = msgspec.json.decode(call.input, type=dict[str, Any])
        command = wanted.get("command")
        if call.name == "bash" and isinstance(command, str):
            reason = self._policy.judge("bash", command)
            if reason is not None:
                return reason
        if self._can_use_tool is None:
            return None
        try:
            verdict = self._can_use_tool(call.name, wanted)
            if inspect.isawaitable(verdict):
                verdict = await verdict
        except Exception as error:  # noqa: BLE001 - a judge that fails has not allowed
            return f"the judge of this call failed: {type(error).__name__}"
        return verdict.reason if isinstance(verdict, Deny) else None
