"""The trusted side of one run: it alone holds the conversation, the model and the bounds.

    child ──Ask──▶ broker ──request──▶ model
    child ◀─Turn── broker ◀──reply───┘        calls that may run
    child ──Ran──▶ broker                     results, only for calls that are open
    child ◀Finish─ broker                     the summary, derived from the broker's own ledger

The child drives, but decides nothing: which request is sent, how many there are and what the
summary is follow from the ledger alone. A message out of turn is a `ChannelError`.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

import msgspec

from forkrun import prompts
from forkrun.aliases import NotOurs
from forkrun.conversation import text_block
from forkrun.errors import ChannelError, ContextExceeded, ModelError, ModelUnavailable
from forkrun.events import (
    ConfirmedEvent,
    LimitEvent,
    RetryEvent,
    TextEvent,
)
from forkrun.gate import Gate
from forkrun.hooks import Denied, RunHooks
from forkrun.ledger import STOP_REASONS, Ending, Ledger, describe, turns_hit
from forkrun.limits import Limits
from forkrun.models.base import Model, Reply, Request
from forkrun.models.retry import Retry, RetryPolicy, reply_with_retries
from forkrun.nesting import TASK, Nest
from forkrun.opening import Opening
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
from forkrun.replies import Reading, bounded, read_reply, result_block
from forkrun.result import Denial, Failure, LimitHit, StopReason
from forkrun.supervisor import Worker
from forkrun.text import one_line
from forkrun.tracing import Spans

if TYPE_CHECKING:
    from forkrun.mcp.servers import Servers

Calls = tuple[ToolCall, ...]
RESULT_CHARS = ToolLimits().result_chars
FAULT_CHARS = 2_000


class Broker:
    """Acts for one child until its run has an end."""

    def __init__(
        self,
        *,
        model: Model,
        opening: Opening,
        gate: Gate,
        limits: Limits,
        deadline: float,
        record: Record,
        nest: Nest,
        hooks: RunHooks,
        spans: Spans,
    ) -> None:
        """`deadline` is an instant of `time.monotonic`."""
        self.ledger = Ledger(call_ids=set(opening.call_ids))
        self._model = model
        self._conversation = opening.conversation
        self._siblings = opening.siblings
        self._names = opening.names
        self._max_tokens = opening.max_tokens
        self._gate = gate
        self._answering = opening.answering
        self._by_tool = opening.by_tool
        self._limits = limits
        self._deadline = deadline
        self._record = record
        self._nest = nest
        self._hooks = hooks
        self._spans = spans
        nest.tree.enter(model.name, self.ledger)
        self._servers: Servers | None = None
        self._tasks: list[ToolCall] = []  # admitted, to be run here before the next request
        self._last_sign = time.monotonic()
        self._pending: dict[str, bytes] = {}  # result blocks of the newest reply's calls, in order
        self._words: list[bytes] = []  # text blocks that follow them

    async def offer(self, servers: Servers, worker: Worker) -> tuple[str, ...]:
        """Show the model the tools of MCP servers; give the names of those that it may call."""
        definitions = await servers.definitions(worker)
        shown = self._names.offer([each["name"] for each in definitions])
        if not self._names.are_a_parents:
            self._conversation.offer(definitions)
        self._record.line("mcp", tools=shown, left_out=servers.left_out)
        self._servers = servers
        self._signed()
        return shown

    async def serve(self, worker: Worker) -> Ending:
        """Answer the child until the run has an end, which it is then told."""
        await self._expect(worker, Ask)
        while not isinstance(step := await self._next_step(worker), Ending) or (
            await self._is_sent_on(step)
        ):
            if not isinstance(step, Ending):
                await self._run_calls(worker, step)
        step = step.fitted()
        self._record.event(ConfirmedEvent, summary=step.summary)
        await worker.send(Finish(summary=step.summary))
        await self._expect(worker, Done)
        return step

    async def _is_sent_on(self, ending: Ending) -> bool:
        """Whether a hook says that a completed run must go on after all; tell the model why."""
        if ending.stop_reason != "completed" or ending.recovered:
            return False
        reason = await self._hooks.before_end(ending.summary)
        self._signed()
        if reason is not None:
            self._words.append(text_block(prompts.SENT_ON.format(reason=reason)))
        return reason is not None

    async def until_idle(self) -> None:
        """Return when nothing has been heard of model and tools for as long as is allowed."""
        while (left := self._last_sign + self._limits.idle_timeout_s - time.monotonic()) > 0:
            await asyncio.sleep(left)
            if self._nest.running:  # a nested run has an idle timeout of its own
                self._signed()

    @property
    def idle_s(self) -> float:
        """Seconds since the last sign of life."""
        return time.monotonic() - self._last_sign

    # -- what follows from a reply -------------------------------------------------------------

    async def _next_step(self, worker: Worker) -> Ending | Calls:
        """Ask the model until there are calls to run, or an end."""
        while True:
            try:
                await self._run_tasks(worker)
                if hit := turns_hit(self.ledger, self._limits) or await self._spending_hit():
                    return await self._last_words_at(hit, worker)
                reply, reading = await self._ask_model(worker, recovery=False)
                step = await self._step_after(reply, reading, worker)
            except ModelError as error:
                if self._takes_other_road(error):
                    continue
                return self._ended_by(error)
            if step is not None:
                return step

    async def _step_after(
        self, reply: Reply, reading: Reading, worker: Worker
    ) -> Ending | Calls | None:
        """Say what follows from a reply; None: another request."""
        stop_reason, calls = reply.stop_reason, reading.calls
        if stop_reason == "tool_use" and calls:
            return await self._admit(reading)
        if stop_reason in ("end_turn", "stop_sequence", "tool_use"):
            return await self._after_end(reading, stop_reason, worker)
        if stop_reason == "max_tokens":
            return self._after_cut(reading)
        if stop_reason == "refusal":
            return self._refused(reply)
        if stop_reason == "model_context_window_exceeded":
            raise ContextExceeded("the reply filled the model's context window")
        if stop_reason != "pause_turn":
            raise ModelError(f"the model stopped for a reason not known here: {stop_reason}")
        return None

    async def _after_end(self, reading: Reading, stop_reason: str, worker: Worker) -> Ending | None:
        if reading.calls:
            self._refuse(reading.calls, prompts.CALL_WITHOUT_STOP.format(stop_reason=stop_reason))
            return None
        if not reading.text.strip():
            return await self._last_words(worker, after_bound=None)
        step = self._judged(reading.text)
        if isinstance(step, Ending):
            return step
        self._words.append(text_block(step))
        return None

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
            return _schema_failed(text, fault, turn=turn)
        return Ending(
            stop_reason="completed", summary=json, summary_turn=turn, structured_output=value
        )

    def _takes_other_road(self, error: ModelError) -> bool:
        """Begin again, with the tool for the answer, where the API does not take its form."""
        if self._by_tool is None or self.ledger.replies:
            return False
        from forkrun.structured.roads import is_refused

        if not is_refused(error):
            return False
        opening, self._by_tool = self._by_tool(), None
        self._conversation, self._answering = opening.conversation, opening.answering
        return True

    def _answer_in(self, reading: Reading) -> Ending | None:
        """Take the call that is the final answer; None where it is not there or does not stand."""
        final = [call for call in reading.calls if self._answering and self._answering.takes(call)]
        if self._answering is None or not final or len(reading.calls) > 1:
            return None
        call = final[0]
        step = self._judged(self._answering.text_of(call))
        if isinstance(step, Ending):
            taken = ToolResult(id=call.id, text="taken")
            self._pending[call.id] = result_block(taken)  # where a hook sends the run on
            return step
        self._answer(call, step)
        return None

    async def _admit(self, reading: Reading) -> Ending | Calls | None:
        """Choose the calls that may run; the others get their results here and now."""
        if ending := self._answer_in(reading):
            return ending
        if hit := await self._spending_hit():
            self._refuse(reading.calls, prompts.CALL_AT_BOUND.format(bound=describe(hit)))
            return None
        admitted: list[ToolCall] = []
        for call in reading.calls:
            if call.id in self._pending:
                continue
            self._pending[call.id] = b""  # results stand in the order of the calls
            if self._answering and self._answering.takes(call):
                self._answer(call, prompts.ANSWER_NOT_ALONE)
            elif fault := reading.faults.get(call.id):
                self._answer(call, f"{call.name}: {fault}")
            else:
                await self._admit_one(call, admitted)
        return tuple(admitted) or None

    async def _admit_one(self, call: ToolCall, admitted: list[ToolCall]) -> None:
        ours = call
        try:
            ours = await self._hooks.before_call(self._names.ours_for(call))
            reason = await self._gate.refusal(ours)
        except (NotOurs, Denied) as refusal:
            reason = str(refusal)
        self._signed()
        if reason is None and ours.name == TASK:
            reason = self._nest.admit()
            if reason is None:
                return self._tasks.append(ours)
        if reason is None:
            is_here = self._servers is not None and self._servers.holds(ours.name)
            return (self._tasks if is_here else admitted).append(ours)
        self._answer(call, reason)
        return self._deny(ours, reason)

    async def _run_tasks(self, worker: Worker) -> None:
        """Run what is run on this side, all at once, as long as the child lives: subagents, and
        tools of MCP servers outside of the sandbox."""
        calls, self._tasks = self._tasks, []
        if not calls:
            return
        tasks = [asyncio.ensure_future(self._run_task(call)) for call in calls]
        together = asyncio.gather(*tasks)
        try:
            await worker.alive_while(together)
            together.result()
        finally:
            together.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _run_task(self, call: ToolCall) -> None:
        turn, began = self.ledger.turns, time.monotonic()
        self._record.call(call, turn=turn)
        self._spans.tool_begins(call)
        with self._spans.around(call):
            result = await self._result_here(call)
        self._signed()
        await self._take(call, Ran(result=result, duration_s=time.monotonic() - began))

    async def _result_here(self, call: ToolCall) -> ToolResult:
        if self._servers is None or not self._servers.holds(call.name):
            return await self._nest.run(call)
        return await self._servers.call(
            call, timeout_s=self._limits.tool_timeout_s, heard=self._signed
        )

    def _after_cut(self, reading: Reading) -> Ending | None:
        max_tokens = self._max_tokens
        if reading.calls:
            self._refuse(reading.calls, prompts.CALL_CUT.format(max_tokens=max_tokens))
            return None
        self.ledger.cut_replies += 1
        if self.ledger.cut_replies > 1:
            limit = LimitHit(kind="output_tokens", value=max_tokens, used=max_tokens)
            self._record.event(LimitEvent, limit=limit)
            return self.ledger.stand_in(
                "max_total_tokens", f"replies were cut at {max_tokens} output tokens", limit=limit
            )
        self._words.append(text_block(prompts.REPLY_CUT.format(max_tokens=max_tokens)))
        return None

    def _refused(self, reply: Reply) -> Ending:
        details = msgspec.json.decode(reply.stop_details or b"{}", type=_StopDetails)
        category = f" ({details.category})" if details.category else ""
        explanation = f": {details.explanation}" if details.explanation else ""
        message = f"the model refused this task{category}{explanation}"
        return Ending(
            stop_reason="refused",
            summary=f"[{message}]",
            summary_turn=self.ledger.turns,
            error=Failure(type="refusal", message=message),
        )

    def _ended_by(self, error: ModelError) -> Ending:
        if isinstance(error, ContextExceeded):
            return self.ledger.stand_in(
                "context_exceeded", "the context window is full", error=_failure(error)
            )
        if isinstance(error, ModelUnavailable):
            return self.ledger.stand_in(
                "model_unavailable", "the model could not be reached", error=_failure(error)
            )
        return self.ledger.stand_in(
            "model_error", "the request to the model failed", error=_failure(error)
        )

    # -- the recovery turn -----------------------------------------------------------------------

    async def _last_words_at(self, hit: LimitHit, worker: Worker) -> Ending:
        self._record.event(LimitEvent, limit=hit)
        return await self._last_words(worker, after_bound=hit)

    async def _last_words(self, worker: Worker, *, after_bound: LimitHit | None) -> Ending:
        """Ask once, in words, for the summary; what comes back is used as far as it is text."""
        if after_bound:
            why = f"the run reached its bound of {describe(after_bound)}"
            words = prompts.BOUND_REACHED.format(bound=describe(after_bound))
            stop_reason = STOP_REASONS[after_bound.kind]
        else:
            why, words = "the last reply held no text", prompts.BLANK_REPLY
            stop_reason = "completed"
        self._words.append(text_block(words))
        try:
            reply, reading = await self._ask_model(worker, recovery=True)
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
                return _schema_failed(text, fault, turn=turn)
            return self.ledger.stand_in(stop_reason, why, limit=limit)
        return Ending(
            stop_reason=stop_reason,
            summary=json,
            summary_turn=turn,
            recovered=True,
            limit=limit,
            structured_output=value,
        )

    # -- the model --------------------------------------------------------------------------------

    async def _ask_model(self, worker: Worker, *, recovery: bool) -> tuple[Reply, Reading]:
        """Send what is pending and wait for one whole reply, as long as the child lives."""
        if blocks := [*self._pending.values(), *self._words]:
            self._conversation.add_user(blocks)
        self._pending, self._words = {}, []
        turn = self.ledger.turns + 1
        first = self._conversation.request(self.ledger.model_calls)
        with self._spans.chat(max_tokens=self._max_tokens) as got:
            asking = asyncio.ensure_future(self._reply_to(first, turn=turn))
            try:
                await worker.alive_while(asking)
                reply = asking.result()
            finally:
                asking.cancel()
            got.append(reply)
        return reply, self._enter(reply, turn=turn, recovery=recovery)

    async def _reply_to(self, first: Request, *, turn: int) -> Reply:
        siblings = self._siblings if not self.ledger.replies else None
        async with siblings.first_request() if siblings else nullcontext() as begun:

            def heard(text: str | None) -> None:
                if begun:
                    begun()
                self._heard(text, turn=turn)

            return await reply_with_retries(
                self._model,
                lambda attempt: msgspec.structs.replace(first, number=first.number + attempt),
                policy=RetryPolicy(attempts=1 + self._limits.retries),
                deadline=self._deadline,
                heard=heard,
                on_retry=self._retrying,
            )

    def _enter(self, reply: Reply, *, turn: int, recovery: bool) -> Reading:
        """Enter a reply into the ledger, the conversation and the journal."""
        try:
            reading = read_reply(reply, used_ids=self.ledger.call_ids)
        except msgspec.MsgspecError as error:
            raise ModelError(f"the reply holds a block that is none: {error}") from error
        ledger = self.ledger
        ledger.model_calls += 1
        ledger.turns += not recovery
        ledger.replies.append(reply.usage)
        ledger.call_ids.update(call.id for call in reading.calls)
        ledger.note_text(reading.text, turn=turn)
        self._conversation.add_assistant(reading.blocks)
        self._record.reply(reply, turn=turn)
        self._signed()
        return reading

    def _heard(self, text: str | None, *, turn: int) -> None:
        self._signed()
        if text:
            self._record.event(TextEvent, turn=turn, text=text)

    def _retrying(self, retry: Retry) -> None:
        self.ledger.model_calls += 1
        self._last_sign = time.monotonic() + retry.wait_s
        self._record.event(
            RetryEvent, attempt=retry.attempt, wait_s=retry.wait_s, error=str(retry.error)
        )

    async def _spending_hit(self) -> LimitHit | None:
        return await self._nest.tree.spending_hit()

    # -- the child's calls -------------------------------------------------------------------------

    async def _run_calls(self, worker: Worker, calls: Calls) -> None:
        """Have calls run and take their results, until the child asks for the next reply."""
        turn = self.ledger.turns
        running = {call.id: call for call in calls}
        await worker.send(Turn(number=turn, calls=calls))
        for call in calls:
            self._record.call(call, turn=turn)
        while not isinstance(message := await self._hear(worker), Ask):
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

    async def _take(self, call: ToolCall, ran: Ran) -> None:
        result = bounded(ran.result, max_chars=RESULT_CHARS)
        ran = msgspec.structs.replace(ran, result=result)
        self.ledger.tool_calls += 1
        if ran.result.denied:
            self._deny(call, ran.result.text)
        self._pending[call.id] = result_block(ran.result)
        self._record.ran(call, ran, turn=self.ledger.turns)
        self._spans.tool_ends(ran.result)
        self._words += map(text_block, await self._hooks.after_call(call, ran.result))

    def _deny(self, call: ToolCall, reason: str) -> None:
        self.ledger.denials.append(
            Denial(tool=call.name, input=msgspec.Raw(call.input), reason=reason)
        )
        self._record.denied(call, reason, turn=self.ledger.turns)

    def _refuse(self, calls: Calls, reason: str) -> None:
        for call in calls:
            self._answer(call, reason)
            self._record.denied(call, reason, turn=self.ledger.turns)

    def _answer(self, call: ToolCall, error: str) -> None:
        self._pending[call.id] = result_block(ToolResult(id=call.id, text=error, is_error=True))

    async def _expect(self, worker: Worker, kind: type[ToParent]) -> None:
        message = await self._hear(worker)
        if not isinstance(message, kind):
            raise ChannelError(f"a message out of turn: {type(message).__name__}")

    async def _hear(self, worker: Worker) -> ToParent:
        message = await worker.receive()
        if isinstance(message, Fault):
            raise ChannelError(f"the child failed: {one_line(message.message, width=FAULT_CHARS)}")
        self._signed()
        return message

    def _signed(self) -> None:
        self._last_sign = time.monotonic()


_FINAL = ("end_turn", "stop_sequence", "max_tokens")


class _StopDetails(msgspec.Struct):
    category: str | None = None
    explanation: str | None = None


def _schema_failed(text: str, fault: Exception, *, turn: int) -> Ending:
    message = f"no answer matched the JSON schema; the last one:\n{fault}"
    return Ending(
        stop_reason="schema_failed",
        summary=text,
        summary_turn=turn,
        error=Failure(type="schema_failed", message=message),
    )


def _failure(error: ModelError) -> Failure:
    request = f" (request {error.request_id})" if error.request_id else ""
    return Failure(type=error.kind, message=f"{error}{request}")
