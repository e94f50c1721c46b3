"""One run of one job, as its owner holds it: started, followed, cancelled, and its one result.

spawn ─▶ Run ─▶ Execution ─▶ Result        what is done: `forkrun.execution`
          ├─▶ Run, one for each attempt     where there is something to check
          └─▶ Run, nested                   where the model asks for a task
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

from forkrun.costs import check_priced, total_cost_usd
from forkrun.errors import UsageError
from forkrun.events import Emit, Event, RecoveredEvent, ResultEvent
from forkrun.execution import Execution
from forkrun.job import Job, workspace_path
from forkrun.ledger import Ledger
from forkrun.models.base import Model
from forkrun.nesting import Nest, Started, TaskInput, Tree, account, nested_job
from forkrun.policy import Policy
from forkrun.record import Record
from forkrun.result import Result, Subrun
from forkrun.setup import Setup
from forkrun.stream import EventStream
from forkrun.tracing import Spans
from forkrun.transaction import Judge
from forkrun.transcript import Transcript

if TYPE_CHECKING:
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
        setup: Setup,
        *,
        emit: Emit,
        recovered: Sequence[Recovery] = (),
        tree: Tree | None = None,
        depth: int = 0,
        judge: Judge | None = None,
    ) -> None:
        """`tree` is what a nested run shares with its parent, and `depth` how deep it is nested.
        `judge` settles the files of a run that is one of several attempts.

        Raises InputError for rules that cannot be meant.
        """
        self.run_id = f"run_{os.urandom(8).hex()}"
        self.warnings: tuple[str, ...] = ()  # what went wrong beside the run, once it has ended
        self._job = job
        self._setup = setup
        self._watcher = emit
        self._recovered = recovered
        self._judge = judge
        self._policy = Policy.parse(allow=job.allow, deny=job.deny, parents=job.parents)
        self._nest = Nest(tree or Tree(job.limits), depth=depth, start=self._start_task)
        self._spans = Spans(
            setup.tracer,
            run_id=self.run_id,
            label=job.label,
            model=setup.model.name,
            environ=setup.environ,
        )
        self._stream: EventStream | None = None
        self._ending: asyncio.Task[Result] | None = None
        self._begun = asyncio.Event()
        self._cancelled = asyncio.Event()
        self._cancel_signal: int | None = None
        self._execution: Execution | None = None
        self._ended: Result | None = None

    @property
    def notices(self) -> tuple[str, ...]:
        """What a person should know before the run: about the model, about rules that are wide."""
        notice = getattr(self._setup.model, "notice", None)
        unknown = self._setup.hooks.unknown if self._setup.hooks else ()
        hooks = (
            [f"there are no hooks of these events here: {', '.join(unknown)}"] if unknown else []
        )
        return (*([notice] if notice else []), *self._policy.warnings, *hooks)

    @property
    def pid(self) -> int | None:
        """The process id of the child while it lives; afterwards it may be another's."""
        worker = self._execution and self._execution.worker
        return worker.pid if worker and worker.exit is None else None

    def cancel(self, *, signal_number: int | None = None) -> None:
        """End the run; its result says "cancelled". A second call kills without a grace."""
        if self._cancelled.is_set() and self._execution and self._execution.worker:
            self._execution.worker.kill()
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
        """Open the transcript, do the job to its end, and tell the result as the last event."""
        job, setup = self._job, self._setup
        if job.limits.max_budget_usd is not None:
            await check_priced(setup.model.name)
        of_attempts = job.check is not None  # each has its own
        workspace = workspace_path(job, setup.environ)
        path = None if of_attempts else job.transcript
        with Transcript(path, workspace=workspace) as transcript:
            record = Record(self.run_id, emit=self._emit, transcript=transcript)
            record.line("run", run_id=self.run_id, prompt=job.prompt, model=setup.model.name)
            for each in self._recovered:
                record.event(RecoveredEvent, outcome=each.outcome, paths=each.paths)
            result = await (self._attempted(record) if of_attempts else self._executed(record))
            exit_signal = self._cancel_signal or result.exit_signal
            result = msgspec.structs.replace(result, exit_signal=exit_signal)
            record.line("end", result=result)
        self.warnings = tuple([transcript.failure] if transcript.failure else [])
        self._ended = result
        self._spans.ended(result)
        self._emit(ResultEvent(run_id=self.run_id, t=result.duration_s, result=result))
        return self._typed(result)

    def _typed(self, result: Result) -> Result:
        """Give what the caller gets: with an instance of the type that was asked for."""
        shape = self._setup.shape
        if shape is None or result.structured_output is None or self._judge is not None:
            return result
        value = shape.converted(result.structured_output)
        return msgspec.structs.replace(result, structured_output=value)

    async def _executed(self, record: Record) -> Result:
        self._execution = Execution(
            self._job,
            self._setup,
            policy=self._policy,
            nest=self._nest,
            spans=self._spans,
            record=record,
            begun=self._begun,
            cancelled=self._cancelled,
            judge=self._judge,
        )
        return await self._execution.result()

    # -- runs that this one starts -----------------------------------------------------------------

    async def _attempted(self, record: Record) -> Result:
        """Run the attempts of this job, each of them a run of its own."""
        from forkrun.attempts import run_attempts

        self._begun.set()
        return await run_attempts(
            self._job,
            start=lambda job, emit, judge: self._run_of(job, emit=emit, judge=judge),
            run_job=lambda job, model, emit: self._run_of(job, emit=emit, model=model).result(),
            record=record,
            emit=self._emit,
            cancelled=self._cancelled.wait(),
        )

    def _run_of(
        self, job: Job, *, emit: Emit, model: Model | None = None, judge: Judge | None = None
    ) -> Run:
        """Make a run that shares all with this one but its job; with another model, a fresh one."""
        setup = self._setup
        if model is not None:
            setup = Setup(
                model=model,
                environ=setup.environ,
                confinement=setup.confinement,
                launcher=setup.launcher,
                tracer=setup.tracer,
            )
        return Run(job, setup, emit=emit, depth=self._nest.depth, judge=judge)

    def _start_task(self, task: TaskInput, tool_use_id: str) -> Started:
        """Make the run of a task that the model of this run asks for."""
        assert self._execution is not None
        job = nested_job(
            task,
            self._job,
            tools=self._execution.tools,
            rules=self._policy.layers,
            timeout_s=self._nest.remaining_s(self._job.limits.timeout_s),
        )
        run = Run(
            job,
            msgspec.structs.replace(self._setup, snapshot=None, shape=None),
            emit=_unheard,
            tree=self._nest.tree,
            depth=self._nest.depth + 1,
        )
        return Started(result=run.result, account=partial(run.account, tool_use_id))

    async def account(self, tool_use_id: str) -> Subrun:
        """Give the account of this run as one that another has started, ended or not."""
        ledger = self._execution.ledger if self._execution else Ledger()
        return account(
            tool_use_id,
            run_id=self.run_id,
            label=self._job.label,
            depth=self._nest.depth,
            ledger=ledger,
            cost_usd=await total_cost_usd(self._setup.model.name, ledger.replies),
            subruns=await self._nest.subruns(),
            ended=self._ended,
        )


def _unheard(event: Event) -> None:
    """Leave the events of a nested run: the call that started it has its own."""
