"""How a run's conversation begins: what a large snapshot holds up, and what a fork must not change."""

import asyncio
import time

import msgspec
import pytest
from support_api import replies
from support_snapshots import snapshot_of

import forkrun
from forkrun.errors import UsageError
from forkrun.job import Job
from forkrun.opening import check_fork, open_conversation
from forkrun.policy import Policy


def opened(snapshot, **options):
    job = Job(prompt="x", **options)
    return open_conversation(
        job, model="m", workspace="/w", policy=Policy.parse(), snapshot=snapshot
    )


def test_the_event_loop_goes_on_while_a_snapshot_is_repaired():
    """Thirty megabytes take part of a second, in a thread; ten forks at once share one repair."""
    snapshot = snapshot_of(30_000_000)

    async def count():
        opening = asyncio.gather(*(opened(snapshot) for _ in range(10)))
        ticks = 0
        while not opening.done():
            await asyncio.sleep(0.001)
            ticks += 1
        return ticks, opening.result()

    ticks, openings = asyncio.run(count())
    assert ticks >= 3  # none where the loop does it
    first = openings[0]
    assert all(each.cache == first.cache and each.siblings is first.siblings for each in openings)


def test_another_fork_costs_nothing_by_the_megabyte():
    """What was repaired once is used again: the second opening takes milliseconds."""
    snapshot = snapshot_of(10_000_000)

    async def twice():
        await opened(snapshot)
        began = time.process_time()
        for _ in range(10):
            await opened(snapshot)
        return time.process_time() - began

    assert asyncio.run(twice()) < 0.2


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"system": "x"}, "--system"),
        ({"tools": ("bash",)}, "--tools"),
        ({"model": "claude-x"}, "--model"),
    ],
)
def test_what_would_break_the_cache_is_refused(options, flag):
    """With the reason and the way out; with break_cache, and for models without a cache, taken."""
    with pytest.raises(UsageError, match=flag) as refused:
        check_fork(Job(prompt="x", **options))
    assert "--break-cache" in refused.value.hint
    check_fork(Job(prompt="x", break_cache=True, **options))
    for model in ("offline", "script:x"):
        check_fork(Job(prompt="x", model=model))


def test_a_snapshot_may_stand_in_the_job(tmp_path):
    """As JSON in the job it is forked as the same snapshot is that stands beside one."""
    snapshot = snapshot_of(8_000)
    model = replies(tmp_path / "s", {"text": "FINAL"})
    beside = Job(prompt="x", model=model, cwd=str(tmp_path))
    inside = msgspec.structs.replace(beside, snapshot=msgspec.Raw(snapshot.to_json()))
    results = [forkrun.run_sync(inside), forkrun.run_sync(beside, snapshot=snapshot)]
    assert [result.summary for result in results] == ["FINAL", "FINAL"]
    assert results[0].cache.prefix_sha256 == results[1].cache.prefix_sha256 is not None
    for none in (beside, msgspec.structs.replace(beside, snapshot=None)):
        assert forkrun.run_sync(none).cache.prefix_sha256 is None
