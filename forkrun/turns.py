"""The model's side of a run: what the model is told next, and its one whole reply to that.

    results, words ──▶ the next user message ──▶ request ──▶ model
    ledger, conversation, record ◀── reply ◀──────────────────┘

What is to be said gathers here between two requests. A request is retried, as long as the child
lives, and a reply is entered before anybody acts on it; what follows is the broker's to decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import msgspec

from forkrun.conversation import text_block
from forkrun.errors import ModelError
from forkrun.events import RetryEvent, TextEvent
from forkrun.ledger import Ledger
from forkrun.limits import Limits
from forkrun.models.base import Model, Reply, Request
from forkrun.models.retry import Retry, RetryPolicy, reply_with_retries
from forkrun.opening import Opening
from forkrun.protocol import ToolResult
from forkrun.record import Record
from forkrun.replies import Reading, read_reply, result_block
from forkrun.supervisor import Worker
from forkrun.tracing import Spans
from forkrun.watchdog import Watchdog


class Turns:
    """The turns of one run: each a request to the model and its reply."""

    def __init__(
        self,
        *,
        model: Model,
        opening: Opening,
        limits: Limits,
        deadline: float,
        ledger: Ledger,
        record: Record,
        spans: Spans,
        watchdog: Watchdog,
        worker: Worker,
    ) -> None:
        """`deadline` is an instant of `time.monotonic`."""
        self._model = model
        self._conversation = opening.conversation
        self._siblings = opening.siblings
        self._max_tokens = opening.max_tokens
        self._limits = limits
        self._deadline = deadline
        self._ledger = ledger
        self._record = record
        self._spans = spans
        self._watchdog = watchdog
        self._worker = worker
        self._results: dict[str, bytes] = {}  # blocks of the newest reply's calls, in their order
        self._words: list[bytes] = []  # text blocks that follow them
        self._offered: Sequence[Mapping[str, Any]] = ()

    def offer(self, definitions: Sequence[Mapping[str, Any]]) -> None:
        """Show the model further tools, before the first request."""
        self._offered = definitions
        self._conversation.offer(definitions)

    def begin_again(self, opening: Opening) -> None:
        """Begin with another conversation, where there was no reply in the first."""
        self._conversation = opening.conversation
        if self._offered:
            self._conversation.offer(self._offered)

    def has_result(self, call_id: str) -> bool:
        """Say whether the newest call of this id has a result, or a place that waits for one."""
        return call_id in self._results

    def expect_result(self, call_id: str) -> None:
        """Keep a place for a result: results stand in the order of the calls."""
        self._results[call_id] = b""

    def add_result(self, result: ToolResult) -> None:
        """Tell the model, in the next request, what came of a call."""
        self._results[result.id] = result_block(result)

    def say(self, words: str) -> None:
        """Tell the model something more in the next request, after the results."""
        self._words.append(text_block(words))

    async def ask(self, *, recovery: bool = False) -> tuple[Reply, Reading]:
        """Send what was gathered and wait for one whole reply, as long as the child lives.

        `recovery`: it counts as no turn. Raises ModelError, and ChannelError for the child's end.
        """
        if blocks := [*self._results.values(), *self._words]:
            self._conversation.add_user(blocks)
        self._results, self._words = {}, []
        turn = self._ledger.turns + 1
        first = self._conversation.request(self._ledger.model_calls)
        with self._spans.chat(max_tokens=self._max_tokens) as got:
            asking = asyncio.ensure_future(self._reply_to(first, turn=turn))
            try:
                await self._worker.alive_while(asking)
                reply = asking.result()
            finally:
                asking.cancel()
            got.append(reply)
        return reply, self._enter(reply, turn=turn, recovery=recovery)

    async def _reply_to(self, first: Request, *, turn: int) -> Reply:
        siblings = self._siblings if not self._ledger.replies else None
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
        ledger = self._ledger
        try:
            reading = read_reply(reply, used_ids=ledger.call_ids)
        except msgspec.MsgspecError as error:
            raise ModelError(f"the reply holds a block that is none: {error}") from error
        ledger.model_calls += 1
        ledger.turns += not recovery
        ledger.replies.append(reply.usage)
        ledger.call_ids.update(call.id for call in reading.calls)
        ledger.note_text(reading.text, turn=turn)
        self._conversation.add_assistant(reading.blocks)
        self._record.reply(reply, turn=turn)
        self._watchdog.heard()
        return reading

    def _heard(self, text: str | None, *, turn: int) -> None:
        self._watchdog.heard()
        if text:
            self._record.event(TextEvent, turn=turn, text=text)

    def _retrying(self, retry: Retry) -> None:
        self._ledger.model_calls += 1
        self._watchdog.heard(silent_for_s=retry.wait_s)
        self._record.event(
            RetryEvent, attempt=retry.attempt, wait_s=retry.wait_s, error=str(retry.error)
        )
