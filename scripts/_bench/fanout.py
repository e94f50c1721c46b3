"""Many at once: how many runs a second, and what a thousand that wait cost."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor

from _bench.measure import Row, Table, in_turn
from _bench.processes import pss_mib, tree
from forkrun import Job, Runner
from forkrun.models.base import Heard, Reply, Request, Usage

POOL = "process pool that runs `bash -c true` twice a job"
TURNS = (
    ("tool_use", {"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": "true"}}),
    (
        "tool_use",
        {"type": "tool_use", "id": "t2", "name": "read_file", "input": {"file_path": "a"}},
    ),
    ("end_turn", {"type": "text", "text": "done"}),
)


class ThreeTurns:
    """A model that asks for one bash call, for one read, and ends."""

    name = "offline"

    async def reply(self, request: Request, heard: Heard) -> Reply:
        stop_reason, block = TURNS[request.number]
        return Reply(
            content=(json.dumps(block).encode(),),
            stop_reason=stop_reason,
            usage=Usage(),
            model=self.name,
        )

    async def close(self) -> None:
        """Hold nothing."""


class Silent:
    """A model that does not answer before it is told to."""

    name = "offline"

    def __init__(self) -> None:
        self.asked = 0
        self.answer = asyncio.Event()

    async def reply(self, request: Request, heard: Heard) -> Reply:
        self.asked += 1
        await self.answer.wait()
        return Reply(
            content=(b'{"type":"text","text":"done"}',),
            stop_reason="end_turn",
            usage=Usage(),
            model=self.name,
        )

    async def close(self) -> None:
        """Hold nothing."""


def tables(options: argparse.Namespace) -> Iterator[Table]:
    runs = options.runs or 100
    yield _rate(runs, rounds=options.rounds or 3)
    yield _waiting(runs)


def _rate(runs: int, *, rounds: int) -> Table:
    from _bench.api import Bench

    with Bench() as bench, ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        with open(os.path.join(bench.workspace, "a"), "w", encoding="utf-8") as file:
            file.write("hello\n")
        list(pool.map(_two_shells, range(4)))
        contenders: dict[str, Callable[[], float]] = {}
        for start in ("warm", "exec"):
            runner = bench.runner(ThreeTurns(), start=start)
            words = "forks of a zygote" if start == "warm" else "fresh interpreters"
            contenders[f"3 turns, a bash call and a read each: {words}"] = _all_of(
                bench, runner, runs if start == "warm" else max(1, runs // 4)
            )
        contenders[POOL] = lambda: _shells(pool, runs)
        rows = in_turn(contenders, rounds=rounds)
    return Table(
        title=f"{runs} runs at once, in full sandboxes with overlays",
        unit="runs a second",
        rows=rows,
        baseline=POOL,
    )


def _all_of(bench: object, runner: Runner, runs: int) -> Callable[[], float]:
    async def gathered() -> float:
        job = Job(prompt="Go.", cwd=bench.workspace)  # type: ignore[attr-defined]
        began = time.monotonic()
        results = await asyncio.gather(*(runner.run(job) for _ in range(runs)))
        took_s = time.monotonic() - began
        bad = [result for result in results if result.stop_reason != "completed"]
        if bad:
            raise RuntimeError(f"{len(bad)} of {runs} failed: {bad[0].error}")
        return runs / took_s

    return lambda: bench.loop.run(gathered())  # type: ignore[attr-defined]


def _two_shells(_: int) -> None:
    for _ in range(2):
        subprocess.run(["bash", "-c", "true"], check=True)


def _shells(pool: ProcessPoolExecutor, runs: int) -> float:
    began = time.monotonic()
    list(pool.map(_two_shells, range(runs)))
    return runs / (time.monotonic() - began)


def _waiting(runs: int) -> Table:
    """Have all of them wait for the model, and look at what that costs."""
    from _bench.api import Bench

    with Bench() as bench:
        until_s, memory_mib, cpu_percent = bench.loop.run(_held(bench, runs))
    rows = [
        Row(name=f"until all {runs} wait, s", values=[until_s]),
        Row(name="memory of all together, MiB (PSS, our process included)", values=[memory_mib]),
        Row(name="of one core while they wait, %", values=[cpu_percent]),
    ]
    return Table(title=f"{runs} alive and waiting for the model", unit="", rows=rows)


async def _held(bench: object, runs: int) -> tuple[float, float, float]:
    model = Silent()
    environ = bench.environ  # type: ignore[attr-defined]
    async with Runner(model=model, environ=environ) as runner:
        job = Job(prompt="Go.", cwd=bench.workspace)  # type: ignore[attr-defined]
        began = time.monotonic()
        tasks = [asyncio.ensure_future(runner.run(job)) for _ in range(runs)]
        while model.asked < runs and not any(task.done() for task in tasks):
            await asyncio.sleep(0.01)
        until_s = time.monotonic() - began
        memory_mib = sum(pss_mib(pid) for pid in tree(os.getpid()))
        before, began = _cpu_s(), time.monotonic()
        await asyncio.sleep(3)
        cpu_percent = 100 * (_cpu_s() - before) / (time.monotonic() - began)
        model.answer.set()
        results = await asyncio.gather(*tasks)
        bad = [result for result in results if result.stop_reason != "completed"]
        if bad:
            raise RuntimeError(f"{len(bad)} of {runs} failed: {bad[0].error}")
    return until_s, memory_mib, cpu_percent


def _cpu_s() -> float:
    """CPU time of this process; that of the waiting workers is next to nothing."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
