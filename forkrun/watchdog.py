"""Watches a run: which of its ends comes first, and whether anything is still heard of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from forkrun.endings import after_limit, out_of_time
from forkrun.ledger import Ending, Ledger
from forkrun.limits import Limits
from forkrun.nesting import Nest
from forkrun.result import LimitHit
from forkrun.supervisor import Worker
from forkrun.transaction import Transaction


class Watchdog:
    """Ends the wait for a run of which nothing is heard; whoever hears something says so."""

    def __init__(self, timeout_s: float, *, nest: Nest) -> None:
        self._timeout_s = timeout_s
        self._nest = nest
        self._last_sign = time.monotonic()

    def heard(self, *, silent_for_s: float = 0.0) -> None:
        """Take note of a sign of life, after which nothing need be heard for so many seconds."""
        self._last_sign = time.monotonic() + silent_for_s

    async def until_idle(self) -> None:
        """Return when nothing has been heard of model and tools for as long as is allowed."""
        while (left := self._last_sign + self._timeout_s - time.monotonic()) > 0:
            await asyncio.sleep(left)
            if self._nest.running:  # a nested run has an idle timeout of its own
                self.heard()


async def first_end(
    serving: Coroutine[Any, Any, Ending],
    *,
    ledger: Ledger,
    limits: Limits,
    deadline: float,
    watchdog: Watchdog,
    cancelled: asyncio.Event,
    worker: Worker,
    transaction: Transaction | None,
) -> Ending:
    """Wait for the end that comes first: the child's, a cancel, a bound, silence, the time.

    `deadline` is an instant of `time.monotonic`. Nothing that was waited for goes on afterwards.
    """
    loop = asyncio.get_running_loop()
    serve = loop.create_task(serving)
    cancel = loop.create_task(cancelled.wait())
    limit = loop.create_task(_until_limit(worker, transaction, limits))
    idle = loop.create_task(watchdog.until_idle())
    tasks = (serve, cancel, limit, idle)
    try:
        await asyncio.wait(
            tasks, timeout=deadline - time.monotonic(), return_when=asyncio.FIRST_COMPLETED
        )
        if serve.done():
            return serve.result()
        if cancel.done():
            return ledger.stand_in("cancelled", "the run was cancelled")
        if limit.done():
            return after_limit(ledger, limit.result())
        return out_of_time(ledger, limits, is_idle=idle.done())
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _until_limit(worker: Worker, transaction: Transaction | None, limits: Limits) -> LimitHit:
    """Return when the processes, or a copy of the workspace, have met a bound."""
    if transaction is None or transaction.form != "copy":
        return await worker.until_limit(limits)
    tasks = [
        asyncio.ensure_future(worker.until_limit(limits)),
        asyncio.ensure_future(transaction.until_full()),
    ]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for task in tasks:
            task.cancel()
