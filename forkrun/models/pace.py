"""The pace of all runs of one `Runner` towards one model.

    run ─▶ turn (first come, first served; so many at once) ─▶ hold (as the server asked) ─▶ model

What one run is told, all know: where the server answers with Retry-After, no run of the same
runner sends a request before that time is over. Then they begin spread out, not all at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from forkrun.errors import ModelUnavailable

from .base import Heard, Model, Reply, Request

MAX_REQUESTS = 1000
SPREAD_S = 5.0


class PacedModel:
    """A model, asked at a pace that all who ask have in common; its owner closes it."""

    def __init__(self, model: Model, *, max_requests: int = MAX_REQUESTS) -> None:
        """`max_requests` is how many may be on their way at the same time."""
        self._model = model
        self._turns = asyncio.Semaphore(max_requests)  # wakes those who wait in their order
        self._held_until = 0.0
        self._spread_s = 0.0
        self.notice: str | None = getattr(model, "notice", None)

    @property
    def name(self) -> str:
        return self._model.name

    async def reply(self, request: Request, heard: Heard) -> Reply:
        async with self._turn():
            try:
                return await self._model.reply(request, heard)
            except ModelUnavailable as error:
                self._hold(error.retry_after_s)
                raise

    async def close(self) -> None:
        """Leave what is wrapped open."""

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Wait for a turn, then until nothing is held back any more; no turn is taken meanwhile."""
        while True:
            await self._until_released()
            async with self._turns:
                if time.monotonic() >= self._held_until:
                    yield
                    return

    async def _until_released(self) -> None:
        if (wait_s := self._held_until - time.monotonic()) > 0:
            import random

            await asyncio.sleep(wait_s + random.uniform(0, self._spread_s))  # noqa: S311

    def _hold(self, asked_s: float | None) -> None:
        if asked_s:
            self._spread_s = min(asked_s, SPREAD_S)
            self._held_until = max(self._held_until, time.monotonic() + asked_s)
