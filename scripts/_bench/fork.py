"""Fifty forks of one large request, beside fifty of a small one."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

from _bench.measure import Table, in_turn

from forkrun import Job
from forkrun.models.base import Heard, Reply, Request, Usage
from forkrun.snapshot.freeze import Snapshot

FORKS = 50
SMALL_MB, LARGE_MB = 0.1, 20.0


class Ending:
    """A model that ends each fork with its first reply, after making the bytes of its request."""

    name = "offline"

    async def reply(self, request: Request, heard: Heard) -> Reply:
        heard(None)
        sum(map(len, request.parts()))
        return Reply(
            content=(b'{"type":"text","text":"done"}',),
            stop_reason="end_turn",
            usage=Usage(),
            model=self.name,
        )

    async def close(self) -> None:
        """Hold nothing."""


def tables(options: argparse.Namespace) -> Iterator[Table]:
    from _bench.api import Bench
    from _bench.turns import history

    texts = {size_mb: history(size_mb) for size_mb in (SMALL_MB, LARGE_MB)}
    with Bench() as bench:
        runner = bench.runner(Ending(), start="warm")
        small = f"{FORKS} forks of {SMALL_MB} MB"
        contenders = {
            small: _forks(bench, runner, texts[SMALL_MB], is_frozen=True),
            f"{FORKS} forks of {LARGE_MB:g} MB": _forks(
                bench, runner, texts[LARGE_MB], is_frozen=True
            ),
            f"the same, freezing the {LARGE_MB:g} MB included": _forks(
                bench, runner, texts[LARGE_MB], is_frozen=False
            ),
        }
        rows = in_turn(contenders, rounds=options.rounds or 3)
    yield Table(title="Forks of one snapshot, at once", unit="s", rows=rows, baseline=small)


def _forks(bench: Any, runner: Any, text: bytes, *, is_frozen: bool) -> Callable[[], float]:
    frozen = Snapshot.from_json(text) if is_frozen else None

    async def all_of_them() -> float:
        began = time.monotonic()
        snapshot = frozen or Snapshot.from_json(text)
        job = Job(prompt="Say done.", cwd=bench.workspace)
        results = await asyncio.gather(
            *(runner.run(job, snapshot=snapshot) for _ in range(FORKS))
        )
        if bad := [result for result in results if result.stop_reason != "completed"]:
            raise RuntimeError(str(bad[0].error))
        return time.monotonic() - began

    return lambda: bench.loop.run(all_of_them())
