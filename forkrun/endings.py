"""How a run ended, in the eyes of the trusted side: the end as a value, and the words for it.

Ends come from the child (what it claims is held against the ledger), from the model, from bounds,
and from the files.
"""

from __future__ import annotations

import asyncio
import signal

import msgspec

from forkrun.errors import ChannelError, ContextExceeded, ModelError, ModelUnavailable
from forkrun.ledger import Ending, Ledger
from forkrun.limits import Limits
from forkrun.models.base import Reply
from forkrun.result import Failure, LimitHit
from forkrun.settled import Settled
from forkrun.starting import Exit
from forkrun.supervisor import Worker
from forkrun.text import printable

# The kernel signals by a clock of whole ticks, which runs ahead where others take the processor in
# between, and tells by an exact one.
MEASURED = 0.5
FINISH_GRACE_S = 10.0
CRASH_GRACE_S = 1.0


async def check_end(worker: Worker, ending: Ending) -> None:
    """Hold the child's exit and stdout against the ledger; raise ChannelError on a difference."""
    try:
        ended = await asyncio.wait_for(worker.wait(), FINISH_GRACE_S)
    except TimeoutError as error:
        raise ChannelError("the worker did not end after its last message") from error
    # Where the host waits for whatever ends, nobody can tell how it did: then its words must do.
    if ended.signal is not None or ended.status not in (0, None):
        raise ChannelError("the worker failed after its last message")
    if worker.stdout.head != ending.summary.encode():
        raise ChannelError("what the worker wrote to stdout is not the summary")


async def after_crash(
    worker: Worker, ledger: Ledger, limits: Limits, *, error: ChannelError
) -> Ending:
    """Say how a child ended that did not end as it should, with the end of its stderr."""
    try:
        ended = await asyncio.wait_for(worker.wait(), CRASH_GRACE_S)
    except TimeoutError:
        how = "it was killed"
    else:
        how = f"it ended with status {ended.status}"
        if ended.signal:
            how = f"it was ended by {signal.Signals(ended.signal).name}"
    if worker.was_out_of_memory() and limits.memory_bytes:
        used = worker.usage().peak_memory_bytes or limits.memory_bytes
        limit = LimitHit(kind="memory", value=limits.memory_bytes, used=used)
        return after_limit(ledger, limit)
    if hit := _cpu_limit(worker.exit, limits):
        return after_limit(ledger, hit)
    stderr = printable(worker.stderr.tail.decode(errors="replace")).strip()
    message = f"the worker crashed ({error}; {how})" + (f"\n{stderr}" if stderr else "")
    return ledger.stand_in(
        "crashed", "the worker crashed", error=Failure(type="crashed", message=message)
    )


def _cpu_limit(ended: Exit | None, limits: Limits) -> LimitHit | None:
    """Say whether the worker met its bound on CPU time; a command may send it the signal too."""
    if not limits.cpu_s or not ended or ended.signal != signal.SIGXCPU:
        return None
    if ended.cpu_s < limits.cpu_s * MEASURED:
        return None
    return LimitHit(kind="cpu", value=limits.cpu_s, used=round(ended.cpu_s, 3))


def after_limit(ledger: Ledger, limit: LimitHit) -> Ending:
    """End a run whose processes together have met a bound."""
    return ledger.stand_in("resource_limit", f"the bound on {limit.kind} was reached", limit=limit)


def out_of_time(ledger: Ledger, limits: Limits, *, is_idle: bool) -> Ending:
    """End a run that has been silent for too long, or has used up its time."""
    if is_idle:
        limit = LimitHit(kind="idle", value=limits.idle_timeout_s, used=limits.idle_timeout_s)
        why = f"nothing was heard for {limits.idle_timeout_s:g} s"
        return ledger.stand_in("idle_timeout", why, limit=limit)
    limit = LimitHit(kind="wall_clock", value=limits.timeout_s, used=limits.timeout_s)
    return ledger.stand_in("timeout", f"the time of {limits.timeout_s:g} s was up", limit=limit)


class _StopDetails(msgspec.Struct):
    category: str | None = None
    explanation: str | None = None


def after_refusal(reply: Reply, *, turn: int) -> Ending:
    """End a run whose task the model refuses, with what its API says of that."""
    details = msgspec.json.decode(reply.stop_details or b"{}", type=_StopDetails)
    category = f" ({details.category})" if details.category else ""
    explanation = f": {details.explanation}" if details.explanation else ""
    message = f"the model refused this task{category}{explanation}"
    return Ending(
        stop_reason="refused",
        summary=f"[{message}]",
        summary_turn=turn,
        error=Failure(type="refusal", message=message),
    )


def after_model_error(ledger: Ledger, error: ModelError) -> Ending:
    """End a run whose model cannot be asked any more."""
    request = f" (request {error.request_id})" if error.request_id else ""
    failure = Failure(type=error.kind, message=f"{error}{request}")
    if isinstance(error, ContextExceeded):
        return ledger.stand_in("context_exceeded", "the context window is full", error=failure)
    if isinstance(error, ModelUnavailable):
        why = "the model could not be reached"
        return ledger.stand_in("model_unavailable", why, error=failure)
    return ledger.stand_in("model_error", "the request to the model failed", error=failure)


def after_cuts(ledger: Ledger, limit: LimitHit) -> Ending:
    """End a run whose replies are cut again and again, by the bound on the tokens of one reply."""
    why = f"replies were cut at {limit.value:.0f} output tokens"
    return ledger.stand_in("max_total_tokens", why, limit=limit)


def misshapen(text: str, fault: Exception, *, turn: int) -> Ending:
    """End a run whose last answer is not of the form that was asked for."""
    message = f"no answer matched the JSON schema; the last one:\n{fault}"
    return Ending(
        stop_reason="schema_failed",
        summary=text,
        summary_turn=turn,
        error=Failure(type="schema_failed", message=message),
    )


def after_files(settled: Settled, ending: Ending) -> Ending:
    """Say how the run ended once its files are settled: a commit that failed is no completion."""
    if ending.stop_reason != "completed":
        return msgspec.structs.replace(ending, error=ending.error or settled.error)
    if settled.limit:
        return msgspec.structs.replace(ending, stop_reason="resource_limit", limit=settled.limit)
    if settled.error:
        stop_reason = "conflict" if settled.is_conflict else "crashed"
        return msgspec.structs.replace(ending, stop_reason=stop_reason, error=settled.error)
    return ending
