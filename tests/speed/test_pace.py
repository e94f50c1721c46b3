"""Runs of one runner keep pace with the model together, and are refused where there is no room."""

import asyncio
import json
import resource
import time
from pathlib import Path

import pytest
from support_api import program, replies

import forkrun.room
from forkrun import ForkrunError, Job, Limits, Runner
from forkrun.errors import ModelUnavailable
from forkrun.models.base import Heard, Reply, Request, Usage
from forkrun.models.pace import PacedModel
from forkrun.room import DESCRIPTORS_PER_RUN, room

DONE = Reply(
    content=(b'{"type":"text","text":"done"}',), stop_reason="end_turn", usage=Usage(), model="m"
)
REQUEST = Request(params={}, messages=[])


class Counting:
    """Answers after a moment; remembers how many asked at once, and when each did."""

    name = "counting"

    def __init__(self, *, refusals: int = 0, retry_after_s: float = 0.3) -> None:
        self.now = 0
        self.most = 0
        self.asked: list[float] = []
        self.order: list[int] = []
        self._refusals = refusals
        self._retry_after_s = retry_after_s

    async def reply(self, request: Request, heard: Heard) -> Reply:
        self.asked.append(time.monotonic())
        self.order.append(request.number)
        if self._refusals:
            self._refusals -= 1
            raise ModelUnavailable("busy", status=429, retry_after_s=self._retry_after_s)
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.01)
        self.now -= 1
        return DONE

    async def close(self) -> None:
        """Hold nothing."""


def nothing(text: str | None) -> None:
    """Hear nothing."""


def test_no_more_than_the_limit_are_on_their_way() -> None:
    """However many ask, the model sees at most as many as is allowed, in the order they came."""

    async def main() -> None:
        model = Counting()
        paced = PacedModel(model, max_requests=3)
        asked = [Request(params={}, messages=[], number=n) for n in range(20)]
        await asyncio.gather(*(paced.reply(each, nothing) for each in asked))
        assert model.most == 3
        assert model.order == list(range(20))

    asyncio.run(main())


def test_a_retry_after_slows_everybody() -> None:
    """After one answer with Retry-After nobody asks before its time; then all get their reply."""

    async def main() -> None:
        model = Counting(refusals=1)
        paced = PacedModel(model)
        with pytest.raises(ModelUnavailable):
            await paced.reply(REQUEST, nothing)
        told = time.monotonic()
        replies = await asyncio.gather(*(paced.reply(REQUEST, nothing) for _ in range(10)))
        assert len(replies) == 10
        assert min(model.asked[1:]) - told >= 0.29
        assert len({round(at, 3) for at in model.asked[1:]}) > 3  # and not all at once

    asyncio.run(main())


def test_those_who_wait_for_a_turn_are_slowed_too() -> None:
    """A run whose turn comes after the refusal of another one does not ask in the meantime."""

    async def main() -> None:
        model = Counting(refusals=1)
        paced = PacedModel(model, max_requests=1)
        asking = [asyncio.ensure_future(paced.reply(REQUEST, nothing)) for _ in range(5)]
        ended = await asyncio.gather(*asking, return_exceptions=True)
        assert sum(isinstance(each, ModelUnavailable) for each in ended) == 1
        assert model.asked[1] - model.asked[0] >= 0.29

    asyncio.run(main())


def test_runs_of_a_runner_share_what_one_was_told(tmp_path) -> None:
    """Through a runner: eight runs, one refusal, and still every run completes."""
    model = Counting(refusals=1)

    async def main() -> None:
        async with Runner(model=model) as runner:
            job = Job(prompt="go", cwd=str(tmp_path), workspace="live", limits=Limits(retries=2))
            results = await asyncio.gather(*(runner.run(job) for _ in range(8)))
            assert {result.stop_reason for result in results} == {"completed"}

    asyncio.run(main())


