"""The child's side of a run: which calls may run, where they run, and what comes of them.

    admit      hooks, then the gate; a call that may not run is answered here and now
    run_here   subagents, and tools of MCP servers outside of the sandbox
    run        all others: Turn ──▶ child ──▶ Started, Alive, Ran … Ask

A result is taken only for a call that is open; any other message of the child is a `ChannelError`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from forkrun.aliases import Names, NotOurs
from forkrun.errors import ChannelError
from forkrun.gate import Gate
from forkrun.hooks import Denied, RunHooks
from forkrun.ledger import Ledger
from forkrun.nesting import TASK, Nest
from forkrun.protocol import (
    Alive,
    Ask,
    Done,
    Fault,
    Finish,
    Ran,
    Started,
    ToolCall,
    ToolLimits,
    ToolResult,
    ToParent,
    Turn,
)
from forkrun.record import Record
from forkrun.replies import bounded
from forkrun.result import Denial
from forkrun.supervisor import Worker
from forkrun.text import one_line
from forkrun.tracing import Spans
from forkrun.turns import Turns
from forkrun.watchdog import Watchdog

if TYPE_CHECKING:
    from forkrun.mcp.servers import Servers

RESULT_CHARS = ToolLimits().result_chars
FAULT_CHARS = 2_000


class Calls:
    """The calls of one run, and the child that runs them; their results go to `turns`."""

    def __init__(
        self,
        *,
        turns: Turns,
        names: Names,
        gate: Gate,
        hooks: RunHooks,
        nest: Nest,
        tool_timeout_s: float,
        ledger: Ledger,
        record: Record,
        spans: Spans,
        watchdog: Watchdog,
        worker: Worker,
    ) -> None:
        """`tool_timeout_s` bounds a call of a server outside of the sandbox."""
        self.servers: Servers | None = None
        self._turns = turns
        self._names = names
        self._gate = gate
        self._hooks = hooks
        self._nest = nest
        self._tool_timeout_s = tool_timeout_s
        self._ledger = ledger
        self._record = record
        self._spans = spans
        self._watchdog = watchdog
        self._worker = worker
        self._here: list[ToolCall] = []  # admitted, to be run here before the next request

    async def asked(self) -> None:
        """Wait until the child asks for the first reply."""
        await self._expect(Ask)

    async def finish(self, summary: str) -> None:
        """Tell the child the summary, and wait until it has written it."""
        await self._worker.send(Finish(summary=summary))
        await self._expect(Done)

    # -- before they run ---------------------------------------------------------------------------

    async def admit(
        self, calls: Iterable[ToolCall], *, faults: Mapping[str, str]
    ) -> tuple[ToolCall, ...]:
        """Give the calls that the child may run; the others get their results, or run here later.

        `faults` says, by the id of a call, why it cannot be meant.
        """
        admitted: list[ToolCall] = []
        for call in calls:
            if self._turns.has_result(call.id):
                continue
            self._turns.expect_result(call.id)
            if fault := faults.get(call.id):
                self.answer(call, fault)
            else:
                await self._admit_one(call, admitted)
        return tuple(admitted)

    def refuse(self, calls: Iterable[ToolCall], reason: str) -> None:
        """Run none of these calls, for a reason that the model reads."""
        for call in calls:
            self.answer(call, reason)
            self._record.denied(call, reason, turn=self._ledger.turns)

    def answer(self, call: ToolCall, error: str) -> None:
        """Give a call that is not run an error for its result."""
        self._turns.add_result(ToolResult(id=call.id, text=error, is_error=True))

    async def _admit_one(self, call: ToolCall, admitted: list[ToolCall]) -> None:
        ours = call
        try:
            ours = await self._hooks.before_call(self._names.ours_for(call))
            reason = await self._gate.refusal(ours)
        except (NotOurs, Denied) as refusal:
            reason = str(refusal)
        self._watchdog.heard()
        if reason is None and ours.name == TASK:
            reason = self._nest.admit()
            if reason is None:
                return self._here.append(ours)
        if reason is None:
            return (self._here if self._is_of_servers(ours) else admitted).append(ours)
        self.answer(call, reason)
        return self._deny(ours, reason)

    def _is_of_servers(self, call: ToolCall) -> bool:
        return self.servers is not None and self.servers.holds(call.name)

    # -- in the child ------------------------------------------------------------------------------

    async def run(self, calls: tuple[ToolCall, ...]) -> None:
        """Have calls run and take their results, until the child asks for the next reply."""
        turn = self._ledger.turns
        running = {call.id: call for call in calls}
        await self._worker.send(Turn(number=turn, calls=calls))
        for call in calls:
            self._record.call(call, turn=turn)
        while not isinstance(message := await self._hear(), Ask):
            match message:
                case Started(id=call_id) if call_id in running:
                    self._spans.tool_begins(running[call_id])
                case Alive(id=call_id) if call_id in running:
                    pass
                case Ran() if message.result.id in running:
                    await self._take(running.pop(message.result.id), message)
                case _:
                    raise ChannelError(f"a message out of turn: {type(message).__name__}")
        if running:
            raise ChannelError(f"{len(running)} calls were left without a result")

    async def _expect(self, kind: type[ToParent]) -> None:
        message = await self._hear()
        if not isinstance(message, kind):
            raise ChannelError(f"a message out of turn: {type(message).__name__}")

    async def _hear(self) -> ToParent:
        message = await self._worker.receive()
        if isinstance(message, Fault):
            raise ChannelError(f"the child failed: {one_line(message.message, width=FAULT_CHARS)}")
        self._watchdog.heard()
        return message

    # -- on this side ------------------------------------------------------------------------------

    async def run_here(self) -> None:
        """Run what is run on this side, all at once, as long as the child lives."""
        calls, self._here = self._here, []
        if not calls:
            return
        tasks = [asyncio.ensure_future(self._run_one_here(call)) for call in calls]
        together = asyncio.gather(*tasks)
        try:
            await self._worker.alive_while(together)
            together.result()
        finally:
            together.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _run_one_here(self, call: ToolCall) -> None:
        turn, began = self._ledger.turns, time.monotonic()
        self._record.call(call, turn=turn)
        self._spans.tool_begins(call)
        with self._spans.around(call):
            result = await self._result_here(call)
        self._watchdog.heard()
        await self._take(call, Ran(result=result, duration_s=time.monotonic() - began))

    async def _result_here(self, call: ToolCall) -> ToolResult:
        if self.servers is None or not self.servers.holds(call.name):
            return await self._nest.run(call)
        return await self.servers.call(
            call, timeout_s=self._tool_timeout_s, heard=self._watchdog.heard
        )

    # -- after they have run -----------------------------------------------------------------------

    async def _take(self, call: ToolCall, ran: Ran) -> None:
        result = bounded(ran.result, max_chars=RESULT_CHARS)
        ran = msgspec.structs.replace(ran, result=result)
        self._ledger.tool_calls += 1
        if result.denied:
            self._deny(call, result.text)
        self._turns.add_result(result)
        self._record.ran(call, ran, turn=self._ledger.turns)
        self._spans.tool_ends(result)
        for words in await self._hooks.after_call(call, result):
            self._turns.say(words)

    def _deny(self, call: ToolCall, reason: str) -> None:
        self._ledger.denials.append(
            Denial(tool=call.name, input=msgspec.Raw(call.input), reason=reason)
        )
        self._record.denied(call, reason, turn=self._ledger.turns)
