"""Try again, for every model alike: with jitter, a budget and the run's deadline.

A reply that was cut is asked for again from the same conversation: nothing of the half that came
is kept. Only `ModelUnavailable` is tried again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from forkrun.errors import ModelUnavailable

from .base import Heard, Model, Reply, Request


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How often and how long to try.

    `attempts`: tries in all, the first included. `budget_s`: after this time since the first try no
    other begins. A wait is drawn evenly from nothing up to `base_s` doubled with each try, at most
    `cap_s` ("full jitter"); what the server asks to wait comes on top of nothing less than that.
    """

    attempts: int = 6
    budget_s: float = 600.0
    base_s: float = 1.0
    cap_s: float = 60.0


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """A try that failed and will be followed by another. `attempt` counts from 1."""

    attempt: int
    wait_s: float
    error: ModelUnavailable


async def reply_with_retries(
    model: Model,
    request_for_attempt: Callable[[int], Request],
    *,
    policy: RetryPolicy,
    deadline: float,
    heard: Heard,
    on_retry: Callable[[Retry], None],
) -> Reply:
    """Ask until there is a reply, or until asking again makes no sense.

    `request_for_attempt` gives the request of try n, counted from 0 (the numbers of the requests
    must differ). `deadline` is when the run ends, by `time.monotonic`. Raises the last error; where
    a wait would end after the deadline or the budget, at once, and the message says so.
    """
    started = time.monotonic()
    attempt = 0
    while True:
        try:
            return await model.reply(request_for_attempt(attempt), heard)
        except ModelUnavailable as error:
            attempt += 1
            if attempt >= policy.attempts:
                raise _ended(error, f"after {attempt} tries") from error
            wait_s = wait_before(attempt, policy=policy, asked_s=error.retry_after_s)
            _check_wait(
                wait_s, error=error, deadline=deadline, budget_end=started + policy.budget_s
            )
            on_retry(Retry(attempt=attempt, wait_s=wait_s, error=error))
        await asyncio.sleep(wait_s)


def wait_before(attempt: int, *, policy: RetryPolicy, asked_s: float | None) -> float:
    """Draw the wait before a try: at least what the server asked for, and never in step."""
    import random

    spread_s = min(policy.cap_s, policy.base_s * 2.0 ** min(attempt - 1, 30))
    return (asked_s or 0.0) + random.uniform(0.0, spread_s)  # noqa: S311 - no secret hangs on it


def _check_wait(
    wait_s: float, *, error: ModelUnavailable, deadline: float, budget_end: float
) -> None:
    now = time.monotonic()
    end, name = min((deadline, "the end of the run"), (budget_end, "the end of the retry budget"))
    if now + wait_s >= end:
        asked = "" if error.retry_after_s is None else ", as the server asks,"
        left_s = max(0.0, end - now)
        why = f"a wait of {wait_s:.1f} s{asked} is beyond {name} in {left_s:.1f} s"
        raise _ended(error, f"not tried again: {why}") from error


def _ended(error: ModelUnavailable, why: str) -> ModelUnavailable:
    return ModelUnavailable(
        f"{error} ({why})",
        hint=error.hint,
        status=error.status,
        kind=error.kind,
        request_id=error.request_id,
        retry_after_s=error.retry_after_s,
    )
