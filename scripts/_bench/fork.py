"""Fifty forks of one snapshot, by its size: their time should grow with them, not with it."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from _bench import api
from _bench.measure import Table, in_turn
from forkrun import Job, Runner, Snapshot
from forkrun.snapshot.fork import fork
from forkrun.snapshot.repair import repair, repaired

SIZES_MB = (0.1, 1.0, 10.0, 30.0)
FORKS = 50


def tables(options: argparse.Namespace) -> Iterator[Table]:
    texts = {f"{size:g} MB": json.dumps(parent(size)).encode() for size in SIZES_MB}
    snapshots = {name: Snapshot.from_json(text) for name, text in texts.items()}
    smallest = f"{SIZES_MB[0]:g} MB"
    yield Table(
        title=f"{FORKS} forks of one snapshot at once, each to its end, by the snapshot's size",
        unit="s",
        rows=_forks(snapshots, rounds=options.rounds or 5),
        baseline=smallest,
    )
    once: dict[str, Callable[[], float]] = {}
    for name, text in texts.items():
        once[f"freeze {name} of JSON"] = _timed(Snapshot.from_json, text)
        once[f"repair {name}"] = _timed(repair, snapshots[name])
        once[f"another fork of {name}"] = _timed(fork, snapshots[name], "Say done.")
    yield Table(
        title="What a snapshot costs once, and what another fork of it adds",
        unit="ms",
        rows=in_turn(once, rounds=options.rounds or 5),
    )


def _forks(snapshots: dict[str, Snapshot], *, rounds: int) -> Any:
    with api.Bench() as bench:
        runner = bench.runner(api.Noting(), start="warm")
        contenders = {}
        for name, snapshot in snapshots.items():
            repaired(snapshot)
            job = Job(prompt="Say done.", cwd=bench.workspace)
            contenders[name] = _all_at_once(bench, runner, job, snapshot)
        return in_turn(contenders, rounds=rounds)


def _all_at_once(
    bench: api.Bench, runner: Runner, job: Job, snapshot: Snapshot
) -> Callable[[], float]:
    async def run() -> float:
        began = time.perf_counter()
        runs = (runner.run(job, snapshot=snapshot) for _ in range(FORKS))
        results = await asyncio.gather(*runs)
        took_s = time.perf_counter() - began
        for result in results:
            if result.stop_reason != "completed":
                raise RuntimeError(str(result.error))
        return took_s

    return lambda: bench.loop.run(run())


def _timed(act: Callable[..., object], *arguments: object) -> Callable[[], float]:
    def once() -> float:
        began = time.perf_counter()
        act(*arguments)
        return (time.perf_counter() - began) * 1000

    return once


def parent(megabytes: float) -> dict[str, Any]:
    """Give a request of about this size: calls with results of 4,000 characters."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    for turn in range(int(megabytes * 1e6 / 4_700)):
        call = {"type": "tool_use", "id": f"t{turn}", "name": "bash", "input": {"command": "ls"}}
        found = {"type": "tool_result", "tool_use_id": f"t{turn}", "content": 'line "x"\n' * 400}
        messages += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [found]}]
    tools = [{"name": "bash", "input_schema": {"type": "object"}}]
    return {"model": "m", "max_tokens": 100, "tools": tools, "messages": messages}