def test_the_room_is_what_the_limit_of_open_files_leaves(monkeypatch) -> None:
    """With few descriptors left, they are what bounds, and the number is right within one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))
    try:
        found = room()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert found.bounded_by.startswith("open files")
    assert 0 < found.runs <= 400 // DESCRIPTORS_PER_RUN


def test_a_run_too_many_is_one_clear_error(tmp_path, monkeypatch) -> None:
    """Where there is no room the start is refused, with what would run out and how many live; the
    others go on to their end."""
    monkeypatch.setattr(forkrun.room, "room", lambda **_: forkrun.room.Room(0, "memory"))

    async def main() -> None:
        async with Runner(model=Counting()) as runner:
            job = Job(prompt="go", cwd=str(tmp_path), workspace="live")
            ended = await asyncio.gather(
                *(runner.run(job) for _ in range(12)), return_exceptions=True
            )
            refused = [each for each in ended if isinstance(each, ForkrunError)]
            assert refused
            assert "no room for another run: memory" in str(refused[0])
            assert all(e.stop_reason == "completed" for e in ended if not isinstance(e, Exception))
            assert len(refused) < 12

    asyncio.run(main())


MANY = """
import asyncio, json, resource, sys
from forkrun import ForkrunError, Job, Runner
start, model = sys.argv[1:]
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (160, hard))
job = Job(prompt="go", model=model, cwd="ws")

async def together(runner, count):
    ended = await asyncio.gather(*(runner.run(job) for _ in range(count)), return_exceptions=True)
    refused = [each for each in ended if isinstance(each, ForkrunError)]
    return sum(each.stop_reason == "completed" for each in ended if each not in refused), refused

async def main():
    async with Runner(start=start) as runner:
        completed, refused = await together(runner, 16)
        fitting = int(refused[0].hint.split()[3])
        told = {"message": str(refused[0]), "hint": refused[0].hint, "refused": len(refused)}
        told |= {"completed": completed, "fitting": fitting}
        told["then"] = (await together(runner, fitting))[0]
        told["soft"] = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        told["raised"] = (await together(runner, 16))[0]
    print(json.dumps(told))

asyncio.run(main())
"""


REFUSED_EARLY = """
import asyncio, collections, json, resource, sys
from forkrun import ForkrunError, Job, Runner

async def main():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    async with Runner(start=sys.argv[1]) as runner:
        job = Job(prompt="go", model=sys.argv[2], cwd="ws")
        runs = await asyncio.gather(*(runner.run(job) for _ in range(80)), return_exceptions=True)
    print(json.dumps(collections.Counter(
        each.stop_reason if not isinstance(each, Exception) else type(each).__name__
        for each in runs
    )))

asyncio.run(main())
"""


def test_what_is_begun_at_once_is_refused_before_anything_is_opened(
    start: str, tmp_path: Path
) -> None:
    """Many more than fit, all in the same moment: each completes or is refused in words."""
    (tmp_path / "ws").mkdir()
    model = replies(tmp_path / "s", {"text": "done", "delay_s": 0.5})
    counted = json.loads(program(REFUSED_EARLY, start, model, cwd=tmp_path).stdout)
    assert set(counted) == {"completed", "ForkrunError"}
    assert counted["completed"] >= 10


def test_what_a_refusal_advises_helps(start: str, tmp_path: Path) -> None:
    """Out of open files: as many runs as the hint says do fit, all that were wanted fit once the
    limit is raised as it says, and until then it is what its owner has made it."""
    (tmp_path / "ws").mkdir()
    model = replies(tmp_path / "s", {"text": "done", "delay_s": 0.5})
    told = json.loads(program(MANY, start, model, cwd=tmp_path).stdout)
    assert "open files (ulimit -n) would run out" in told["message"]
    assert "the soft limit of this process, now 160" in told["hint"]
    assert (told["completed"] + told["refused"], told["raised"], told["soft"]) == (16, 16, 160)
    assert told["then"] == told["fitting"] >= 6
