"""One run of one job: opens what it needs, watches it, and makes its one result.

    job ─▶ place, conversation ─▶ Worker ─▶ Broker.serve ─▶ Ending ─▶ Result
                                    └─ beside it: deadline, idle, cancel

However a run ends, there is a result; everything that was opened for it is closed before.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import time
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import Any

import msgspec

from forkrun.broker import Broker
from forkrun.costs import check_priced, total_cost_usd
from forkrun.errors import ChannelError, SandboxError, UsageError
from forkrun.events import (
    Emit,
    Event,
    LimitEvent,
    RecoveredEvent,
    ResultEvent,
    SettledEvent,
    StartedEvent,
)
from forkrun.gate import CanUseTool, Gate
from forkrun.job import Job, workspace_path
from forkrun.ledger import Ending, Ledger
from forkrun.models.base import Model
from forkrun.opening import Opening, open_conversation
from forkrun.place import Place, open_place
from forkrun.policy import Policy
from forkrun.protocol import Fault, Ready, Start, ToolLimits
from forkrun.record import Record
from forkrun.result import Cache, Failure, LimitHit, Resources, Result, SandboxRecord
from forkrun.snapshot.estimate import cache_verdict, prefix_tokens
from forkrun.snapshot.freeze import Snapshot
from forkrun.state import keep_summary
from forkrun.stream import EventStream
from forkrun.supervisor import Exit, Worker
from forkrun.text import printable
from forkrun.transaction import Settled, tidy
from forkrun.transcript import Transcript
from forkrun_sandbox.spec import Report

FINISH_GRACE_S = 10.0
CRASH_GRACE_S = 1.0


class Run:
    """One run of one job, and its life: the block starts it, and leaving the block ends its tree.

    Entering waits until the child is started and raises ForkrunError for what cannot be. Leaving
    before the end cancels: `result()` then says "cancelled".

    >>> async with forkrun.spawn("Look around", model="script:sleep.jsonl") as run:
    ...     async for event in run.events():
    ...         if isinstance(event, forkrun.ToolCallEvent):
    ...             run.cancel()
    >>> (await run.result()).stop_reason
    'cancelled'
    """

    def __init__(
        self,
        job: Job,
        *,
        model: Model,
        environ: Mapping[str, str],
        emit: Emit,
        snapshot: Snapshot | None = None,
        can_use_tool: CanUseTool | None = None,
    ) -> None:
        """Raises InputError for rules that cannot be meant."""
        self.run_id = f"run_{secrets.token_hex(8)}"
        self._job = job
        self._limits = job.limits
        self._snapshot = snapshot
        self._model = model
        self._environ = environ
        self._policy = Policy.parse(allow=job.allow, deny=job.deny, parents=job.parents)
        self._gate = Gate(self._policy, can_use_tool=can_use_tool)
        self._watcher = emit
        self._stream: EventStream | None = None
        self._ending: asyncio.Task[Result] | None = None
        self._begun = asyncio.Event()
        self._cancelled = asyncio.Event()
        self._cancel_signal: int | None = None
        self._worker: Worker | None = None
        self._sandbox = SandboxRecord()
        self._opening: Opening

    @property
    def notices(self) -> tuple[str, ...]:
        """What a person should know before the run: about the model, about rules that are wide."""
        notice = getattr(self._model, "notice", None)
        return (*([notice] if notice else []), *self._policy.warnings)

    def _open_place(self) -> contextlib.AbstractContextManager[Place]:
        return open_place(
            self._job,
            tier=self._tier,
            run_id=self.run_id,
            policy=self._policy,
            environ=self._environ,
        )

    @property
    def _tier(self) -> str:
        return "none" if self._job.sandbox == "none" else "full"

    @property
    def pid(self) -> int | None:
        """The process id of the child, once it is started."""
        return self._worker.pid if self._worker else None

    def cancel(self, *, signal_number: int | None = None) -> None:
        """End the run; its result says "cancelled". A second call kills without a grace."""
        if self._cancelled.is_set() and self._worker:
            self._worker.kill()
        self._cancel_signal = signal_number
        self._cancelled.set()

    def events(self) -> EventStream:
        """Give the events as they come, from the first to the result, which is always last.

        Each event is given once. A reader that lags far behind misses pieces of text, and very far
        behind others too, for which a `MissedEvent` then stands: see `forkrun.stream`.
        """
        if self._stream is None:
            raise UsageError("events can be read inside the block: async with … as run")
        return self._stream

    async def result(self) -> Result:
        """Wait for the end and give the result; starts the run where no block has.

        Cancelling the waiting ends a run without a block, and leaves one with a block as it is.
        """
        if self._ending is None:
            try:
                await self._begin()
                return await self.result()
            finally:
                await self.end()
        await asyncio.wait({self._ending})
        return self._ending.result()

    async def __aenter__(self) -> Run:
        self._stream = EventStream()
        try:
            await self._begin()
        except BaseException:
            await self.end()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.end()

    async def end(self) -> None:
        """Cancel the run where it still goes on, and wait until nothing of it is left."""
        interruption = None
        while self._ending and not self._ending.done():
            self.cancel()
            try:
                await asyncio.wait({self._ending})
            except asyncio.CancelledError as error:  # once more: now without a grace
                interruption = error
        if self._ending and not self._ending.cancelled():
            self._ending.exception()  # looked at: who wants it asks for the result
        if interruption:
            raise interruption

    async def _begin(self) -> None:
        """Start, and return when there is a child or an end; raise what keeps it from starting."""
        if self._ending is not None:
            raise UsageError("a run can be started once", hint="spawn another one")
        self._ending = asyncio.ensure_future(self._to_end())
        begun = asyncio.ensure_future(self._begun.wait())
        try:
            await asyncio.wait({self._ending, begun}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            begun.cancel()
        if self._ending.done():
            self._ending.result()

    def _emit(self, event: Event) -> None:
        if self._stream is not None:
            self._stream.push(event)
        self._watcher(event)

    async def _to_end(self) -> Result:
        try:
            return await self._opened()
        finally:
            if self._stream is not None:
                self._stream.close()

    async def _opened(self) -> Result:
        """Open what the job needs, run in it to the end, and tell the result as the last event."""
        job = self._job
        if job.limits.max_budget_usd is not None:
            await check_priced(self._model.name)
        recovered = tidy(
            workspace_path(job, self._environ),
            environ=self._environ,
            keep_days=job.keep_patch_days,
        )
        with (
            self._open_place() as place,
            Transcript(job.transcript) as transcript,
        ):
            record = Record(self.run_id, emit=self._emit, transcript=transcript)
            record.line("run", run_id=self.run_id, prompt=job.prompt, model=self._model.name)
            for each in recovered:
                record.event(RecoveredEvent, outcome=each.outcome, paths=each.paths)
            result = await self._run_in(place, record)
            record.line("end", result=result)
        self._emit(ResultEvent(run_id=self.run_id, t=result.duration_s, result=result))
        return result

    async def _run_in(self, place: Place, record: Record) -> Result:
        deadline = time.monotonic() + self._limits.timeout_s
        opening = open_conversation(
            self._job,
            model=self._model.name,
            workspace=place.workspace,
            policy=self._policy,
            snapshot=self._snapshot,
        )
        self._limits = msgspec.structs.replace(self._limits, max_tokens=opening.max_tokens)
        self._opening = opening
        broker = Broker(
            model=self._model,
            opening=opening,
            gate=self._gate,
            limits=self._limits,
            deadline=deadline,
            record=record,
        )
        worker = Worker(environ=place.worker_environ, grace_s=self._limits.grace_s)
        async with worker:
            self._worker = worker
            self._begun.set()
            ending = await self._watched(
                self._serve(worker, broker, place, record), broker, deadline=deadline
            )
        settled = await self._settle(ending, place, record)
        return await self._assemble(ending, broker, record, settled=settled, used=worker.exit)

    async def _settle(self, ending: Ending, place: Place, record: Record) -> Settled:
        """Commit, keep or discard what was changed; even a cancelled task waits for that."""
        if place.transaction is None:
            return Settled()
        is_completed = ending.stop_reason == "completed"
        settled = await asyncio.to_thread(
            place.transaction.settle, self._job, self._policy, is_completed=is_completed
        )
        if settled.diffstat:
            record.event(SettledEvent, diffstat=settled.diffstat)
        return settled

    async def _serve(self, worker: Worker, broker: Broker, place: Place, record: Record) -> Ending:
        """Have the child confined, serve it to its end, hold what it wrote against the ledger."""
        try:
            self._sandbox = await self._confine(worker, place)
            record.event(
                StartedEvent,
                model=self._model.name,
                limits=self._limits,
                tools=self._opening.tools,
                sandbox=self._sandbox,
            )
            ending = await broker.serve(worker)
            await _check_end(worker, ending)
            return ending
        except SandboxError as error:
            failure = Failure(type="sandbox_unavailable", message=str(error))
            return Ending(stop_reason="sandbox_unavailable", error=failure)
        except ChannelError as error:
            return await _crashed(worker, broker, error)

    async def _confine(self, worker: Worker, place: Place) -> SandboxRecord:
        await worker.send(
            Start(
                run_id=self.run_id,
                workspace=place.workspace,
                tools=self._opening.tools,
                limits=ToolLimits(tool_timeout_s=self._limits.tool_timeout_s),
                rules=self._policy.layers,
                env=place.command_environ,
                sandbox=place.spec,
            )
        )
        message = await worker.receive()
        if isinstance(message, Ready):
            if place.transaction and (upper := worker.receive_upper()) is not None:
                place.transaction.take_upper(upper)
            return _sandbox_record(message.report)
        if isinstance(message, Fault) and message.kind == "sandbox":
            raise SandboxError(message.message)
        raise ChannelError(f"the child did not get ready: {message}")

    async def _watched(
        self, serving: Coroutine[Any, Any, Ending], broker: Broker, *, deadline: float
    ) -> Ending:
        """Wait for the end that comes first: the child's, the deadline, idleness, a cancel."""
        loop = asyncio.get_running_loop()
        serve = loop.create_task(serving)
        idle = loop.create_task(broker.until_idle())
        cancel = loop.create_task(self._cancelled.wait())
        tasks = {serve, idle, cancel}
        try:
            await asyncio.wait(
                tasks, timeout=deadline - time.monotonic(), return_when=asyncio.FIRST_COMPLETED
            )
            if serve.done():
                return serve.result()
            if cancel.done():
                return broker.ledger.stand_in("cancelled", "the run was cancelled")
            return self._out_of_time(broker, idle=idle.done())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _out_of_time(self, broker: Broker, *, idle: bool) -> Ending:
        limits = self._limits
        kind, value = ("idle", limits.idle_timeout_s) if idle else ("wall_clock", limits.timeout_s)
        limit = LimitHit(kind=kind, value=value, used=value)
        why = f"nothing was heard for {value:g} s" if idle else f"the time of {value:g} s was up"
        return broker.ledger.stand_in("idle_timeout" if idle else "timeout", why, limit=limit)

    async def _assemble(
        self,
        ending: Ending,
        broker: Broker,
        record: Record,
        *,
        settled: Settled,
        used: Exit | None,
    ) -> Result:
        ledger, ending = broker.ledger, _after(settled, ending).fitted()
        if ending.limit and ending.stop_reason in ("timeout", "idle_timeout"):
            record.event(LimitEvent, limit=ending.limit)
        return Result(
            run_id=self.run_id,
            label=self._job.label,
            stop_reason=ending.stop_reason,
            limit=ending.limit,
            summary=ending.summary,
            summary_turn=ending.summary_turn,
            summary_file=ending.whole_summary
            and keep_summary(ending.whole_summary, run_id=self.run_id, environ=self._environ),
            recovered=ending.recovered,
            turns=ledger.turns,
            tool_calls=ledger.tool_calls,
            denials=tuple(ledger.denials),
            changes=settled.changes,
            withheld=settled.withheld,
            ignored_changes=settled.ignored,
            committed=settled.committed,
            patch=settled.patch,
            model=self._model.name,
            usage=ledger.usage,
            cost_usd=await total_cost_usd(self._model.name, ledger.replies),
            cache=self._cache_of(ledger),
            repair=self._opening.repair,
            sandbox=self._sandbox,
            resources=Resources(
                peak_memory_bytes=used.peak_memory_bytes if used else None,
                cpu_s=used.cpu_s if used else None,
            ),
            limits=self._limits,
            duration_s=round(record.elapsed_s, 3),
            exit_signal=self._cancel_signal or (used.signal if used else None),
            error=ending.error,
        )

    def _cache_of(self, ledger: Ledger) -> Cache:
        """Say from the first reply's usage whether the forked prefix came out of the cache."""
        if self._snapshot is None or not ledger.replies:
            return self._opening.cache
        tokens = prefix_tokens(self._snapshot, dangling=self._job.dangling)
        verdict = cache_verdict(ledger.replies[0], prefix_tokens=tokens)
        return msgspec.structs.replace(self._opening.cache, verdict=verdict)


