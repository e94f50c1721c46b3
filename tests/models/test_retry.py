"""Trying again: how long, how often, and when not."""

import asyncio
import time

import msgspec
import pytest
from support_models import request

from forkrun.errors import ModelError, ModelUnavailable
from forkrun.models.base import Reply, Usage
from forkrun.models.retry import RetryPolicy, reply_with_retries, wait_before

QUICK = RetryPolicy(base_s=0.001, cap_s=0.002)
WHOLE = Reply(content=(), stop_reason="end_turn", usage=Usage(), model="m")


class Failing:
    """A model that fails with these errors, then answers."""

    name = "failing"

    def __init__(self, *errors):
        self.errors = list(errors)
        self.numbers: list[int] = []

    async def reply(self, asked, heard):
        self.numbers.append(asked.number)
        if self.errors:
            raise self.errors.pop(0)
        return WHOLE

    async def close(self):
        pass


def run(model, *, policy=QUICK, left_s=60.0):
    """Ask with retries; give the reply (or raise) and the retries that were told of."""
    retries = []

    async def play():
        first = request(number=3)
        return await reply_with_retries(
            model,
            lambda attempt: msgspec.structs.replace(first, number=first.number + attempt),
            policy=policy,
            deadline=time.monotonic() + left_s,
            heard=lambda _: None,
            on_retry=retries.append,
        )

    return asyncio.run(play()), retries


def busy(after_s=None):
    return ModelUnavailable("busy", status=529, kind="overloaded_error", retry_after_s=after_s)


def test_each_try_has_a_number_of_its_own():
    """Tries count on, and each wait is told of."""
    model = Failing(busy(), busy())
    reply, retries = run(model)
    assert reply is WHOLE
    assert model.numbers == [3, 4, 5]
    assert [retry.attempt for retry in retries] == [1, 2]
    assert all(retry.error.status == 529 for retry in retries)


def test_tries_are_bounded():
    """The last error comes out, with its status and the number of tries."""
    with pytest.raises(ModelUnavailable, match=r"busy \(after 6 tries\)") as caught:
        run(Failing(*[busy() for _ in range(10)]))
    assert (caught.value.status, caught.value.kind) == (529, "overloaded_error")


def test_what_trying_again_does_not_help_is_not_tried_again():
    """A refusal comes out at once."""
    model = Failing(ModelError("no", status=400))
    with pytest.raises(ModelError, match=r"^no$"):
        run(model)
    assert model.numbers == [3]


def test_the_wait_is_at_least_what_the_server_asks():
    """And longer by a part that nobody shares."""
    started = time.monotonic()
    _, retries = run(Failing(busy(after_s=0.2)))
    assert time.monotonic() - started >= 0.2
    assert retries[0].wait_s >= 0.2


@pytest.mark.parametrize(
    ("left_s", "budget_s", "end"), [(5, 600, "the run"), (600, 5, "the retry budget")]
)
def test_a_wait_beyond_the_end_ends_at_once(left_s, budget_s, end):
    """The message says which end, and nothing is waited."""
    started = time.monotonic()
    policy = RetryPolicy(base_s=0.001, budget_s=budget_s)
    with pytest.raises(ModelUnavailable, match=f"as the server asks, is beyond the end of {end}"):
        run(Failing(busy(after_s=86400.0)), policy=policy, left_s=left_s)
    assert time.monotonic() - started < 1


def test_waits_are_spread_and_grow():
    """Full jitter: even from nothing to a bound that doubles up to its cap."""
    policy = RetryPolicy(base_s=1, cap_s=8)
    for attempt, most_s in ((1, 1), (2, 2), (4, 8), (9, 8), (5000, 8)):
        waits = [wait_before(attempt, policy=policy, asked_s=None) for _ in range(300)]
        assert min(waits) < most_s * 0.2
        assert most_s * 0.8 < max(waits) <= most_s
    asked = [wait_before(1, policy=policy, asked_s=2.0) for _ in range(300)]
    assert 2 <= min(asked) < 2.2 < 2.8 < max(asked) <= 3


def test_a_cancelled_wait_ends_at_once():
    """Nothing waits on when the run has ended."""

    async def play():
        asking = asyncio.create_task(
            reply_with_retries(
                Failing(busy(after_s=50.0)),
                lambda number: request(number=number),
                policy=RetryPolicy(),
                deadline=time.monotonic() + 600,
                heard=lambda _: None,
                on_retry=lambda _: asking.cancel(),
            )
        )
        with pytest.raises(asyncio.CancelledError):
            await asking

    started = time.monotonic()
    asyncio.run(play())
    assert time.monotonic() - started < 2
