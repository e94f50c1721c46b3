"""Let one of several forks of a snapshot go first, so that only one of them pays for the cache.

A provider writes a prefix to its cache when the reply to it begins. Forks that are sent at once
would all miss and all pay; so the first one is sent alone, and the others follow at its first byte.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

from forkrun.snapshot.freeze import Dangling, Snapshot

FRESH_S = 240.0
"""How long a prefix counts as cached; providers keep it for at least 300 s after it was read."""


class Siblings:
    """Forks with one prefix: all at once while it is in the cache, else one of them first."""

    def __init__(self, *, fresh_s: float = FRESH_S) -> None:
        self._fresh_s = fresh_s
        self._cached_until = 0.0
        self._ahead: asyncio.Future[None] | None = None  # done when the one ahead has its byte

    @asynccontextmanager
    async def first_request(self) -> AsyncIterator[Callable[[], None]]:
        """Wait until the first request of a fork may be sent; send it inside.

        Call what this gives at the first byte of the reply: the others go then.
        Where it is not called (the request failed), the next one goes when the block ends.
        """
        while not self._is_open() and self._ahead is not None:
            await asyncio.wait([self._ahead])
        if self._is_open():
            yield self._open
            return
        mine = self._ahead = asyncio.get_running_loop().create_future()
        try:
            yield self._open
        finally:
            self._leave(mine)

    def _is_open(self) -> bool:
        return time.monotonic() < self._cached_until

    def _open(self) -> None:
        self._cached_until = time.monotonic() + self._fresh_s
        if self._ahead is not None:
            self._leave(self._ahead)

    def _leave(self, ahead: asyncio.Future[None]) -> None:
        if not ahead.done():
            ahead.set_result(None)
        if self._ahead is ahead:
            self._ahead = None


def siblings_of(snapshot: Snapshot, *, dangling: Dangling = "placeholder") -> Siblings:
    """Give what all forks of this snapshot on this event loop have in common."""
    found: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Dangling, Siblings]]
    found = snapshot.worked_out.setdefault("siblings", WeakKeyDictionary())
    return found.setdefault(asyncio.get_running_loop(), {}).setdefault(dangling, Siblings())
