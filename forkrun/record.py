"""Tells the world what happens in a run: events for whoever watches, lines for the transcript."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from forkrun.events import DeniedEvent, Emit, Event, ToolCallEvent, ToolResultEvent, TurnEvent
from forkrun.models.base import Reply
from forkrun.protocol import Ran, ToolCall
from forkrun.transcript import Transcript

HEAD_CHARS = 2_000


class Record:
    """The record of one run; `t` of its events counts from the moment it is made."""

    def __init__(self, run_id: str, *, emit: Emit, transcript: Transcript) -> None:
        self.run_id = run_id
        self._began = time.monotonic()
        self._emit = emit
        self._transcript = transcript

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._began

    def event(self, kind: type[Event], **fields: Any) -> None:
        """Tell of an event of this kind."""
        self._emit(kind(run_id=self.run_id, t=round(self.elapsed_s, 6), **fields))

    def line(self, kind: str, **fields: Any) -> None:
        """Write a line of its own kind into the transcript."""
        self._transcript.line(kind, **fields)

    def reply(self, reply: Reply, *, turn: int) -> None:
        """A reply is whole."""
        self._transcript.reply(reply, turn=turn)
        self.event(TurnEvent, turn=turn, usage=reply.usage)

    def call(self, call: ToolCall, *, turn: int) -> None:
        """A call is handed to the child."""
        self.event(
            ToolCallEvent, turn=turn, id=call.id, tool=call.name, input=msgspec.Raw(call.input)
        )

    def ran(self, call: ToolCall, ran: Ran, *, turn: int) -> None:
        """A call has come back from the child."""
        self._transcript.tool_result(ran.result, turn=turn)
        self.event(
            ToolResultEvent,
            turn=turn,
            id=call.id,
            tool=call.name,
            head=ran.result.text[:HEAD_CHARS],
            size=len(ran.result.text),
            is_error=ran.result.is_error,
            duration_s=ran.duration_s,
        )

    def denied(self, call: ToolCall, reason: str, *, turn: int) -> None:
        """A call was not run."""
        self.event(DeniedEvent, turn=turn, id=call.id, tool=call.name, reason=reason)
