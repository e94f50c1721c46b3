"""Has a workspace copied in a thread: the loop goes on, and the copy can be broken off."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from forkrun.events import CopyEvent
from forkrun.record import Record

EVERY_S = 0.1

T = TypeVar("T")


class _BrokenOff(Exception):
    """The run was cancelled while its workspace was being copied."""


class Copying:
    """The copying of one workspace. `progress` is called in the thread that copies."""

    def __init__(self, record: Record, *, is_cancelled: Callable[[], bool]) -> None:
        self._record = record
        self._is_cancelled = is_cancelled
        self._loop = asyncio.get_running_loop()
        self._told_at = 0.0

    async def enter(
        self,
        stack: contextlib.ExitStack,
        opening: AbstractContextManager[T],
        cancel: Callable[[], None],
    ) -> T | None:
        """Enter `opening`, which copies; None where the run was cancelled meanwhile."""
        entering = asyncio.ensure_future(asyncio.to_thread(stack.enter_context, opening))
        interruption = None
        while not entering.done():
            try:
                await asyncio.wait({entering})
            except asyncio.CancelledError as error:  # the thread must end before its stack does
                cancel()
                interruption = error
        if interruption is not None:
            entering.exception()
            raise interruption
        try:
            return entering.result()
        except _BrokenOff:
            return None

    def progress(self, done_bytes: int, total_bytes: int) -> None:
        """Tell how far the copy is, at most ten times a second, and at its start and end."""
        if self._is_cancelled():
            raise _BrokenOff
        now = time.monotonic()
        if 0 < done_bytes < total_bytes and now - self._told_at < EVERY_S:
            return
        self._told_at = now
        self._loop.call_soon_threadsafe(self._tell, done_bytes, total_bytes)

    def _tell(self, done_bytes: int, total_bytes: int) -> None:
        self._record.event(CopyEvent, done_bytes=done_bytes, total_bytes=total_bytes)
