"""Waits for asynchronous work from code that is not, whether or not a loop runs in its thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def wait_for(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run work on a loop of its own and give what it gives.

    Where a loop runs already, in a notebook say, the new one gets a thread. What interrupts the
    wait, Ctrl-C say, first cancels the work and waits for its end.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work())
    return _in_a_thread(work)


def _in_a_thread(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = Future()

    async def main() -> T:
        task = asyncio.current_task()
        assert task is not None
        started.set_result((asyncio.get_running_loop(), task))
        return await work()

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="forkrun") as pool:
        running = pool.submit(lambda: asyncio.run(main()))
        try:
            return running.result()
        except BaseException:
            if not running.done():
                loop, task = started.result()
                with contextlib.suppress(RuntimeError):  # it has just ended
                    loop.call_soon_threadsafe(task.cancel)
            raise
