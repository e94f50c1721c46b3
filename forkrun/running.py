"""One run of one job: opens what it needs, watches it, and makes its one result.

    job ─▶ place, conversation ─▶ Worker ─▶ Broker.serve ─▶ Ending ─▶ Result
                                    └─ beside it: deadline, idle, cancel

However a run ends, there is a result; everything that was opened for it is closed before.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from forkrun.broker import FAULT_CHARS, Broker
from forkrun.confinement import Confinement, Plan, Refused
from forkrun.costs import check_priced, load_prices_soon, total_cost_usd
from forkrun.endings import after_crash, after_files, after_limit, check_end, out_of_time
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
from forkrun.hooks import Hooks, RunHooks
from forkrun.job import Job, workspace_path
from forkrun.ledger import Ending, Ledger
from forkrun.limits import Limits
from forkrun.mcp.opening import open_servers
from forkrun.models.base import Model
from forkrun.nesting import (
    Nest,
    Started,
    TaskInput,
    Tree,
    account,
    nested_job,
    summed,
    summed_cost,
)
from forkrun.opening import Opening, open_conversation
from forkrun.place import Place, open_place
from forkrun.policy import Policy
from forkrun.protocol import Fault, Ready, Start, ToolLimits
from forkrun.record import Record
from forkrun.result import (
    Cache,
    Failure,
    LimitHit,
    MissingLayer,
    Resources,
    Result,
    SandboxRecord,
    StopReason,
    Subrun,
)
from forkrun.state import keep_summary
from forkrun.stream import EventStream
from forkrun.supervisor import Starter, Worker
from forkrun.text import one_line
from forkrun.tracing import Spans
from forkrun.transaction import Act, Judge, Settled
from forkrun.transcript import Transcript
from forkrun_sandbox.spec import Report

if TYPE_CHECKING:
    from forkrun.mcp.servers import Servers
    from forkrun.snapshot.freeze import Snapshot
    from forkrun.structured.shape import Shape
    from forkrun.workspace.commit import Recovery


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
        confinement: Confinement,
        start: Starter,
        recovered: Sequence[Recovery] = (),
        snapshot: Snapshot | None = None,
        can_use_tool: CanUseTool | None = None,
        shape: Shape | None = None,
        hooks: Hooks | None = None,
        tracer: Any = None,
        tree: Tree | None = None,
        depth: int = 0,
        judge: Judge | None = None,
    ) -> None:
        """`tree` is what a nested run shares with its parent, and `depth` how deep it is nested.
        `judge` settles the files of a run that is one of several attempts.

        Raises InputError for rules that cannot be meant.
        """
        self.run_id = f"run_{os.urandom(8).hex()}"
        self._job = job
        self._limits = job.limits
        self._snapshot = snapshot
        self._shape = shape
        self._model = model
        self._environ = environ
        self._confinement = confinement
        self._start = start
        self._recovered = recovered
        self._nest = Nest(tree or Tree(job.limits), depth=depth, start=self._start_task)
        self._hooks = hooks
        self._tracer = tracer
        self._spans = Spans(
            tracer, run_id=self.run_id, label=job.label, model=model.name, environ=environ
        )
        self._ledger = Ledger()
        self._ended: Result | None = None
        self.warnings: tuple[str, ...] = ()  # what went wrong beside the run, once it has ended
        self._policy = Policy.parse(allow=job.allow, deny=job.deny, parents=job.parents)
        self._judge = judge
        self._can_use_tool = can_use_tool
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
        unknown = self._hooks.unknown if self._hooks else ()
        hooks = (
            [f"there are no hooks of these events here: {', '.join(unknown)}"] if unknown else []
        )
        return (*([notice] if notice else []), *self._policy.warnings, *hooks)

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
            with self._spans.run():
                return await self._opened()
        finally:
            if self._stream is not None:
                self._stream.close()

    async def _opened(self) -> Result:
        """Open what the job needs, run in it to the end, and tell the result as the last event."""
        job = self._job
        if job.limits.max_budget_usd is not None:
            await check_priced(self._model.name)
        of_attempts = job.check is not None  # each has its own
        workspace = workspace_path(job, self._environ)
        path = None if of_attempts else job.transcript
        with Transcript(path, workspace=workspace) as transcript:
            record = Record(self.run_id, emit=self._emit, transcript=transcript)
            record.line("run", run_id=self.run_id, prompt=job.prompt, model=self._model.name)
            for each in self._recovered:
                record.event(RecoveredEvent, outcome=each.outcome, paths=each.paths)
            if job.check is None:
                result = await self._confined(record)
            else:
                result = await self._attempted(record)
            record.line("end", result=result)
        self.warnings = tuple([transcript.failure] if transcript.failure else [])
        self._ended = result
        self._spans.ended(result)
        self._emit(ResultEvent(run_id=self.run_id, t=result.duration_s, result=result))
        return self._typed(result)

    def _typed(self, result: Result) -> Result:
        """Give what the caller gets: with an instance of the type that was asked for."""
        if self._shape is None or result.structured_output is None or self._judge is not None:
            return result
        value = self._shape.converted(result.structured_output)
        return msgspec.structs.replace(result, structured_output=value)

    async def _attempted(self, record: Record) -> Result:
        """Run the attempts of this job, each of them a run of its own."""
        from forkrun.attempts import run_attempts

        self._begun.set()
        result = await run_attempts(
            self._job,
            start=lambda job, emit, judge: self._run_of(job, emit=emit, judge=judge),
            run_job=lambda job, model, emit: self._run_of(job, emit=emit, model=model).result(),
            record=record,
            emit=self._emit,
            cancelled=self._cancelled.wait(),
        )
        return msgspec.structs.replace(
            result, exit_signal=self._cancel_signal or result.exit_signal
        )

    def _run_of(
        self, job: Job, *, emit: Emit, model: Model | None = None, judge: Judge | None = None
    ) -> Run:
        """Make a run that shares all with this one but its job; with another model, a fresh one."""
        return Run(
            job,
            model=model or self._model,
            environ=self._environ,
            emit=emit,
            confinement=self._confinement,
            start=self._start,
            snapshot=None if model else self._snapshot,
            can_use_tool=None if model else self._can_use_tool,
            shape=None if model else self._shape,
            hooks=None if model else self._hooks,
            tracer=self._tracer,
            depth=self._nest.depth,
            judge=judge,
        )

    async def _confined(self, record: Record) -> Result:
        """Run in the best tier that is allowed and can be had here."""
        level = self._job.sandbox
        try:
            plan = self._confinement.plan(level)
            while True:
                try:
                    return await self._planned(plan, record)
                except Refused as refused:
                    plan = await self._confinement.after(refused, plan, level=level)
        except SandboxError as error:
            return self._unconfined(error, record)

    async def _planned(self, plan: Plan, record: Record) -> Result:
        opening = partial(
            open_place,
            self._job,
            tier=plan.tier,
            form=plan.form,
            run_id=self.run_id,
            policy=self._policy,
            environ=self._environ,
        )
        with contextlib.ExitStack() as stack:
            place: Place | None
            if plan.form == "copy" and self._job.has_view:
                from forkrun.copying import Copying

                copying = Copying(record, is_cancelled=self._cancelled.is_set)
                place = await copying.enter(stack, opening(progress=copying.progress), self.cancel)
            else:
                place = stack.enter_context(opening())
            if place is None:
                return self._not_begun("cancelled", record)
            return await self._run_in(place, plan, record)

    async def _run_in(self, place: Place, plan: Plan, record: Record) -> Result:
        deadline = self._nest.deadline(self._limits.timeout_s)
        hooks = RunHooks(
            self._hooks,
            run_id=self.run_id,
            label=self._job.label,
            workspace=place.workspace,
            environ=self._environ,
            transcript=self._job.transcript,
            record=record,
        )
        opening = await open_conversation(
            await self._started_by(hooks),
            model=self._model.name,
            workspace=place.workspace,
            policy=self._policy,
            snapshot=self._snapshot,
            shape=self._shape,
            offers_task=self._nest.offers_task,
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
            nest=self._nest,
            hooks=hooks,
            spans=self._spans,
        )
        self._ledger = broker.ledger
        worker = Worker(spec=place.spec, start=self._start, grace_s=self._limits.grace_s)
        async with worker:
            self._worker = worker
            self._begun.set()
            ending = await self._watched(
                self._serve(worker, broker, place, plan, record),
                worker,
                broker,
                place,
                deadline=deadline,
            )
        if ending.stop_reason != "completed" or ending.recovered:
            await hooks.after_end(ending.stop_reason, ending.summary)
        settled = await self._settle(ending, place, record)
        return await self._assemble(ending, broker, record, settled=settled, worker=worker)

    async def _started_by(self, hooks: RunHooks) -> Job:
        """Give the job with what hooks add to its prompt; a cancel does not wait for them."""
        adding = asyncio.ensure_future(hooks.before_start(self._job.prompt))
        cancel = asyncio.ensure_future(self._cancelled.wait())
        try:
            await asyncio.wait({adding, cancel}, return_when=asyncio.FIRST_COMPLETED)
            prompt = adding.result() if adding.done() else self._job.prompt
        finally:
            adding.cancel()
            cancel.cancel()
            await asyncio.gather(adding, cancel, return_exceptions=True)
        return msgspec.structs.replace(self._job, prompt=prompt)

    def _start_task(self, task: TaskInput, tool_use_id: str) -> Started:
        """Make the run of a task that the model of this run asks for."""
        job = nested_job(
            task,
            self._job,
            tools=self._opening.tools,
            rules=self._policy.layers,
            timeout_s=self._nest.remaining_s(self._job.limits.timeout_s),
        )
        run = Run(
            job,
            model=self._model,
            environ=self._environ,
            emit=_unheard,
            confinement=self._confinement,
            start=self._start,
            can_use_tool=self._can_use_tool,
            hooks=self._hooks,
            tracer=self._tracer,
            tree=self._nest.tree,
            depth=self._nest.depth + 1,
        )
        return Started(result=run.result, account=partial(run.account, tool_use_id))

    async def account(self, tool_use_id: str) -> Subrun:
        """Give the account of this run as one that another has started, ended or not."""
        return account(
            tool_use_id,
            run_id=self.run_id,
            label=self._job.label,
            depth=self._nest.depth,
            ledger=self._ledger,
            cost_usd=await total_cost_usd(self._model.name, self._ledger.replies),
            subruns=await self._nest.subruns(),
            ended=self._ended,
        )

    async def _settle(self, ending: Ending, place: Place, record: Record) -> Settled:
        """Commit, keep or discard what was changed; even a cancelled task waits for that."""
        transaction = place.transaction
        if transaction is None:
            return Settled()

        async def settle(act: Act) -> Settled:
            return await asyncio.to_thread(transaction.settle, self._job, self._policy, act=act)

        if self._judge is not None:
            settled = await self._judge(ending, transaction, settle)
        else:
            settled = await settle("commit" if ending.stop_reason == "completed" else "keep")
        for each in settled.recovered:
            record.event(RecoveredEvent, outcome=each.outcome, paths=each.paths)
        if settled.diffstat:
            record.event(SettledEvent, diffstat=settled.diffstat)
        return settled

    async def _serve(
        self, worker: Worker, broker: Broker, place: Place, plan: Plan, record: Record
    ) -> Ending:
        """Have the child confined, serve it to its end, hold what it wrote against the ledger."""
        try:
            async with open_servers(self._job, environ=self._environ) as servers:
                self._sandbox = await self._confine(worker, place, plan, servers)
                further = await broker.offer(servers, worker) if servers else ()
                record.event(
                    StartedEvent,
                    model=self._model.name,
                    limits=self._limits,
                    tools=(*self._opening.tools, *further),
                    sandbox=self._sandbox,
                )
                ending = await broker.serve(worker)
                await check_end(worker, ending)
                return ending
        except ChannelError as error:
            return await after_crash(worker, broker.ledger, self._limits, error=error)

    async def _confine(
        self, worker: Worker, place: Place, plan: Plan, servers: Servers | None
    ) -> SandboxRecord:
        await worker.send(
            Start(
                run_id=self.run_id,
                workspace=place.workspace,
                tools=self._opening.tools,
                limits=ToolLimits(tool_timeout_s=self._limits.tool_timeout_s),
                rules=self._policy.layers,
                env={**place.command_environ, **self._spans.environ()},
                sandbox=worker.spec,
                servers=servers.programs if servers else (),
            )
        )
        message = await worker.receive()
        if isinstance(message, Ready):
            if place.transaction and (upper := worker.receive_upper()) is not None:
                place.transaction.take_upper(upper)
            bounded = worker.confined()
            return _sandbox_record(
                message.report, plan, bounded=bounded, unbounded=worker.unbounded()
            )
        if isinstance(message, Fault) and message.kind == "sandbox":
            raise Refused(
                one_line(message.message, width=FAULT_CHARS),
                layer=one_line(message.layer, width=100),
            )
        raise ChannelError(
            f"the child is not ready: {one_line(str(message)[:FAULT_CHARS], width=FAULT_CHARS)}"
        )

    async def _watched(
        self,
        serving: Coroutine[Any, Any, Ending],
        worker: Worker,
        broker: Broker,
        place: Place,
        *,
        deadline: float,
    ) -> Ending:
        """Wait for the end that comes first: the child's, a cancel, a bound, silence, the time."""
        loop = asyncio.get_running_loop()
        serve = loop.create_task(serving)
        cancel = loop.create_task(self._cancelled.wait())
        limit = loop.create_task(_until_limit(worker, place, self._limits))
        idle = loop.create_task(broker.until_idle())
        tasks = (serve, cancel, limit, idle)
        prices = load_prices_soon(self._model.name)
        try:
            await asyncio.wait(
                tasks, timeout=deadline - time.monotonic(), return_when=asyncio.FIRST_COMPLETED
            )
            if serve.done():
                return serve.result()
            if cancel.done():
                return broker.ledger.stand_in("cancelled", "the run was cancelled")
            if limit.done():
                return after_limit(broker.ledger, limit.result())
            return out_of_time(broker.ledger, self._limits, is_idle=idle.done())
        finally:
            if prices is not None:
                prices.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _unconfined(self, error: SandboxError, record: Record) -> Result:
        """Give the result of a run that was never begun, since it could not be confined."""
        words = str(error) if error.hint is None else f"{error}\nhint: {error.hint}"
        failure = Failure(type="sandbox_unavailable", message=words)
        return self._not_begun("sandbox_unavailable", record, error=failure)

    def _not_begun(
        self, stop_reason: StopReason, record: Record, *, error: Failure | None = None
    ) -> Result:
        return Result(
            run_id=self.run_id,
            label=self._job.label,
            stop_reason=stop_reason,
            summary="",
            model=self._model.name,
            limits=self._limits,
            duration_s=round(record.elapsed_s, 3),
            exit_signal=self._cancel_signal,
            error=error,
        )

    async def _assemble(
        self,
        ending: Ending,
        broker: Broker,
        record: Record,
        *,
        settled: Settled,
        worker: Worker,
    ) -> Result:
        ledger, ending = broker.ledger, after_files(settled, ending).fitted()
        exited, used = worker.exit, worker.used
        subruns = await self._nest.subruns()
        cost_usd = await total_cost_usd(self._model.name, ledger.replies)
        if ending.limit and ending.stop_reason in ("timeout", "idle_timeout", "resource_limit"):
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
            flagged=settled.flagged,
            ignored_changes=settled.ignored,
            committed=settled.committed,
            patch=settled.patch,
            structured_output=ending.structured_output,
            model=self._model.name,
            usage=summed(ledger.usage, subruns),
            own_usage=ledger.usage,
            subruns=subruns,
            cost_usd=summed_cost(cost_usd, subruns),
            cache=await self._cache_of(ledger),
            repair=self._opening.repair,
            sandbox=self._sandbox,
            resources=Resources(
                peak_memory_bytes=used.peak_memory_bytes if used else None,
                cpu_s=round(max(exited.cpu_s if exited else 0.0, used.cpu_s if used else 0.0), 3),
                processes=used.processes if used else None,
            ),
            limits=self._limits,
            duration_s=round(record.elapsed_s, 3),
            exit_signal=self._cancel_signal or (exited.signal if exited else None),
            error=ending.error,
        )

    async def _cache_of(self, ledger: Ledger) -> Cache:
        """Say from the first reply's usage whether the forked prefix came out of the cache."""
        if self._snapshot is None or not ledger.replies:
            return self._opening.cache
        from forkrun.snapshot.estimate import cache_verdict, prefix_tokens

        tokens = await asyncio.to_thread(prefix_tokens, self._snapshot, dangling=self._job.dangling)
        verdict = cache_verdict(ledger.replies[0], prefix_tokens=tokens)
        return msgspec.structs.replace(self._opening.cache, verdict=verdict)


