"""Starts the workers of one `Runner`: each as a fresh interpreter, or as a fork of a zygote."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Literal

from forkrun.starting import Child, Early, package_folders, start_fresh, worker_argv
from forkrun_sandbox.spec import Spec

Start = Literal["warm", "exec"]


class Launcher:
    """Owns what makes a start quick: a zygote, or one child that was started ahead of time."""

    def __init__(self, *, environ: Mapping[str, str], early: Early | None = None) -> None:
        """`environ` is that of the workers; `early` a first one, which has been started already."""
        self._environ = dict(environ)
        self._early = early

    async def __aenter__(self) -> Launcher:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass

    async def start(self, spec: Spec) -> Child:
        """Start a worker for a sandbox of this spec. Raises ForkrunError."""
        if spec.tier == "bwrap":
            return start_fresh(self._environ, argv=lambda *fds: _in_bwrap(spec, worker_argv(*fds)))
        if self._early and (child := self._early.take()):
            return child
        return start_fresh(self._environ)


def _in_bwrap(spec: Spec, argv: list[str]) -> list[str]:
    from forkrun_sandbox.bwrap import bwrap_argv

    return bwrap_argv(spec, argv, own=(sys.prefix, sys.base_prefix, *package_folders()))
