"""The buffer between a run and whoever reads its events."""

import asyncio

import msgspec

from forkrun.events import (
    Event,
    MissedEvent,
    ResultEvent,
    TextEvent,
    ToolCallEvent,
    TurnEvent,
)
from forkrun.limits import Limits
from forkrun.models.base import Usage
from forkrun.result import Result
from forkrun.stream import MAX_EVENTS, MAX_TEXT_CHARS, EventStream

RESULT = Result(
    run_id="r", stop_reason="completed", summary="", model="m", limits=Limits(), duration_s=1
)


def text(chars: int) -> TextEvent:
    return TextEvent(run_id="r", t=0.0, turn=1, text="x" * chars)


def turn(number: int) -> TurnEvent:
    return TurnEvent(run_id="r", t=0.0, turn=number, usage=Usage())


def unread(*events: Event) -> list[Event]:
    """Push events that nobody reads, then close and read."""

    async def read() -> list[Event]:
        stream = EventStream()
        for event in events:
            stream.push(event)
        stream.push(ResultEvent(run_id="r", t=1.0, result=RESULT))
        stream.close()
        return [event async for event in stream]

    return asyncio.run(read())


def test_text_that_nobody_reads_is_left_out_first() -> None:
    """Text beyond the bound is missed and counted; every other event is there, in order."""
    events = unread(*(event for n in range(300) for event in (turn(n), text(10_000))))
    turns = [event.turn for event in events if isinstance(event, TurnEvent)]
    kept = sum(len(event.text) for event in events if isinstance(event, TextEvent))
    missed = sum(event.texts for event in events if isinstance(event, MissedEvent))
    assert turns == list(range(300))
    assert kept <= MAX_TEXT_CHARS
    assert kept // 10_000 + missed == 300
    assert isinstance(events[-1], ResultEvent)


def test_many_small_pieces_are_bounded_too() -> None:
    """A piece of one character costs more than its character."""
    events = unread(*(text(1) for _ in range(50_000)))
    assert sum(isinstance(event, TextEvent) for event in events) <= MAX_TEXT_CHARS // 100
    assert len([event for event in events if isinstance(event, MissedEvent)]) == 1


def test_other_events_are_never_left_out_in_silence() -> None:
    """Beyond the cap one note says how many are missing, and the result still comes last."""
    events = unread(*(turn(n) for n in range(MAX_EVENTS + 7)))
    assert isinstance(events[-2], MissedEvent)
    assert (events[-2].texts, events[-2].others) == (0, 7)
    assert isinstance(events[-1], ResultEvent)
    assert len(events) == MAX_EVENTS + 2


def test_large_inputs_count_by_their_size() -> None:
    """Calls with inputs of 16 MiB do not pile up without bound."""
    big = msgspec.Raw(b'"' + b"x" * (16 * 1024 * 1024) + b'"')
    call = ToolCallEvent(run_id="r", t=0.0, turn=1, id="c", tool="bash", input=big)
    events = unread(*(call for _ in range(40)))
    assert sum(isinstance(event, ToolCallEvent) for event in events) == 3
    assert sum(event.others for event in events if isinstance(event, MissedEvent)) == 37


def test_a_reader_gets_room_back() -> None:
    """What has been read no longer counts: a reader that keeps up misses nothing."""

    async def read() -> int:
        stream, count = EventStream(), 0
        for _ in range(5):
            for n in range(MAX_EVENTS):
                stream.push(turn(n))
            for _ in range(MAX_EVENTS):
                assert isinstance(await anext(stream), TurnEvent)
                count += 1
        return count

    assert asyncio.run(read()) == 5 * MAX_EVENTS


def test_every_reader_ends() -> None:
    """Two readers share the events and both come to an end."""

    async def read() -> list[list[Event]]:
        stream = EventStream()

        async def reader() -> list[Event]:
            return [event async for event in stream]

        readers = [asyncio.ensure_future(reader()) for _ in range(2)]
        await asyncio.sleep(0)
        stream.push(turn(1))
        stream.push(ResultEvent(run_id="r", t=1.0, result=RESULT))
        stream.close()
        return await asyncio.wait_for(asyncio.gather(*readers), 5)

    assert sorted(len(events) for events in asyncio.run(read())) in ([0, 2], [1, 1])
