"""The functions that most callers need; all are thin fronts of `Runner`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Unpack

from forkrun.hooks import Hooks
from forkrun.job import Job
from forkrun.models.base import Model
from forkrun.result import Result
from forkrun.runner import Runner
from forkrun.running import Run
from forkrun.waiting import wait_for

if TYPE_CHECKING:
    from forkrun.options import RunOptions


async def run(
    prompt: str | Job,
    *,
    model: str | Model | None = None,
    hooks: Hooks | None = None,
    environ: Mapping[str, str] | None = None,
    **options: Unpack[RunOptions],
) -> Result:
    """Run one subagent and return its result.

    `model` is a name ("offline", "script:FILE", a Claude model id) or a `Model`; None is
    $FORKRUN_MODEL, or our default. `hooks` are asked before and after calls, and at both ends.
    `environ` holds credentials and the search path, None for `os.environ`. Among the `options`:

    - `snapshot` is the request to fork, without which the subagent starts afresh;
    - `on_event` is called with each event on the event loop, `can_use_tool` before each tool call;
    - `output_type` is a msgspec Struct, a dataclass or a pydantic model: `structured_output` of the
      result is then an instance of it, or None;
    - all others are the fields of `Job`: `cwd`, `tools`, `limits`, `workspace`, …

    Cancelling the awaiting task ends the child and everything that it started. Raises ForkrunError
    for what cannot be started; how a started run ended stands in `Result.stop_reason`.

    >>> result = await forkrun.run("Where is the version set?", model="script:replies.jsonl")
    >>> result.stop_reason
    'completed'
    """
    async with Runner(model=model, hooks=hooks, environ=environ, start="exec") as runner:
        return await runner.run(prompt, **options)


@contextlib.asynccontextmanager
async def spawn(
    prompt: str | Job,
    *,
    model: str | Model | None = None,
    hooks: Hooks | None = None,
    environ: Mapping[str, str] | None = None,
    **options: Unpack[RunOptions],
) -> AsyncIterator[Run]:
    """Start one subagent and give its `Run`; leaving the block ends the whole tree.

    Arguments are those of `run`. Raises ForkrunError, on entering, for what cannot be started.

    >>> async with forkrun.spawn("Look around", model="script:replies.jsonl") as run:
    ...     kinds = [type(event).__name__ async for event in run.events()]
    ...     result = await run.result()
    >>> kinds[0], kinds[-1], result.stop_reason
    ('StartedEvent', 'ResultEvent', 'completed')
    """
    async with (
        Runner(model=model, hooks=hooks, environ=environ, start="exec") as runner,
        runner.spawn(prompt, **options) as started,
    ):
        yield started


def run_sync(
    prompt: str | Job,
    *,
    model: str | Model | None = None,
    hooks: Hooks | None = None,
    environ: Mapping[str, str] | None = None,
    **options: Unpack[RunOptions],
) -> Result:
    """Run one subagent and wait for it; the same as `run`, for code without an event loop.

    Inside a running loop (a notebook, say) the run gets a loop of its own in a thread, where
    `on_event` and `can_use_tool` are then called. Ctrl-C ends the tree before KeyboardInterrupt
    is raised.

    >>> forkrun.run_sync("Where is the version set?", model="script:replies.jsonl").summary
    'In pyproject.toml.'
    """
    return wait_for(lambda: run(prompt, model=model, hooks=hooks, environ=environ, **options))