def _after(settled: Settled, ending: Ending) -> Ending:
    """Say how the run ended once its files are settled: a commit that failed is no completion."""
    if settled.error is None:
        return ending
    stop_reason = "conflict" if settled.is_conflict else "crashed"
    return msgspec.structs.replace(
        ending,
        stop_reason=stop_reason if ending.stop_reason == "completed" else ending.stop_reason,
        error=ending.error or settled.error,
    )


async def _check_end(worker: Worker, ending: Ending) -> None:
    """Hold the child's exit and stdout against the ledger; raise ChannelError on a difference."""
    try:
        ended = await asyncio.wait_for(worker.wait(), FINISH_GRACE_S)
    except TimeoutError as error:
        raise ChannelError("the worker did not end after its last message") from error
    if ended.status != 0:
        raise ChannelError("the worker failed after its last message")
    if worker.stdout.head != ending.summary.encode():
        raise ChannelError("what the worker wrote to stdout is not the summary")


async def _crashed(worker: Worker, broker: Broker, error: ChannelError) -> Ending:
    """Say how the child ended, with the end of what it wrote to stderr."""
    try:
        ended = await asyncio.wait_for(worker.wait(), CRASH_GRACE_S)
    except TimeoutError:
        how = "it was killed"
    else:
        how = (
            f"it was ended by {signal.Signals(ended.signal).name}"
            if ended.signal
            else f"it ended with status {ended.status}"
        )
    stderr = printable(worker.stderr.tail.decode(errors="replace")).strip()
    message = f"the worker crashed ({error}; {how})" + (f"\n{stderr}" if stderr else "")
    return broker.ledger.stand_in(
        "crashed", "the worker crashed", error=Failure(type="crashed", message=message)
    )


def _sandbox_record(report: Report) -> SandboxRecord:
    return msgspec.convert(report, SandboxRecord, from_attributes=True)
