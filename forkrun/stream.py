"""The events of a run, kept for whoever reads them: bounded, in order, the result always last.

A reader that is slow, or that never comes, costs a bounded amount of memory. Pieces of text go
first; of the other kinds so many are kept that losing one is rare, and a `MissedEvent` stands where
some were lost.
"""

from __future__ import annotations

import asyncio
from collections import deque

from forkrun.events import (
    Event,
    MissedEvent,
    ResultEvent,
    TextEvent,
    ToolCallEvent,
    ToolResultEvent,
)

MAX_TEXT_CHARS = 1_000_000
MAX_EVENTS = 10_000
MAX_BYTES = 64 * 1024 * 1024


class EventStream:
    """An asynchronous iterator over the events of one run; each event is given to one reader.

    Unread, it holds at most `MAX_TEXT_CHARS` characters of text (each piece counts for 100 more),
    and `MAX_EVENTS` events of other kinds with together at most `MAX_BYTES` of content; the result
    always finds room.
    """

    def __init__(self) -> None:
        self._waiting: deque[Event] = deque()
        self._text_chars = 0
        self._others = 0
        self._bytes = 0
        self._closed = False
        self._changed = asyncio.Event()

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> Event:
        while not self._waiting:
            if self._closed:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._taken(self._waiting.popleft())

    def push(self, event: Event) -> None:
        """Take the next event, or count it as missed where there is no room for it."""
        if self._has_room_for(event):
            self._count(event, sign=1)
            self._waiting.append(event)
        else:
            self._miss(event)
        self._changed.set()

    def close(self) -> None:
        """Say that no more events will come; what waits can still be read."""
        self._closed = True
        self._changed.set()

    def _has_room_for(self, event: Event) -> bool:
        if isinstance(event, ResultEvent):
            return True
        if isinstance(event, TextEvent):
            return self._text_chars + _weight(event) <= MAX_TEXT_CHARS
        return self._others < MAX_EVENTS and self._bytes + _content_bytes(event) <= MAX_BYTES

    def _count(self, event: Event, *, sign: int) -> None:
        if isinstance(event, TextEvent):
            self._text_chars += sign * _weight(event)
        elif not isinstance(event, MissedEvent):
            self._others += sign
            self._bytes += sign * _content_bytes(event)

    def _miss(self, event: Event) -> None:
        """Enter a loss into the note that stands last, or into a new one."""
        last = self._waiting[-1] if self._waiting else None
        before = self._waiting.pop() if isinstance(last, MissedEvent) else None
        is_text = isinstance(event, TextEvent)
        self._waiting.append(
            MissedEvent(
                run_id=event.run_id,
                t=event.t,
                texts=(before.texts if isinstance(before, MissedEvent) else 0) + is_text,
                others=(before.others if isinstance(before, MissedEvent) else 0) + (not is_text),
            )
        )

    def _taken(self, event: Event) -> Event:
        self._count(event, sign=-1)
        return event


def _weight(event: TextEvent) -> int:
    return len(event.text) + 100


def _content_bytes(event: Event) -> int:
    """Give the size of what may be large in an event."""
    if isinstance(event, ToolCallEvent):
        return len(event.input)
    return len(event.head) if isinstance(event, ToolResultEvent) else 0
