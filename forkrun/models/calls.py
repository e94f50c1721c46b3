"""One blocking call: what the task that waits and the thread that works have in common."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any

from forkrun.errors import ModelUnavailable

from .base import Heard, Reply, Request
from .connections import CONNECT_S, shut_down


class Call:
    """One request on its way: shared by the task that waits and the thread that works."""

    def __init__(self, request: Request, *, heard: Heard) -> None:
        self.request = request
        self._heard = heard
        self._loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[Reply] = self._loop.create_future()
        self._lock = threading.Lock()
        self._sock: socket.socket | None = None
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None

    def check(self) -> None:
        """Raise where nobody waits any more."""
        if self._is_over:
            raise ModelUnavailable("the call was cancelled", kind="cancelled")

    def hold(self, sock: socket.socket | None) -> None:
        """Name the socket that is shut down where the call is cancelled."""
        with self._lock:
            self.check()
            self._sock = sock

    def expect_connection(self, *, to: str) -> None:
        """Give up unless `connected` is called in time: a name server may never answer."""
        self._tell(self._start_timer, to)

    def connected(self) -> None:
        self._tell(self._stop_timer)

    def hear(self, pieces: list[str | None]) -> None:
        self._tell(self._pass_on, pieces)

    def settle(self, outcome: Reply | Exception) -> None:
        """End the call with a reply or an error."""
        with self._lock:
            self._is_over = True
            self._sock = None
        self._tell(self._set, outcome)

    def abort(self) -> None:
        """End the call: on the event loop, when nobody waits for it any more."""
        self._stop_timer()
        with self._lock:
            self._is_over = True
            if self._sock is not None:
                shut_down(self._sock)
                self._sock = None

    def _tell(self, function: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(function, *arguments)

    def _start_timer(self, to: str) -> None:
        if not self.outcome.done():
            self._timer = self._loop.call_later(CONNECT_S, self._give_up, to)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _give_up(self, to: str) -> None:
        self._set(ModelUnavailable(f"no connection to {to} within {CONNECT_S:.0f} s"))

    def _pass_on(self, pieces: list[str | None]) -> None:
        if self.outcome.done():
            return
        try:
            for piece in pieces:
                self._heard(piece)
        except Exception as error:  # noqa: BLE001 - it belongs to the task that waits
            self._set(error)

    def _set(self, outcome: Reply | Exception) -> None:
        if self.outcome.done():
            return
        if isinstance(outcome, Exception):
            self.outcome.set_exception(outcome)
        else:
            self.outcome.set_result(outcome)
