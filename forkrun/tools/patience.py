"""A time limit for work that consists of many small steps, some of which may never end.

A regular expression can backtrack for ages, but lets signal handlers in: a timer ends it.
"""

from __future__ import annotations

import re
import signal
import time
from types import FrameType, TracebackType


class OutOfTime(Exception):
    """The time is over; what was found so far stands."""


class Patience:
    """The time that a search may take; a context manager that holds SIGALRM meanwhile.

    Outside the main thread, where no signal arrives, a single match can take longer.
    """

    def __init__(self, *, limit_s: float) -> None:
        self.limit_s = limit_s
        self._end = time.monotonic() + limit_s
        self._is_matching = False

    def __enter__(self) -> Patience:
        try:
            self._before = signal.signal(signal.SIGALRM, self._ring)
        except ValueError:  # not the main thread
            self._has_timer = False
            return self
        self._has_timer = True
        signal.setitimer(signal.ITIMER_REAL, self.limit_s, 0.05)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._has_timer:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)

    def search(self, pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
        """Search, and raise OutOfTime when the time is over."""
        self.check()
        self._is_matching = True
        try:
            return pattern.search(text)
        finally:
            self._is_matching = False

    def check(self) -> None:
        """Raise OutOfTime when the time is over."""
        if time.monotonic() >= self._end:
            raise OutOfTime

    def _ring(self, number: int, frame: FrameType | None) -> None:
        if self._is_matching and time.monotonic() >= self._end:
            raise OutOfTime
