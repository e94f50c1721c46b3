"""Runs one job for the command line: signals in, the answer out."""

from __future__ import annotations

import asyncio
import gc
import os
import shlex
import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from forkrun.cli import tell
from forkrun.cli.output import JsonOutput, Output, StreamOutput, TextOutput
from forkrun.cli.progress import Progress
from forkrun.errors import ForkrunError, InputError
from forkrun.events import Event
from forkrun.job import Job
from forkrun.result import Result
from forkrun.runner import Runner
from forkrun.starting import Early
from forkrun.tracing import provider_from

if TYPE_CHECKING:
    from forkrun.hooks import Hooks
    from forkrun.models.connections import Connections
    from forkrun.snapshot.freeze import Snapshot

SHOWN = 10
READER_GONE = 128 + signal.SIGPIPE

OUTPUTS: dict[str, type[Output]] = {
    "text": TextOutput,
    "json": JsonOutput,
    "stream-json": StreamOutput,
}


def spawn(
    job: Job,
    *,
    output_format: str,
    verbosity: int,
    snapshot: Snapshot | None = None,
    hooks: Hooks | None = None,
    early: Early | None = None,
    connections: Connections | None = None,
) -> int:
    """Run a job, print what the format asks for, and give the exit code.

    `early` is a worker that has been started already, `connections` those that have been begun.
    """
    output = OUTPUTS[output_format]()
    gc.freeze()  # what is imported stays
    gc.enable()
    with Progress(verbosity=verbosity) as progress:

        def on_event(event: Event) -> None:
            progress.show(event)
            output.take(event)

        result = asyncio.run(
            _run(
                job,
                snapshot,
                hooks=hooks,
                on_event=on_event,
                progress=progress,
                early=early,
                connections=connections,
            )
        )
    if verbosity >= 0 or result.stop_reason != "completed":
        _explain(result, verbosity=verbosity)
    if output.failure:
        tell(f"error: {output.failure}")
    if output.reader_gone:
        return READER_GONE
    return result.exit_code or (ForkrunError.exit_code if output.failure else 0)


def execute(text: bytes, *, early: Early | None = None) -> int:
    """Run the job that this JSON describes, and print its result as one line of JSON."""
    try:
        job = msgspec.json.decode(text, type=Job)
    except msgspec.MsgspecError as error:
        raise InputError(f"the job on stdin is not valid: {error}") from error
    return spawn(job, output_format="json", verbosity=-1, early=early)


async def _run(
    job: Job,
    snapshot: Snapshot | None,
    *,
    hooks: Hooks | None,
    on_event: Any,
    progress: Progress,
    early: Early | None,
    connections: Connections | None,
) -> Result:
    loop = asyncio.get_running_loop()
    with provider_from(os.environ) as (provider, untraced):
        async with Runner(
            start="exec",
            early=early,
            connections=connections,
            hooks=hooks,
            tracer_provider=provider,
        ) as runner:
            run = runner.spawn(job, snapshot=snapshot, on_event=on_event)
            progress.notices = (*run.notices, *([untraced] if untraced else ()))
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(number, partial(run.cancel, signal_number=number))
            result = await run.result()
    for warning in run.warnings:
        tell(f"warning: {warning}")
    return result


def _explain_files(result: Result) -> None:
    """Name what was not committed, and what somebody should look at."""
    from forkrun.workspace.selection import IGNORED

    withheld = [each for each in result.withheld if not each.reason.startswith(IGNORED)]
    for each in withheld[:SHOWN]:
        tell(f"withheld: {each.path} ({each.reason})")
    if len(withheld) > SHOWN:
        tell(f"withheld: {len(withheld) - SHOWN} more, see the result")
    if result.ignored_changes:
        tell(f"not committed, since git ignores them: {result.ignored_changes} changes")
    if flagged := [each.path for each in result.flagged[:SHOWN]]:
        more = ", …" if len(result.flagged) > SHOWN else ""
        tell(f"look at these before anything runs them: {', '.join(flagged)}{more}")


def _explain(result: Result, *, verbosity: int) -> None:
    """Say for people how a run ended, where that is not plain from the summary."""
    if result.stop_reason != "completed":
        limit = f": {result.limit.kind} {result.limit.value:g}" if result.limit else ""
        tell(f"stopped: {result.stop_reason}{limit}")
    if result.error:
        tell(f"error: {result.error.message}")
    for each in result.attempts:
        if each.committed and len(result.attempts) > 1:
            tell(f"attempt {each.number} of {len(result.attempts)} was committed")
    if verbosity >= 0:
        _explain_files(result)
    if result.patch and not result.committed:
        tell(f"the changes are kept: {result.patch}")
        tell(f"hint: forkrun apply {shlex.quote(result.patch)}", prefix="")
    if verbosity > 0:
        cost = "unknown" if result.cost_usd is None else f"${result.cost_usd:.4f}"
        tell(
            f"{result.turns} turns, {result.tool_calls} tool calls, "
            f"{result.usage.total_tokens:,} tokens, cost {cost}, {result.duration_s:.1f} s, "
            f"sandbox {result.sandbox.tier}"
        )
