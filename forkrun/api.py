"""The two functions that most callers need; both are thin fronts of `Runner`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from forkrun.events import Emit
from forkrun.job import Job
from forkrun.models.base import Model
from forkrun.result import Result
from forkrun.runner import Runner


async def run(
    prompt: str,
    *,
    model: str | Model | None = None,
    environ: Mapping[str, str] | None = None,
    on_event: Emit | None = None,
    **options: Any,
) -> Result:
    """Run one subagent and return its result.

    `model` is a name ("offline", "script:FILE", a Claude model id) or a `Model`; `options` are the
    fields of `Job`: `cwd`, `tools`, `limits`, `workspace`, … Cancelling the awaiting task ends the
    child and everything that it started. Raises ForkrunError for what cannot be started.

    >>> result = await forkrun.run("Where is the version set?", model="offline", cwd=".")
    >>> result.stop_reason
    'completed'
    """
    async with Runner(model=model, environ=environ) as runner:
        return await runner.run(Job(prompt=prompt, **options), on_event=on_event)


def run_sync(prompt: str, **options: Any) -> Result:
    """Run one subagent and wait for it; the same as `run`, for code without an event loop.

    Inside a running loop (a notebook, say) the run gets a loop of its own in a thread.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(run(prompt, **options))
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="forkrun") as pool:
        return pool.submit(asyncio.run, run(prompt, **options)).result()
