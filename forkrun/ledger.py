"""What a run has said, done and spent so far, as the trusted side saw it."""

from __future__ import annotations

from typing import Any

import msgspec

from forkrun.limits import MAX_SUMMARY_BYTES, Limits
from forkrun.models.base import Usage
from forkrun.result import Denial, Failure, LimitHit, StopReason
from forkrun.text import clip, printable

STOP_REASONS: dict[str, StopReason] = {
    "turns": "max_turns",
    "tokens": "max_total_tokens",
    "cost": "max_budget",
}


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run ends, and with which summary; `whole_summary` where that had to be cut.
    `structured_output` is its value where an answer of a shape was asked for."""

    stop_reason: StopReason
    summary: str = ""
    summary_turn: int | None = None
    recovered: bool = False
    limit: LimitHit | None = None
    error: Failure | None = None
    whole_summary: str | None = None
    structured_output: Any = None

    def fitted(self) -> Ending:
        """Make the summary fit for a terminal and for its bound."""
        text = printable(self.summary)
        cut = clip(text, MAX_SUMMARY_BYTES, note=_CUT)
        return msgspec.structs.replace(
            self, summary=cut, whole_summary=self.whole_summary if cut == text else text
        )


_CUT = f"\n\n[cut at {MAX_SUMMARY_BYTES // 1024} KiB; the result names the file that holds it all]"


class Ledger(msgspec.Struct, kw_only=True):
    """The running account of one run; only the broker writes it.

    `turns` counts the replies but a recovery turn; `model_calls` the attempts too that failed.
    """

    turns: int = 0
    tool_calls: int = 0
    model_calls: int = 0
    cut_replies: int = 0
    corrections: int = 0
    replies: list[Usage] = msgspec.field(default_factory=list)
    denials: list[Denial] = msgspec.field(default_factory=list)
    call_ids: set[str] = msgspec.field(default_factory=set)
    last_text: str = ""
    last_text_turn: int | None = None

    @property
    def usage(self) -> Usage:
        """Give the tokens of all replies together."""
        return sum(self.replies, Usage())

    def note_text(self, text: str, *, turn: int) -> None:
        """Remember the newest text that is not blank: it stands in where a last reply has none."""
        if text.strip():
            self.last_text = text
            self.last_text_turn = turn

    def stand_in(
        self,
        stop_reason: StopReason,
        why: str,
        *,
        limit: LimitHit | None = None,
        error: Failure | None = None,
    ) -> Ending:
        """End with the newest text there is, marked as partial, for the reason `why`."""
        summary = self.last_text
        if summary:
            summary += f"\n\n[partial: {why}; this is what turn {self.last_text_turn} said]"
        return Ending(
            stop_reason=stop_reason,
            summary=summary,
            summary_turn=self.last_text_turn,
            recovered=bool(summary),
            limit=limit,
            error=error,
        )


def turns_hit(ledger: Ledger, limits: Limits) -> LimitHit | None:
    """Say whether the turns are used up."""
    return _hit("turns", limits.max_turns, ledger.turns)


def spending_hit(ledger: Ledger, limits: Limits, *, cost_usd: float | None) -> LimitHit | None:
    """Say whether the tokens or the money are used up, and which."""
    return _hit("tokens", limits.max_total_tokens, ledger.usage.total_tokens) or _hit(
        "cost", limits.max_budget_usd, cost_usd
    )


def _hit(kind: str, value: float | None, used: float | None) -> LimitHit | None:
    if value is None or used is None or used < value:
        return None
    return LimitHit(kind=kind, value=value, used=used)


def describe(limit: LimitHit) -> str:
    """Say a bound in words: "30 turns"."""
    return f"${limit.value:g}" if limit.kind == "cost" else f"{limit.value:,.0f} {limit.kind}"
