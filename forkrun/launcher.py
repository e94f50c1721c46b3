"""Starts the workers of one `Runner`: each as a fresh interpreter, or as a fork of a zygote."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Literal

from forkrun.starting import Child, Early, package_folders, start_fresh, worker_argv
from forkrun.zygote import Zygote, ZygoteGone
from forkrun_sandbox.fault import SandboxFault
from forkrun_sandbox.identity import shape_of
from forkrun_sandbox.spec import Spec

Start = Literal["warm", "exec"]


class Launcher:
    """Owns what makes a start quick: a zygote, or one child that was started ahead of time."""

    def __init__(
        self, *, environ: Mapping[str, str], start: Start, early: Early | None = None
    ) -> None:
        """`environ` is that of the workers; `early` a first one, which has been started already."""
        self._environ = dict(environ)
        self._is_warm = start == "warm" and sys.platform == "linux"
        self._early = early
        self._zygote: Zygote | None = None
        self._alive = 0
        self._look_again_at = 8
        self._ending: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Launcher:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._zygote is not None:
            self._retire(self._zygote)
            self._zygote = None
        await asyncio.gather(*self._ending)

    def warm_up(self) -> None:
        """Begin to make starts quick, without waiting for it."""
        if self._is_warm:
            self._living()

    @contextlib.contextmanager
    def room_for_one(self) -> Iterator[None]:
        """Count one more run as long as the block lasts, before anything is opened for it.

        Raises ForkrunError where the machine has no room for it.
        """
        if self._alive >= self._look_again_at:
            from forkrun.room import check_room

            self._look_again_at = check_room(alive=self._alive)
        self._alive += 1
        try:
            yield
        finally:
            self._alive -= 1

    async def start(self, spec: Spec) -> Child:
        """Start a worker for a sandbox of this spec. Raises ForkrunError."""
        if spec.tier == "bwrap":
            from forkrun_sandbox.bwrap import popen_ids

            return start_fresh(
                self._environ,
                argv=lambda *fds: _in_bwrap(spec, worker_argv(*fds)),
                ids=popen_ids(spec),
            )
        if self._early and (child := self._early.take()):
            return child
        if not self._is_warm:
            return start_fresh(self._environ)
        shape = None
        if spec.tier == "full" and spec.root is None:
            with contextlib.suppress(SandboxFault):  # the child will say it
                shape = shape_of(spec)
        try:
            return await self._living().start(shape)
        except ZygoteGone:
            return await self._living().start(shape)

    def _living(self) -> Zygote:
        """Give a zygote that lives, as far as is known."""
        if self._zygote is None or self._zygote.is_gone:
            if self._zygote is not None:
                self._retire(self._zygote)
            self._zygote = Zygote(self._environ)
        return self._zygote

    def _retire(self, zygote: Zygote) -> None:
        ending = asyncio.ensure_future(zygote.close())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)


def _in_bwrap(spec: Spec, argv: list[str]) -> list[str]:
    from forkrun_sandbox.bwrap import bwrap_argv

    return bwrap_argv(spec, argv, own=(sys.prefix, sys.base_prefix, *package_folders()))
