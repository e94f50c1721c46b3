"""The events of a run as lines for the person who looks at a host, one for each thing done."""

from __future__ import annotations

import msgspec

from forkrun.events import (
    ConfirmedEvent,
    DeniedEvent,
    Event,
    LimitEvent,
    RetryEvent,
    SettledEvent,
    StartedEvent,
    TextEvent,
    ToolCallEvent,
    ToolResultEvent,
)
from forkrun.inert import inert
from forkrun.text import one_line

WIDTH = 120


def line_for(event: Event) -> str | None:
    """Say in one line what an event means, or None where it means nothing to people."""
    line = None
    match event:
        case StartedEvent():
            line = f"started, confined by the tier {event.sandbox.tier}"
        case TextEvent():
            line = f"turn {event.turn}: writing"
        case ToolCallEvent():
            line = f"turn {event.turn}: {event.tool} {_gist(event.input)}"
        case ToolResultEvent():
            line = f"turn {event.turn}: {event.tool} {'failed' if event.is_error else 'done'}"
        case DeniedEvent():
            line = f"turn {event.turn}: {event.tool} was denied"
        case RetryEvent():
            line = f"the model did not answer; trying again in {event.wait_s:.1f} s"
        case LimitEvent():
            line = f"bound reached: {event.limit.kind} {event.limit.value:g}"
        case ConfirmedEvent():
            line = "done; settling the files"
        case SettledEvent():
            line = "the files are settled"
    return line and one_line(inert(line), width=WIDTH)


def _gist(text: msgspec.Raw) -> str:
    """Give the values of a call's input."""
    fields = msgspec.json.decode(text)
    return " ".join(str(value)[:WIDTH] for value in fields.values())
