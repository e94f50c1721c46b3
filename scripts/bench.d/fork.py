"""Measure what fifty forks of one snapshot cost, by the size of the snapshot.

    python scripts/bench.d/fork.py [--forks 50] [--rounds 3] [MEGABYTES …]

Freezing and the first repair happen once for a snapshot and grow with it; they are told apart.
What is compared between the sizes is the time of all forks together: it should grow with their
number and not with the megabytes. Each fork is a confined process that gets one scripted reply.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from forkrun import Job, Runner, Snapshot
from forkrun.snapshot.repair import repaired

SIZES_MB = (0.1, 1.0, 10.0, 30.0)


class Row(NamedTuple):
    """One size: seconds to freeze and to repair once, and of all forks in each round."""

    megabytes: float
    freeze_s: float
    repair_s: float
    forks_s: list[float]

    @property
    def median_s(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.forks_s)


def main() -> None:
    """Measure, and print a table and the ratio of the largest to the smallest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--forks", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("megabytes", type=float, nargs="*", default=SIZES_MB)
    options = parser.parse_args()
    rows = measure(options.megabytes, forks=options.forks, rounds=options.rounds)
    print(f"| snapshot, MB | freeze, ms | repair, ms | {options.forks} forks, s | spread, s |")
    print("|---|---|---|---|---|")
    for row in rows:
        spread = f"{min(row.forks_s):.2f} to {max(row.forks_s):.2f}"
        once = f"{row.freeze_s * 1e3:.0f} | {row.repair_s * 1e3:.0f}"
        print(f"| {row.megabytes:g} | {once} | {row.median_s:.2f} | {spread} |")
    ratio = rows[-1].median_s / rows[0].median_s
    growth = rows[-1].megabytes / rows[0].megabytes
    print(f"\nThe largest takes {ratio:.2f} times as long as the smallest, at {growth:g} the size.")


def measure(megabytes: Sequence[float], *, forks: int, rounds: int) -> list[Row]:
    """Give a row for each size; rounds of all sizes take turns, so that drift hits all alike."""
    snapshots, rows = [], []
    for size in megabytes:
        text = json.dumps(parent(size)).encode()
        snapshot, freeze_s = timed(lambda text=text: Snapshot.from_json(text))  # type: ignore[misc]
        _, repair_s = timed(lambda snapshot=snapshot: repaired(snapshot))  # type: ignore[misc]
        snapshots.append(snapshot)
        rows.append(Row(size, freeze_s, repair_s, []))
    with tempfile.TemporaryDirectory() as folder:
        workspace, script = os.path.join(folder, "workspace"), os.path.join(folder, "script")
        os.mkdir(workspace)
        with open(script, "w") as file:
            file.write('{"text": "done"}\n')
        environ = {"PATH": os.environ["PATH"], "HOME": folder, "XDG_STATE_HOME": folder + "/state"}
        for number in range(rounds + 1):
            for snapshot, row in zip(snapshots, rows, strict=True):
                job = Job(prompt="Say done.", model=f"script:{script}", cwd=workspace)
                took_s = asyncio.run(all_forks(job, snapshot, environ, count=forks))
                if number:  # the first round warms up
                    row.forks_s.append(took_s)
    return rows


async def all_forks(job: Job, snapshot: Snapshot, environ: dict[str, str], *, count: int) -> float:
    """Run so many forks at once; give the seconds until the last has ended."""
    async with Runner(environ=environ) as runner:
        began = time.perf_counter()
        results = await asyncio.gather(*(runner.run(job, snapshot=snapshot) for _ in range(count)))
        took_s = time.perf_counter() - began
    assert [result.stop_reason for result in results] == ["completed"] * count
    return took_s


def parent(megabytes: float) -> dict[str, Any]:
    """Give a request of about this size: calls with results of 4,000 characters."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    for turn in range(int(megabytes * 1e6 / 4_700)):
        call = {"type": "tool_use", "id": f"t{turn}", "name": "bash", "input": {"command": "ls"}}
        found = {"type": "tool_result", "tool_use_id": f"t{turn}", "content": 'line "x"\n' * 400}
        messages += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [found]}]
    tools = [{"name": "bash", "input_schema": {"type": "object"}}]
    return {"model": "m", "max_tokens": 100, "tools": tools, "messages": messages}


def timed(act: Any) -> tuple[Any, float]:
    """Give what a call returns, and the seconds that it took."""
    began = time.perf_counter()
    done = act()
    return done, time.perf_counter() - began


if __name__ == "__main__":
    main()
