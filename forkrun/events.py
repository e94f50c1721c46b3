"""What happens in a run, as it happens: one struct for each kind of event.

`t` is a monotonic number of seconds since the run began. The last event is always the result.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from forkrun.limits import Limits
from forkrun.models.base import Usage
from forkrun.result import LimitHit, Result, SandboxRecord


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """The root of all events."""

    run_id: str
    t: float


class StartedEvent(Event, tag="started"):
    """The child is confined and the run begins, under these limits."""

    model: str
    limits: Limits
    tools: tuple[str, ...]
    sandbox: SandboxRecord


class TurnEvent(Event, tag="turn"):
    """A reply is complete."""

    turn: int
    usage: Usage


class TextEvent(Event, tag="text"):
    """The model has written a piece of text. An attempt that is retried begins anew."""

    turn: int
    text: str


class ToolCallEvent(Event, tag="tool_call"):
    """A tool is about to run."""

    turn: int
    id: str
    tool: str
    input: msgspec.Raw


class ToolResultEvent(Event, tag="tool_result"):
    """A call has its result: the first characters of its text, and its whole size in characters."""

    turn: int
    id: str
    tool: str
    head: str
    size: int
    is_error: bool
    duration_s: float


class DeniedEvent(Event, tag="denied"):
    """A rule or a bound forbade a call."""

    turn: int
    id: str
    tool: str
    reason: str


class RetryEvent(Event, tag="retry"):
    """A model call failed and is tried again after `wait_s` seconds."""

    attempt: int
    wait_s: float
    error: str


class LimitEvent(Event, tag="limit"):
    """A bound was hit."""

    limit: LimitHit


class RecoveredEvent(Event, tag="recovered"):
    """A commit that had been killed was "finished" or "undone" before this run began."""

    outcome: str
    paths: tuple[str, ...]


class SettledEvent(Event, tag="settled"):
    """What became of the files, as text for people. For front ends in the same process; not part of
    `stream-json`."""

    diffstat: str


class ConfirmedEvent(Event, tag="confirmed"):
    """The turn that ends the run is confirmed: this is its summary. For front ends in the same
    process; not part of `stream-json`."""

    summary: str


class MissedEvent(Event, tag="missed"):
    """Nobody read for so long that events were left out here: so many pieces of text, and so many
    of other kinds. Only in `Run.events()`; not part of `stream-json`."""

    texts: int
    others: int


class ResultEvent(Event, tag="result_event"):
    """The run is over. In `stream-json` the result itself stands for this event."""

    result: Result


Emit = Callable[[Event], None]
