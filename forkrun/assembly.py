"""Assembles the one result of a run, from all who know a part of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from forkrun.costs import total_cost_usd
from forkrun.errors import SandboxError
from forkrun.job import Job
from forkrun.ledger import Ending, Ledger
from forkrun.limits import Limits
from forkrun.nesting import summed, summed_cost
from forkrun.record import Record
from forkrun.result import (
    Cache,
    Failure,
    Resources,
    Result,
    SandboxRecord,
    Subrun,
)
from forkrun.settled import Settled
from forkrun.state import keep_summary
from forkrun.supervisor import Worker

if TYPE_CHECKING:
    from forkrun.opening import Opening
    from forkrun.setup import Setup
    from forkrun.snapshot.freeze import Snapshot


async def assemble(
    ending: Ending,
    *,
    job: Job,
    setup: Setup,
    limits: Limits,
    opening: Opening | None,
    ledger: Ledger,
    subruns: tuple[Subrun, ...],
    sandbox: SandboxRecord,
    settled: Settled,
    worker: Worker,
    record: Record,
) -> Result:
    """Give the result of a run whose child is dead and whose files are settled.

    A summary that had to be cut is kept whole in a file, which the result names. `opening` is None
    where the run has ended before its conversation was opened.
    """
    exited, used = worker.exit, worker.used
    cost_usd = await total_cost_usd(setup.model.name, ledger.replies)
    return Result(
        run_id=record.run_id,
        label=job.label,
        stop_reason=ending.stop_reason,
        limit=ending.limit,
        summary=ending.summary,
        summary_turn=ending.summary_turn,
        summary_file=ending.whole_summary
        and keep_summary(ending.whole_summary, run_id=record.run_id, environ=setup.environ),
        recovered=ending.recovered,
        turns=ledger.turns,
        tool_calls=ledger.tool_calls,
        denials=tuple(ledger.denials),
        changes=settled.changes,
        withheld=settled.withheld,
        flagged=settled.flagged,
        ignored_changes=settled.ignored,
        committed=settled.committed,
        patch=settled.patch,
        structured_output=ending.structured_output,
        model=setup.model.name,
        usage=summed(ledger.usage, subruns),
        own_usage=ledger.usage,
        subruns=subruns,
        cost_usd=summed_cost(cost_usd, subruns),
        cache=await _cache_of(ledger, opening, snapshot=setup.snapshot, job=job),
        repair=opening.repair if opening else None,
        sandbox=sandbox,
        resources=Resources(
            peak_memory_bytes=used.peak_memory_bytes if used else None,
            cpu_s=round(max(exited.cpu_s if exited else 0.0, used.cpu_s if used else 0.0), 3),
            processes=used.processes if used else None,
        ),
        limits=limits,
        duration_s=round(record.elapsed_s, 3),
        exit_signal=exited.signal if exited else None,
        error=ending.error,
    )


def not_begun(
    failure: Failure | None, *, job: Job, setup: Setup, limits: Limits, record: Record
) -> Result:
    """Give the result of a run that could not be confined, or else was cancelled before."""
    return Result(
        run_id=record.run_id,
        label=job.label,
        stop_reason="sandbox_unavailable" if failure else "cancelled",
        summary="",
        model=setup.model.name,
        limits=limits,
        duration_s=round(record.elapsed_s, 3),
        error=failure,
    )


def unavailable(error: SandboxError) -> Failure:
    """Say why a run could not be confined."""
    words = str(error) if error.hint is None else f"{error}\nhint: {error.hint}"
    return Failure(type="sandbox_unavailable", message=words)


async def _cache_of(
    ledger: Ledger, opening: Opening | None, *, snapshot: Snapshot | None, job: Job
) -> Cache:
    """Say from the first reply's usage whether the forked prefix came out of the cache."""
    cache = opening.cache if opening else Cache()
    if snapshot is None or not ledger.replies:
        return cache
    from forkrun.snapshot.estimate import cache_verdict, prefix_tokens

    tokens = await asyncio.to_thread(prefix_tokens, snapshot, dangling=job.dangling)
    verdict = cache_verdict(ledger.replies[0], prefix_tokens=tokens)
    return msgspec.structs.replace(cache, verdict=verdict)
