"""A bounded pool of daemon threads for calls that block.

`concurrent.futures` joins its threads when the interpreter ends, so a name server that never
answers would keep a finished run alive. These threads are daemons: whoever waits for a call waits
for a future of its own, and a thread that cannot be freed holds up nobody.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

IDLE_S = 30.0


class Threads:
    """Runs jobs on at most `limit` threads, started when needed and ended when idle."""

    def __init__(self, *, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._jobs: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._threads = 0
        self._idle = 0
        self._closed = False

    def run(self, job: Callable[[], None]) -> None:
        """Run a job as soon as a thread is free. The job must not raise."""
        with self._changed:
            if self._closed:
                raise RuntimeError("the model is closed")
            self._jobs.append(job)
            if self._idle >= len(self._jobs) or self._threads >= self._limit:
                self._changed.notify()
                return
            self._threads += 1
        threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def close(self) -> None:
        """Take no more jobs and end each thread after its job; waits for none."""
        with self._changed:
            self._closed = True
            self._jobs.clear()
            self._changed.notify_all()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            job()
            del job  # a job holds a whole request

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._jobs or self._closed, timeout=IDLE_S)
            self._idle -= 1
            if self._jobs:
                return self._jobs.popleft()
            self._threads -= 1
            return None
