"""The functions that most callers need; all are thin fronts of `Runner`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Unpack

from forkrun.events import Emit
from forkrun.gate import CanUseTool
from forkrun.hooks import Hooks
from forkrun.job import Job
from forkrun.models.base import Model
from forkrun.options import JobOptions
from forkrun.result import Result
from forkrun.runner import Runner
from forkrun.running import Run
from forkrun.waiting import wait_for

if TYPE_CHECKING:
    from forkrun.snapshot.freeze import Snapshot


async def run(
    prompt: str | Job,
    *,
    model: str | Model | None = None,
    snapshot: Snapshot | None = None,
    environ: Mapping[str, str] | None = None,
    on_event: Emit | None = None,
    can_use_tool: CanUseTool | None = None,
    output_type: type | None = None,
    hooks: Hooks | None = None,
    **options: Unpack[JobOptions],
) -> Result:
    """Run one subagent and return its result.

    `model` is a name ("offline", "script:FILE", a Claude model id) or a `Model`; None is
    $FORKRUN_MODEL, or our default. `snapshot` is the request to fork, without which the subagent
    starts afresh. `environ` holds credentials and the search path, None for `os.environ`.
    `on_event` is called with each event on the event loop, `can_use_tool` before each tool call.
    `output_type` is a msgspec Struct, a dataclass or a pydantic model: `structured_output` of the
    result is then an instance of it, or None. `hooks` are asked before and after calls, and at both
    ends. `options` are the fields of `Job`: `cwd`, `tools`, `limits`, `workspace`, …

    Cancelling the awaiting task ends the child and everything that it started. Raises ForkrunError
    for what cannot be started; how a started run ended stands in `Result.stop_reason`.

    >>> result = await forkrun.run("Where is the version set?", model="script:replies.jsonl")
    >>> result.stop_reason
    'completed'
    """
    async with Runner(model=model, hooks=hooks, environ=environ, start="exec") as runner:
        return await runner.run(
            prompt,
            snapshot=snapshot,
            on_event=on_event,
            can_use_tool=can_use_tool,
            output_type=output_type,
            **options,
        )


@contextlib.asynccontextmanager
async def spawn(
    prompt: str | Job,
    *,
    model: str | Model | None = None,
    snapshot: Snapshot | None = None,
    environ: Mapping[str, str] | None = None,
    on_event: Emit | None = None,
    can_use_tool: CanUseTool | None = None,
    output_type: type | None = None,
    hooks: Hooks | None = None,
    **options: Unpack[JobOptions],
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
        runner.spawn(
            prompt,
            snapshot=snapshot,
            on_event=on_event,
            can_use_tool=can_use_tool,
            output_type=output_type,
            **options,
        ) as started,
    ):
        yield started


def run_sync(
    prompt: str | Job,
    *,
    model: str | Model | None = None,
    snapshot: Snapshot | None = None,
    environ: Mapping[str, str] | None = None,
    on_event: Emit | None = None,
    can_use_tool: CanUseTool | None = None,
    output_type: type | None = None,
    hooks: Hooks | None = None,
    **options: Unpack[JobOptions],
) -> Result:
    """Run one subagent and wait for it; the same as `run`, for code without an event loop.

    Inside a running loop (a notebook, say) the run gets a loop of its own in a thread, where
    `on_event` and `can_use_tool` are then called. Ctrl-C ends the tree before KeyboardInterrupt
    is raised.

    >>> forkrun.run_sync("Where is the version set?", model="script:replies.jsonl").summary
    'In pyproject.toml.'
    """

    async def whole() -> Result:
        return await run(
            prompt,
            model=model,
            snapshot=snapshot,
            environ=environ,
            on_event=on_event,
            can_use_tool=can_use_tool,
            output_type=output_type,
            hooks=hooks,
            **options,
        )

    return wait_for(whole)
