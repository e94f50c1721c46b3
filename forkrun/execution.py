"""One job at work: opens what it needs, has the child confined and served, settles the files.

    plan ─▶ place ─▶ Worker ─▶ Start ─▶ opening ─▶ Ready ─▶ Broker ─▶ Ending ─▶ files ─▶ Result
                       └─ beside it, in `watchdog`: deadline, idle, cancel, bounds

However it ends, there is a result; everything that was opened for it is closed before.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from forkrun.assembly import assemble, not_begun, unavailable
from forkrun.confinement import Plan, Refused
from forkrun.costs import loading_prices
from forkrun.endings import after_crash, after_files, check_end
from forkrun.errors import ChannelError, SandboxError
from forkrun.events import LimitEvent, RecoveredEvent, SettledEvent, StartedEvent
from forkrun.handshake import ready
from forkrun.hooks import RunHooks
from forkrun.job import Job, tools_of
from forkrun.ledger import Ending, Ledger
from forkrun.mcp.opening import open_servers
from forkrun.nesting import Nest
from forkrun.place import Place, open_place
from forkrun.policy import Policy
from forkrun.protocol import Start, ToolLimits
from forkrun.record import Record
from forkrun.result import Result, SandboxRecord
from forkrun.settled import Act, Settled
from forkrun.setup import Setup
from forkrun.supervisor import Worker
from forkrun.tracing import Spans
from forkrun.transaction import Judge
from forkrun.watchdog import Watchdog, first_end

if TYPE_CHECKING:
    from forkrun.broker import Broker
    from forkrun.mcp.servers import Servers
    from forkrun.opening import Opening


class Execution:
    """A job at work. `worker` is there once a child has been started, `opening` a little later."""

    def __init__(
        self,
        job: Job,
        setup: Setup,
        *,
        policy: Policy,
        nest: Nest,
        spans: Spans,
        record: Record,
        begun: asyncio.Event,
        cancelled: asyncio.Event,
        judge: Judge | None,
    ) -> None:
        """It sets `begun` when there is a child, and ends when somebody sets `cancelled`."""
        self.ledger = Ledger()
        self.opening: Opening | None = None
        self.tools = tools_of(job, is_fork=setup.snapshot is not None)
        self.worker: Worker | None = None
        self._job = job
        self._setup = setup
        self._limits = job.limits
        self._policy = policy
        self._nest = nest
        self._spans = spans
        self._record = record
        self._begun = begun
        self._cancelled = cancelled
        self._judge = judge
        self._sandbox = SandboxRecord()

    async def result(self) -> Result:
        """Run to the end, in the best tier that is allowed and can be had here."""
        result = failure = None
        try:
            with self._setup.launcher.room_for_one():
                result = await self._in_best_tier()
        except SandboxError as error:
            failure = unavailable(error)
        return result or not_begun(
            failure, job=self._job, setup=self._setup, limits=self._limits, record=self._record
        )

    async def _in_best_tier(self) -> Result | None:
        confinement, level = self._setup.confinement, self._job.sandbox
        plan = confinement.plan(level)
        while True:
            try:
                return await self._planned(plan)
            except Refused as refused:
                plan = await confinement.after(refused, plan, level=level)

    async def _planned(self, plan: Plan) -> Result | None:
        """Open the place and run in it; None where the run is cancelled while it is copied."""
        opening = partial(
            open_place,
            self._job,
            tier=plan.tier,
            form=plan.form,
            run_id=self._record.run_id,
            policy=self._policy,
            environ=self._setup.environ,
        )
        with contextlib.ExitStack() as stack:
            if plan.form != "copy" or not self._job.has_view:
                return await self._run_in(stack.enter_context(opening()), plan)
            from forkrun.copying import Copying

            copying = Copying(self._record, is_cancelled=self._cancelled.is_set)
            copies = opening(progress=copying.progress)
            place = await copying.enter(stack, copies, self._cancelled.set)
            return None if place is None else await self._run_in(place, plan)

    async def _run_in(self, place: Place, plan: Plan) -> Result:
        job, setup, record = self._job, self._setup, self._record
        self.ledger = Ledger()
        self._deadline = self._nest.deadline(self._limits.timeout_s)
        self._watchdog = Watchdog(self._limits.idle_timeout_s, nest=self._nest)
        self._hooks = hooks = RunHooks(
            setup.hooks,
            run_id=record.run_id,
            label=job.label,
            workspace=place.workspace,
            environ=setup.environ,
            transcript=job.transcript,
            record=record,
        )
        asked = await self._with_words_of(hooks)
        start = setup.launcher.start
        worker = Worker(spec=place.spec, start=start, grace_s=self._limits.grace_s)
        async with worker:
            self.worker = worker
            with loading_prices(setup.model.name):
                ending = await first_end(
                    self._serve(asked, worker, place, plan),
                    ledger=self.ledger,
                    limits=self._limits,
                    deadline=self._deadline,
                    watchdog=self._watchdog,
                    cancelled=self._cancelled,
                    worker=worker,
                    transaction=place.transaction,
                )
        if ending.stop_reason != "completed" or ending.recovered:
            await hooks.after_end(ending.stop_reason, ending.summary)
        settled = await self._settle(ending, place)
        ending = after_files(settled, ending).fitted()
        subruns = await self._nest.subruns()
        if ending.limit and ending.stop_reason in ("timeout", "idle_timeout", "resource_limit"):
            record.event(LimitEvent, limit=ending.limit)
        return await assemble(
            ending,
            job=job,
            setup=setup,
            limits=self._limits,
            opening=self.opening,
            ledger=self.ledger,
            subruns=subruns,
            sandbox=self._sandbox,
            settled=settled,
            worker=worker,
            record=record,
        )

    async def _with_words_of(self, hooks: RunHooks) -> Job:
        """Give the job with what hooks add to its prompt; a cancel does not wait for them."""
        if self._setup.hooks is None:
            return self._job
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

    async def _serve(self, asked: Job, worker: Worker, place: Place, plan: Plan) -> Ending:
        """Have the child confined, serve it to its end, hold what it wrote against the ledger.

        What the child need not wait for is done while it enters its sandbox.
        """
        try:
            async with open_servers(self._job, environ=self._setup.environ) as servers:
                transaction = place.transaction
                if transaction is not None and servers is not None:
                    transaction.open()  # servers inside begin as soon as the child is confined
                await worker.send(self._start_message(worker, place, servers))
                if transaction is not None:
                    transaction.open()
                broker = await self._broker(asked, worker, workspace=place.workspace)
                self._begun.set()
                self._sandbox = await ready(worker, plan=plan, transaction=place.transaction)
                further = await broker.offer(servers) if servers else ()
                self._record.event(
                    StartedEvent,
                    model=self._setup.model.name,
                    limits=self._limits,
                    tools=(*self.tools, *further),
                    sandbox=self._sandbox,
                )
                ending = await broker.serve()
                await check_end(worker, ending)
                return ending
        except ChannelError as error:
            return await after_crash(worker, self.ledger, self._limits, error=error)

    async def _broker(self, asked: Job, worker: Worker, *, workspace: str) -> Broker:
        """Open the conversation, and give who acts for the child in it."""
        from forkrun.broker import Broker
        from forkrun.gate import Gate
        from forkrun.opening import open_conversation

        setup = self._setup
        self.opening = await open_conversation(
            asked,
            model=setup.model.name,
            workspace=workspace,
            policy=self._policy,
            snapshot=setup.snapshot,
            shape=setup.shape,
            offers_task=self._nest.offers_task,
        )
        max_tokens = self.opening.max_tokens
        self._limits = msgspec.structs.replace(self._limits, max_tokens=max_tokens)
        return Broker(
            worker,
            model=setup.model,
            opening=self.opening,
            ledger=self.ledger,
            watchdog=self._watchdog,
            gate=Gate(self._policy, can_use_tool=setup.can_use_tool),
            limits=self._limits,
            deadline=self._deadline,
            record=self._record,
            nest=self._nest,
            hooks=self._hooks,
            spans=self._spans,
        )

    def _start_message(self, worker: Worker, place: Place, servers: Servers | None) -> Start:
        return Start(
            run_id=self._record.run_id,
            workspace=place.workspace,
            tools=self.tools,
            limits=ToolLimits(tool_timeout_s=self._limits.tool_timeout_s),
            rules=self._policy.layers,
            env={**place.command_environ, **self._spans.environ()},
            sandbox=worker.spec,
            servers=servers.programs if servers else (),
        )

    async def _settle(self, ending: Ending, place: Place) -> Settled:
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
            self._record.event(RecoveredEvent, outcome=each.outcome, paths=each.paths)
        if settled.diffstat:
            self._record.event(SettledEvent, diffstat=settled.diffstat)
        return settled
