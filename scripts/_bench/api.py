"""Runs by the Python API, with a model that notes when it is asked."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

from forkrun import Job, Runner
from forkrun.models.base import Heard, Model, Reply, Request, Usage
from forkrun.runner import Start

DONE = b'{"type":"text","text":"done"}'


class Noting:
    """A model that answers `done` at once, and remembers when it was first asked."""

    name = "offline"

    def __init__(self) -> None:
        self.asked_at = 0.0

    async def reply(self, request: Request, heard: Heard) -> Reply:
        self.asked_at = self.asked_at or time.monotonic()
        return Reply(content=(DONE,), stop_reason="end_turn", usage=Usage(), model=self.name)

    async def close(self) -> None:
        """Hold nothing."""


class Bench:
    """An event loop, a workspace and runners that stay open between measurements."""

    def __enter__(self) -> Bench:
        self._stack = contextlib.ExitStack()
        folder = self._stack.enter_context(tempfile.TemporaryDirectory())
        self.workspace = os.path.join(folder, "workspace")
        os.mkdir(self.workspace)
        self.environ = {
            **os.environ,
            "HOME": folder,
            "XDG_STATE_HOME": os.path.join(folder, "state"),
        }
        self.environ.pop("ANTHROPIC_API_KEY", None)
        self.loop = asyncio.Runner()
        self._stack.enter_context(self.loop)
        return self

    def __exit__(self, *details: object) -> None:
        self._stack.close()

    def starts(self) -> dict[str, Callable[[], float]]:
        """Give the measurements of a start, warm and cold, with and without confinement."""
        found = {}
        for start, words in (("warm", "warm"), ("exec", "cold")):
            model = Noting()
            runner = self.runner(model, start=start)
            found[f"{words}: full sandbox and overlay"] = self._once(model, runner)
            found[f"{words}: no sandbox"] = self._once(
                model, runner, sandbox="none", workspace="live", network="host"
            )
        return found

    def runner(self, model: Model, *, start: Start) -> Runner:
        """Open a runner that is closed at the end."""
        runner = Runner(model=model, environ=self.environ, start=start)
        self.loop.run(runner.__aenter__())
        self._stack.callback(lambda: self.loop.run(runner.__aexit__(None, None, None)))
        return runner

    def _once(self, model: Noting, runner: Runner, **fields: Any) -> Callable[[], float]:
        def once() -> float:
            model.asked_at = 0.0
            job = Job(prompt="Say done.", cwd=self.workspace, **fields)
            began = time.monotonic()
            result = self.loop.run(runner.run(job))
            if result.stop_reason != "completed":
                raise RuntimeError(str(result.error))
            return (model.asked_at - began) * 1000

        return once
