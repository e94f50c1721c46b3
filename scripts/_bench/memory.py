"""What one more subagent costs in memory, with eight alive."""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator

from _bench.measure import Row, Table
from _bench.processes import pss_mib, tree

ALIVE = 8
SDK_CHILD = "child that imports the SDK"


def tables(options: argparse.Namespace) -> Iterator[Table]:
    rounds = options.rounds or 5
    rows = [Row(name=name, values=values) for name, values in _forks(rounds).items()]
    rows.append(Row(name=SDK_CHILD, values=[_sdk_child() for _ in range(min(rounds, 5))]))
    yield Table(
        title=f"PSS of one more subagent with {ALIVE} alive, its PID 1 and guardian included",
        unit="MiB",
        rows=rows,
        baseline=SDK_CHILD,
    )


def _forks(rounds: int) -> dict[str, list[float]]:
    from _bench.api import Bench

    found: dict[str, list[float]] = {}
    with Bench() as bench:
        for start, words in (("warm", "fork of a zygote"), ("exec", "fresh interpreter")):
            found[words] = [bench.loop.run(_one_more(bench, start)) for _ in range(rounds)]
    return found


async def _one_more(bench: object, start: str) -> float:
    """Give how much all children together grow when the ninth comes."""
    from _bench.fanout import Silent
    from forkrun import Job, Runner

    model = Silent()
    async with Runner(model=model, environ=bench.environ, start=start) as runner:  # type: ignore
        job = Job(prompt="Go.", cwd=bench.workspace)  # type: ignore[attr-defined]
        tasks, sizes = [], []
        for count in range(1, ALIVE + 2):
            tasks.append(asyncio.ensure_future(runner.run(job)))
            while model.asked < count:
                await asyncio.sleep(0.005)
            if count >= ALIVE:
                await asyncio.sleep(0.1)
                children = tree(os.getpid()) - {os.getpid()}
                sizes.append(sum(map(pss_mib, children)))
        model.answer.set()
        await asyncio.gather(*tasks)
    return sizes[1] - sizes[0]


def _sdk_child() -> float:
    code = "import anthropic; print(1, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout
        child.stdout.readline()
        return pss_mib(child.pid)