def _unheard(event: Event) -> None:
    """Leave the events of a nested run: the call that started it has its own."""


async def _until_limit(worker: Worker, place: Place, limits: Limits) -> LimitHit:
    """Return when the processes, or a copy of the workspace, have met a bound."""
    if place.transaction is None or place.transaction.view.copy is None:
        return await worker.until_limit(limits)
    tasks = [
        asyncio.ensure_future(worker.until_limit(limits)),
        asyncio.ensure_future(place.transaction.until_full()),
    ]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for task in tasks:
            task.cancel()


def _sandbox_record(
    report: Report,
    plan: Plan,
    *,
    bounded: tuple[str, ...],
    unbounded: tuple[tuple[str, str], ...],
) -> SandboxRecord:
    """Put together what is in force and what is not, from all who know a part of it.

    `unbounded` is what no control group bounds; the child may have another way to.
    """
    record = msgspec.convert(report, SandboxRecord, from_attributes=True)
    missing = dict(plan.missing) | {each.layer: each.reason for each in record.missing}
    for layer, reason in unbounded:
        missing[layer] = f"{missing[layer]}; {reason}" if layer in missing else reason
    enforced = tuple(dict.fromkeys((*record.enforced, *bounded)))
    return msgspec.structs.replace(
        record,
        enforced=enforced,
        missing=tuple(
            MissingLayer(layer=layer, reason=reason)
            for layer, reason in missing.items()
            if layer not in enforced
        ),
    )
