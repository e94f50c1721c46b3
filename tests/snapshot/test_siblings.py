"""Siblings wait for the first one's first byte, and never for one that failed."""

import asyncio

import pytest

from forkrun.snapshot.freeze import Snapshot
from forkrun.snapshot.siblings import Siblings, siblings_of


class Sibling:
    """One fork's first request, played by hand: sent, first byte, end."""

    def __init__(self, gate: Siblings) -> None:
        self.sent, self.byte, self.end = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.task = asyncio.create_task(self.play(gate))

    async def play(self, gate: Siblings) -> None:
        async with gate.first_request() as heard:
            self.sent.set()
            await self.byte.wait()
            heard()
            await self.end.wait()


async def settle():
    """Let every task run until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


def played(scene):
    async def play():
        async with asyncio.timeout(10):
            await scene()

    asyncio.run(play())


def test_siblings_go_at_the_first_byte():
    """Until the first byte one request is out; from then on all are, though the first still runs."""

    async def scene():
        gate = Siblings()
        siblings = [Sibling(gate) for _ in range(4)]
        await settle()
        assert [s.sent.is_set() for s in siblings] == [True, False, False, False]
        siblings[0].byte.set()
        await settle()
        assert all(s.sent.is_set() for s in siblings)
        assert not siblings[0].task.done()
        for sibling in siblings:
            sibling.byte.set()
            sibling.end.set()
            await sibling.task

    played(scene)


@pytest.mark.parametrize("waiting_too", [False, True])
def test_the_next_one_goes_where_the_first_fails(waiting_too):
    """A first request that is cancelled without a byte holds nobody up, a waiting one neither."""

    async def scene():
        gate = Siblings()
        first, second, third = (Sibling(gate) for _ in range(3))
        await settle()
        if waiting_too:
            second.task.cancel()
        first.task.cancel()
        await settle()
        assert second.sent.is_set() is not waiting_too
        assert third.sent.is_set() is waiting_too
        for sibling in (second, third):
            sibling.task.cancel()
        await asyncio.gather(first.task, second.task, third.task, return_exceptions=True)

    played(scene)


def test_a_cache_grows_old():
    """When the cache has gone, one goes first again."""

    async def scene():
        gate = Siblings(fresh_s=0.0)
        first = Sibling(gate)
        await settle()
        first.byte.set()
        first.end.set()
        await first.task
        second, third = Sibling(gate), Sibling(gate)
        await settle()
        assert [second.sent.is_set(), third.sent.is_set()] == [True, False]
        for sibling in (second, third):
            sibling.byte.set()
            sibling.end.set()
            await sibling.task

    played(scene)


def test_forks_of_one_snapshot_share_a_gate():
    """Another snapshot, another end and another event loop have their own."""
    snapshot, other = (Snapshot.of(messages=[{"role": "user", "content": c}]) for c in "ab")

    async def gates():
        return (
            siblings_of(snapshot),
            siblings_of(snapshot),
            siblings_of(snapshot, dangling="cut"),
            siblings_of(other),
        )

    one, same, cut, foreign = asyncio.run(gates())
    assert one is same
    assert len({id(gate) for gate in (one, cut, foreign, *asyncio.run(gates())[:1])}) == 4
