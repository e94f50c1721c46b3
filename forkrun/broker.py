"""The trusted side of one run: it alone decides what follows, from its own ledger.

    child ──▶ calls ──▶ broker ──▶ turns ──▶ model
          ◀──       ◀──        ◀──       ◀──
    Ask, Ran  results    steps    requests, replies

The child drives, but decides nothing: which request is sent, how many there are and what the
summary is follow from the ledger alone. `calls` speaks with the child and runs what may run,
`turns` speaks with the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forkrun import prompts
from forkrun.calls import Calls
from forkrun.endings import after_cuts, after_model_error, after_refusal, misshapen
from forkrun.errors import ContextExceeded, ModelError
from forkrun.events import ConfirmedEvent, LimitEvent
from forkrun.gate import Gate
from forkrun.hooks import RunHooks
from forkrun.ledger import STOP_REASONS, Ending, Ledger, describe, turns_hit
from forkrun.limits import Limits
from forkrun.models.base import Model, Reply
from forkrun.nesting import Nest
from forkrun.opening import Opening
from forkrun.protocol import ToolCall, ToolResult
from forkrun.record import Record
from forkrun.replies import Reading
from forkrun.result import LimitHit, StopReason
from forkrun.supervisor import Worker
from forkrun.tracing import Spans
from forkrun.turns import Turns
from forkrun.watchdog import Watchdog

if TYPE_CHECKING:
    from forkrun.mcp.servers import Servers

_FINAL = ("end_turn", "stop_sequence", "max_tokens")


class Broker:
    """Acts for one child until its run has an end."""

    def __init__(
        self,
        worker: Worker,
        *,
        model: Model,
        opening: Opening,
        ledger: Ledger,
        watchdog: Watchdog,
        gate: Gate,
        limits: Limits,
        deadline: float,
        record: Record,
        nest: Nest,
        hooks: RunHooks,
        spans: Spans,
    ) -> None:
        """`ledger` is an empty one; `deadline` is an instant of `time.monotonic`."""
        self.ledger = ledger
        self.ledger.call_ids.update(opening.call_ids)
        self.watchdog = watchdog
        self._worker = worker
        self._names = opening.names
        self._max_tokens = opening.max_tokens
        self._answering = opening.answering
        self._by_tool = opening.by_tool
        self._limits = limits
        self._record = record
        self._hooks = hooks
        self._tree = nest.tree
        self._tree.enter(model.name, self.ledger)
        self._turns = Turns(
            model=model,
            opening=opening,
            limits=limits,
            deadline=deadline,
            ledger=self.ledger,
            record=record,
            spans=spans,
            watchdog=self.watchdog,
            worker=worker,
        )
        self._calls = Calls(
            turns=self._turns,
            names=opening.names,
            gate=gate,
            hooks=hooks,
            nest=nest,
            tool_timeout_s=limits.tool_timeout_s,
            ledger=self.ledger,
            record=record,
            spans=spans,
            watchdog=self.watchdog,
            worker=worker,
        )

    async def offer(self, servers: Servers) -> tuple[str, ...]:
        """Show the model the tools of MCP servers; give the names of those that it may call."""
        definitions = await servers.definitions(self._worker)
        shown = self._names.offer([each["name"] for each in definitions])
        if not self._names.are_a_parents:
            self._turns.offer(definitions)
        self._record.line("mcp", tools=shown, left_out=servers.left_out)
        self._calls.servers = servers
        self.watchdog.heard()
        return shown

    async def serve(self) -> Ending:
        """Answer the child until the run has an end, which it is then told."""
        await self._calls.asked()
        while not isinstance(step := await self._next_step(), Ending) or (
            await self._is_sent_on(step)
        ):
            if not isinstance(step, Ending):
                await self._calls.run(step)
        step = step.fitted()
        self._record.event(ConfirmedEvent, summary=step.summary)
        await self._calls.finish(step.summary)
        return step

    async def _is_sent_on(self, ending: Ending) -> bool:
        """Whether a hook says that a completed run must go on after all; tell the model why."""
        if ending.stop_reason != "completed" or ending.recovered:
            return False
        reason = await self._hooks.before_end(ending.summary)
        self.watchdog.heard()
        if reason is not None:
            self._turns.say(prompts.SENT_ON.format(reason=reason))
        return reason is not None

    # -- what follows from a reply -----------------------------------------------------------------

    async def _next_step(self) -> Ending | tuple[ToolCall, ...]:
        """Ask the model until there are calls to run, or an end."""
        while True:
            try:
                await self._calls.run_here()
                if hit := turns_hit(self.ledger, self._limits) or await self._tree.spending_hit():
                    self._record.event(LimitEvent, limit=hit)
                    return await self._last_words(after_bound=hit)
                step = await self._step_after(*await self._turns.ask())
            except ModelError as error:
                if self._takes_other_road(error):
                    continue
                return after_model_error(self.ledger, error)
            if step is not None:
                return step

    async def _step_after(
        self, reply: Reply, reading: Reading
    ) -> Ending | tuple[ToolCall, ...] | None:
        """Say what follows from a reply; None: another request."""
        stop_reason, calls = reply.stop_reason, reading.calls
        if stop_reason == "tool_use" and calls:
            return self._answer_in(reading) or await self._admit(reading)
        if stop_reason in ("end_turn", "stop_sequence", "tool_use"):
            return await self._after_end(reading, stop_reason)
        if stop_reason == "max_tokens":
            return self._after_cut(reading)
        if stop_reason == "refusal":
            return after_refusal(reply, turn=self.ledger.turns)
        if stop_reason == "model_context_window_exceeded":
            raise ContextExceeded("the reply filled the model's context window")
        if stop_reason != "pause_turn":
            raise ModelError(f"the model stopped for a reason not known here: {stop_reason}")
        return None

    async def _admit(self, reading: Reading) -> tuple[ToolCall, ...] | None:
        """Have the calls judged; give those that the child may run, if there are any."""
        calls = reading.calls
        if hit := await self._tree.spending_hit():
            self._calls.refuse(calls, prompts.CALL_AT_BOUND.format(bound=describe(hit)))
            return None
        faults = {
            call.id: f"{call.name}: {fault}"
            for call in calls
            if (fault := reading.faults.get(call.id))
        }
        if self._answering is not None:
            final = filter(self._answering.takes, calls)
            faults |= {call.id: prompts.ANSWER_NOT_ALONE for call in final}
        return await self._calls.admit(calls, faults=faults) or None

    async def _after_end(self, reading: Reading, stop_reason: str) -> Ending | None:
        if reading.calls:
            reason = prompts.CALL_WITHOUT_STOP.format(stop_reason=stop_reason)
            self._calls.refuse(reading.calls, reason)
            return None
        if not reading.text.strip():
            return await self._last_words(after_bound=None)
        step = self._judged(reading.text)
        if isinstance(step, Ending):
            return step
        self._turns.say(step)
        return None

    def _after_cut(self, reading: Reading) -> Ending | None:
        max_tokens = self._max_tokens
        if reading.calls:
            self._calls.refuse(reading.calls, prompts.CALL_CUT.format(max_tokens=max_tokens))
            return None
        self.ledger.cut_replies += 1
        if self.ledger.cut_replies > 1:
            limit = LimitHit(kind="output_tokens", value=max_tokens, used=max_tokens)
            self._record.event(LimitEvent, limit=limit)
            return after_cuts(self.ledger, limit)
        self._turns.say(prompts.REPLY_CUT.format(max_tokens=max_tokens))
        return None

    # -- an answer of a form that was asked for ----------------------------------------------------

    def _judged(self, text: str) -> Ending | str:
        """End with this text where it is an answer, else say what is wrong, in words."""
        turn = self.ledger.turns
        if self._answering is None:
            return Ending(stop_reason="completed", summary=text, summary_turn=turn)
        from forkrun.structured.shape import NotShaped

        try:
            json, value = self._answering.shape.read(text)
        except NotShaped as fault:
            self.ledger.corrections += 1
            if self.ledger.corrections <= self._limits.corrections:
                return self._answering.correction(fault)
            return misshapen(text, fault, turn=turn)
        return Ending(
            stop_reason="completed", summary=json, summary_turn=turn, structured_output=value
        )

    def _answer_in(self, reading: Reading) -> Ending | None:
        """Take the call that is the final answer; None where it is not there or does not stand."""
        if self._answering is None or len(reading.calls) > 1:
            return None
        (call,) = reading.calls
        if not self._answering.takes(call):
            return None
        step = self._judged(self._answering.text_of(call))
        if isinstance(step, Ending):
            self._turns.add_result(ToolResult(id=call.id, text="taken"))  # if a hook sends it on
            return step
        self._calls.answer(call, step)
        return None

    def _takes_other_road(self, error: ModelError) -> bool:
        """Begin again, with the tool for the answer, where the API does not take its form."""
        if self._by_tool is None or self.ledger.replies:
            return False
        from forkrun.structured.roads import is_refused

        if not is_refused(error):
            return False
        opening, self._by_tool = self._by_tool(), None
        self._turns.begin_again(opening)
        self._answering = opening.answering
        return True

    # -- the recovery turn -------------------------------------------------------------------------

    async def _last_words(self, *, after_bound: LimitHit | None) -> Ending:
        """Ask once, in words, for the summary; what comes back is used as far as it is text."""
        if after_bound:
            why = f"the run reached its bound of {describe(after_bound)}"
            words = prompts.BOUND_REACHED.format(bound=describe(after_bound))
            stop_reason = STOP_REASONS[after_bound.kind]
        else:
            why, words = "the last reply held no text", prompts.BLANK_REPLY
            stop_reason = "completed"
        self._turns.say(words)
        try:
            reply, reading = await self._turns.ask(recovery=True)
        except ModelError:
            reply, reading = None, None
        if self._answering and reading:
            return self._last_answer(reading, why, stop_reason=stop_reason, limit=after_bound)
        if reply and reading and reading.text.strip() and reply.stop_reason in _FINAL:
            return Ending(
                stop_reason=stop_reason,
                summary=reading.text,
                summary_turn=self.ledger.turns + 1,
                recovered=True,
                limit=after_bound,
            )
        if not after_bound and not self.ledger.last_text:
            stop_reason = "no_summary"
        return self.ledger.stand_in(stop_reason, why, limit=after_bound)

    def _last_answer(
        self, reading: Reading, why: str, *, stop_reason: StopReason, limit: LimitHit | None
    ) -> Ending:
        """End with what was said last: an answer of the form asked for, or else as it is."""
        from forkrun.structured.shape import NotShaped

        assert self._answering is not None
        final = [call for call in reading.calls if self._answering.takes(call)]
        text = self._answering.text_of(final[0]) if final else reading.text
        turn = self.ledger.turns + 1
        try:
            json, value = self._answering.shape.read(text)
        except NotShaped as fault:
            if limit is None:
                return misshapen(text, fault, turn=turn)
            return self.ledger.stand_in(stop_reason, why, limit=limit)
        return Ending(
            stop_reason=stop_reason,
            summary=json,
            summary_turn=turn,
            recovered=True,
            limit=limit,
            structured_output=value,
        )
