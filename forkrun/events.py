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
    """The root of all events: `run_id`, and `t`, seconds since the run began.

    >>> async with forkrun.spawn("Look around", model="script:replies.jsonl") as run:
    ...     print(*[type(event).__name__ async for event in run.events()])
    StartedEvent TextEvent TurnEvent ConfirmedEvent ResultEvent
    """

    run_id: str
    t: float


class StartedEvent(Event, tag="started"):
    """The child is confined and the run begins, under these limits.

    >>> events = []
    >>> result = forkrun.run_sync(
    ...     "Look around", model="script:replies.jsonl", tools=["glob"], on_event=events.append
    ... )
    >>> events[0].model, events[0].tools, events[0].limits.max_turns
    ('script:replies.jsonl', ('glob',), 30)
    """

    model: str
    limits: Limits
    tools: tuple[str, ...]
    sandbox: SandboxRecord


class TurnEvent(Event, tag="turn"):
    """A reply is complete; `turn` counts from 1, `usage` is in tokens.

    >>> forkrun.TurnEvent(run_id="r", t=1.5, turn=1, usage=forkrun.Usage(output_tokens=7)).turn
    1
    """

    turn: int
    usage: Usage


class TextEvent(Event, tag="text"):
    """The model has written a piece of text. An attempt that is retried begins anew.

    >>> forkrun.TextEvent(run_id="r", t=0.5, turn=1, text="I will ").text
    'I will '
    """

    turn: int
    text: str


class ToolCallEvent(Event, tag="tool_call"):
    """A tool is about to run. `input` is the JSON of the call's input, `id` the call's own id.

    >>> events = []
    >>> result = forkrun.run_sync("Look", model="script:step.jsonl", on_event=events.append)
    >>> [json.loads(bytes(e.input)) for e in events if isinstance(e, forkrun.ToolCallEvent)]
    [{'command': 'echo hello'}]
    """

    turn: int
    id: str
    tool: str
    input: msgspec.Raw


class ToolResultEvent(Event, tag="tool_result"):
    """A call has its result: the first characters of its text, and its whole size in characters.

    >>> events = []
    >>> result = forkrun.run_sync("Look", model="script:step.jsonl", on_event=events.append)
    >>> [(e.tool, e.size, e.is_error) for e in events if isinstance(e, forkrun.ToolResultEvent)]
    [('bash', 5, False)]
    """

    turn: int
    id: str
    tool: str
    head: str
    size: int
    is_error: bool
    duration_s: float


class DeniedEvent(Event, tag="denied"):
    """A rule or a bound forbade a call.

    >>> forkrun.DeniedEvent(run_id="r", t=0.5, turn=1, id="c", tool="bash", reason="no").reason
    'no'
    """

    turn: int
    id: str
    tool: str
    reason: str


class RetryEvent(Event, tag="retry"):
    """A model call failed and is tried again after `wait_s` seconds; `attempt` counts from 1.

    >>> forkrun.RetryEvent(run_id="r", t=0.5, attempt=1, wait_s=2.0, error="overloaded").wait_s
    2.0
    """

    attempt: int
    wait_s: float
    error: str


class LimitEvent(Event, tag="limit"):
    """A bound was hit: `limit` has `kind`, `value` and `used`.

    >>> events = []
    >>> result = forkrun.run_sync(
    ...     "Look",
    ...     model="script:step.jsonl",
    ...     limits=forkrun.Limits(max_turns=1),
    ...     on_event=events.append,
    ... )
    >>> [e.limit.kind for e in events if isinstance(e, forkrun.LimitEvent)]
    ['turns']
    """

    limit: LimitHit


class RecoveredEvent(Event, tag="recovered"):
    """A commit that had been killed was "finished" or "undone" before this run began.

    >>> forkrun.RecoveredEvent(run_id="r", t=0.5, outcome="undone", paths=("a.py",)).paths
    ('a.py',)
    """

    outcome: str
    paths: tuple[str, ...]


class CopyEvent(Event, tag="copy"):
    """The workspace is being copied, since no overlay can be had over it. For front ends in the
    same process; not part of `stream-json`.

    >>> forkrun.CopyEvent(run_id="r", t=0.5, done_bytes=1_000, total_bytes=4_000).total_bytes
    4000
    """

    done_bytes: int
    total_bytes: int


class CheckEvent(Event, tag="check"):
    """The check has run in what an attempt left; `output` is the end of what it printed.

    >>> forkrun.CheckEvent(run_id="r", t=0.5, attempt=1, passed=True, output="ok").passed
    True
    """

    attempt: int
    passed: bool
    output: str


class SettledEvent(Event, tag="settled"):
    """What became of the files, as text for people. For front ends in the same process; not part of
    `stream-json`.

    >>> forkrun.SettledEvent(run_id="r", t=0.5, diffstat=" a.py | 2 +-").diffstat
    ' a.py | 2 +-'
    """

    diffstat: str


class HookEvent(Event, tag="hook"):
    """A hook was asked: it "passed", it "blocked", or it "failed"; `message` says why.

    >>> hooks, seen = forkrun.Hooks(), []
    >>> hooks.add("SubagentStart", lambda asked: None)
    >>> _ = forkrun.run_sync(
    ...     "Look", model="script:replies.jsonl", hooks=hooks, on_event=seen.append
    ... )
    >>> [event.outcome for event in seen if isinstance(event, forkrun.HookEvent)]
    ['passed']
    """

    event: str
    hook: str
    tool_use_id: str | None
    outcome: str
    message: str | None
    duration_s: float


class ConfirmedEvent(Event, tag="confirmed"):
    """The turn that ends the run is confirmed: this is its summary. For front ends in the same
    process; not part of `stream-json`.

    >>> forkrun.ConfirmedEvent(run_id="r", t=0.5, summary="Done.").summary
    'Done.'
    """

    summary: str


class MissedEvent(Event, tag="missed"):
    """Nobody read for so long that events were left out here: so many pieces of text, and so many
    of other kinds. Only in `Run.events()`; not part of `stream-json`.

    >>> forkrun.MissedEvent(run_id="r", t=0.5, texts=12, others=0).texts
    12
    """

    texts: int
    others: int


class ResultEvent(Event, tag="result_event"):
    """The run is over. In `stream-json` the result itself stands for this event.

    >>> events = []
    >>> result = forkrun.run_sync(
    ...     "Look around", model="script:replies.jsonl", on_event=events.append
    ... )
    >>> events[-1].result == result
    True
    """

    result: Result


Emit = Callable[[Event], None]
