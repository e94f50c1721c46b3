"""Many runs from one parent: each gets its own answer, none starves, nothing is left."""

import asyncio
import os
import time

import pytest

from forkrun import Job, Runner
from forkrun.models.base import Heard, Reply, Request, Usage
from forkrun.room import room


class Echoing:
    """Answers each run with the number in its prompt, when it is told to go on."""

    name = "echoing"

    def __init__(self) -> None:
        self.waiting = 0
        self.go_on = asyncio.Event()

    async def reply(self, request: Request, heard: Heard) -> Reply:
        self.waiting += 1
        await self.go_on.wait()
        number = bytes(request.messages[0]).partition(b"number ")[2].partition(b".")[0]
        return Reply(
            content=(b'{"type":"text","text":"' + number + b'"}',),
            stop_reason="end_turn",
            usage=Usage(),
            model=self.name,
        )

    async def close(self) -> None:
        """Hold nothing."""


@pytest.mark.parametrize("count", [30, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.timeout(300)
def test_so_many_wait_at_once_and_each_gets_its_own_answer(count: int, tmp_path) -> None:
    """All are alive and confined at the same time; each has its own summary; while they wait, the
    parent does next to nothing; the descriptors of all of them are given back."""
    if (fitting := room()).runs < count:
        pytest.skip(f"{fitting.runs} runs fit here, by {fitting.bounded_by}")

    async def main() -> None:
        model = Echoing()
        async with Runner(model=model) as runner:
            before = len(os.listdir("/proc/self/fd"))
            runs = [
                asyncio.ensure_future(
                    runner.run(Job(prompt=f"Your number {n}.", cwd=str(tmp_path)))
                )
                for n in range(count)
            ]
            while model.waiting < count:
                await asyncio.sleep(0.02)
                if any(run.done() for run in runs):
                    model.go_on.set()
                    raise AssertionError([r.result().error for r in runs if r.done()][:1])
            used_s = time.process_time()
            await asyncio.sleep(1)
            used_s = time.process_time() - used_s
            model.go_on.set()
            results = await asyncio.gather(*runs)
            assert [result.summary for result in results] == [str(n) for n in range(count)]
            assert {result.sandbox.tier for result in results} == {"full"}
            assert used_s < 0.5
            assert len(os.listdir("/proc/self/fd")) <= before + 1

    asyncio.run(main())


def test_a_parent_with_many_descriptors_can_start_a_child(start, tmp_path) -> None:
    """Descriptors with numbers above 1023, which select(2) does not know, are like any other."""
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]

    async def main() -> None:
        model = Echoing()
        model.go_on.set()
        async with Runner(model=model, start=start) as runner:
            result = await runner.run(Job(prompt="Your number 7.", cwd=str(tmp_path)))
            assert (result.stop_reason, result.summary) == ("completed", "7"), result.error

    try:
        asyncio.run(main())
    finally:
        for descriptor in held:
            os.close(descriptor)
