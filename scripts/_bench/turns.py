"""What one turn costs with a long history behind it, and with a short one."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from _bench.measure import Row, Table, in_turn
from forkrun import Job, Limits
from forkrun.catalog import INPUTS, definitions
from forkrun.models.base import Heard, Reply, Request, Usage

SIZES_MB = (0.1, 1, 10, 30)
TURNS = 30
SMALLEST = f"{SIZES_MB[0]} MB of history"


class Chatty:
    """A model that has a small file read in each turn, and notes when it was asked.

    With `makes_body` it makes the bytes of each request, as one that is sent would be.
    """

    name = "offline"

    def __init__(self, *, makes_body: bool) -> None:
        self.asked: list[float] = []
        self.answered: list[float] = []
        self._makes_body = makes_body

    async def reply(self, request: Request, heard: Heard) -> Reply:
        self.asked.append(time.monotonic())
        if self._makes_body:
            sum(map(len, request.parts()))
        turn = len(self.asked)
        block: dict[str, Any] = {"type": "text", "text": "done"}
        if turn <= TURNS:
            read = {"file_path": "a"}
            block = {"type": "tool_use", "id": f"t{turn}", "name": "read_file", "input": read}
        reply = Reply(
            content=(json.dumps(block).encode(),),
            stop_reason="tool_use" if turn <= TURNS else "end_turn",
            usage=Usage(),
            model=self.name,
        )
        self.answered.append(time.monotonic())
        return reply

    async def close(self) -> None:
        """Hold nothing."""


def tables(options: argparse.Namespace) -> Iterator[Table]:
    yield _table(
        options, makes_body=False, title="One turn's overhead of ours, one small read in it"
    )
    yield _table(options, makes_body=True, title="The same, the parts of the request made too")


def _table(options: argparse.Namespace, *, makes_body: bool, title: str) -> Table:
    from _bench.api import Bench

    with Bench() as bench:
        with open(os.path.join(bench.workspace, "a"), "w", encoding="utf-8") as file:
            file.write("hello\n")
        contenders = {
            f"{size_mb} MB of history": _turns(bench, size_mb, makes_body=makes_body)
            for size_mb in SIZES_MB
        }
        per_round = in_turn(contenders, rounds=options.rounds or 5)
    rows = [Row(name=row.name, values=row.values, note=row.note) for row in per_round]
    return Table(title=title, unit="ms a turn", rows=rows, baseline=SMALLEST)


def _turns(bench: Any, size_mb: float, *, makes_body: bool) -> Callable[[], float]:
    from forkrun.snapshot.freeze import Snapshot

    model = Chatty(makes_body=makes_body)
    runner = bench.runner(model, start="warm")
    snapshot = Snapshot.from_json(history(size_mb))

    def once() -> float:
        model.asked.clear()
        model.answered.clear()
        job = Job(prompt="Go on.", cwd=bench.workspace, limits=Limits(max_turns=TURNS + 10))
        result = bench.loop.run(runner.run(job, snapshot=snapshot))
        if result.stop_reason != "completed":
            raise RuntimeError(str(result.error))
        between = [a - b for a, b in zip(model.asked[2:], model.answered[1:-1], strict=True)]
        return sorted(between)[len(between) // 2] * 1000

    return once


def history(size_mb: float) -> bytes:
    """Give the JSON of a request whose messages have this size together."""
    text = "All work and no play makes a long history. " * 200
    count = max(2, int(size_mb * 1e6 / (len(text) + 60)))
    messages = [
        {"role": "assistant" if number % 2 else "user", "content": f"{number} {text}"}
        for number in range(count - count % 2)
    ]
    whole = {
        "model": "claude-bench",
        "max_tokens": 1000,
        "tools": definitions(INPUTS),
        "messages": messages,
    }
    return json.dumps(whole).encode()
