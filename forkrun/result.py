"""How a run ended, as one value: what it said, did, changed and spent, and what confined it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from forkrun.limits import Limits
from forkrun.models.base import Usage

StopReason = Literal[
    "completed",
    "no_summary",
    "max_turns",
    "max_total_tokens",
    "max_budget",
    "resource_limit",
    "timeout",
    "idle_timeout",
    "cancelled",
    "refused",
    "context_exceeded",
    "model_unavailable",
    "model_error",
    "schema_failed",
    "check_failed",
    "conflict",
    "crashed",
    "lost",
    "sandbox_unavailable",
]

EXIT_CODES: dict[StopReason, int] = {
    "completed": 0,
    "no_summary": 1,
    "max_turns": 53,
    "max_total_tokens": 53,
    "max_budget": 53,
    "resource_limit": 53,
    "timeout": 124,
    "idle_timeout": 124,
    "cancelled": 130,
    "refused": 11,
    "context_exceeded": 12,
    "model_unavailable": 10,
    "model_error": 11,
    "schema_failed": 65,
    "check_failed": 65,
    "conflict": 73,
    "crashed": 1,
    "lost": 1,
    "sandbox_unavailable": 125,
}


class LimitHit(msgspec.Struct, frozen=True, kw_only=True):
    """The bound that ended a run. `kind` is "turns", "tokens", "cost", "wall_clock", "idle",
    "memory", "processes", "disk", …; `value` what was allowed, `used` what was used."""

    kind: str
    value: float
    used: float


class Denial(msgspec.Struct, frozen=True, kw_only=True):
    """A call that a rule forbade. `input` is the JSON of the call's input."""

    tool: str
    input: msgspec.Raw
    reason: str


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One changed path of the workspace, relative to it."""

    path: str
    kind: Literal["added", "modified", "deleted", "mode", "symlink"]


class Withheld(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was not committed, and why."""

    path: str
    reason: str


class Flagged(msgspec.Struct, frozen=True, kw_only=True):
    """A change that is no longer only a change when somebody works on: a program runs it."""

    path: str
    reason: str


class Cache(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the provider's prompt cache in a fork; "none" where nothing was forked."""

    verdict: Literal["hit", "miss", "unknown", "none"] = "none"
    prefix_sha256: str | None = None


class RepairRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How a snapshot was made fit to be sent; `notes` say what else was changed, in words."""

    strategy: str
    tool_use_ids: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class MissingLayer(msgspec.Struct, frozen=True, kw_only=True):
    """A layer of confinement that was not in force, and why."""

    layer: str
    reason: str


class SandboxRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The confinement that was really in force."""

    tier: Literal["full", "bwrap", "lsm", "none"] = "none"
    enforced: tuple[str, ...] = ()
    missing: tuple[MissingLayer, ...] = ()


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """What the child's processes used together."""

    peak_memory_bytes: int | None = None
    cpu_s: float | None = None
    processes: int | None = None


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run did not complete, in words."""

    type: str
    message: str


class Subrun(msgspec.Struct, frozen=True, kw_only=True):
    """The account of a run that this run, or one below it, has started by the tool `task`.

    `tool_use_id`: the call that asked for it. `usage` and `cost_usd`: of it and of all runs below
    it; `own_usage`: of it alone. `denials`: how many of its calls were forbidden.
    """

    run_id: str
    tool_use_id: str
    label: str | None = None
    depth: int
    stop_reason: StopReason
    turns: int = 0
    tool_calls: int = 0
    denials: int = 0
    usage: Usage = Usage()
    own_usage: Usage = Usage()
    cost_usd: float | None = None
    duration_s: float = 0.0
    error: Failure | None = None
    subruns: tuple[Subrun, ...] = ()


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One of several attempts at the same task: how it ended, what it changed and what it cost.

    `check` says whether the check passed in what it left; "none": it was not run. `check_output`
    is the end of what that printed. `size_bytes` is the size of the changes as a patch.
    """

    number: int
    run_id: str
    stop_reason: StopReason
    check: Literal["passed", "failed", "none"] = "none"
    check_output: str = ""
    changes: tuple[Change, ...] = ()
    size_bytes: int | None = None
    committed: bool = False
    patch: str | None = None
    turns: int = 0
    tool_calls: int = 0
    usage: Usage = Usage()
    cost_usd: float | None = None
    duration_s: float = 0.0
    error: Failure | None = None


class Result(msgspec.Struct, frozen=True, kw_only=True, tag="result"):
    """The one result of a run. Durations are in seconds, `cost_usd` is None when no price is known.

    `summary` is the text of the reply that ended the run (turn `summary_turn`, counted from 1); it
    is `recovered` when the model had to be asked for it or when an earlier text stands in for it.
    `summary_file` holds the whole text where it was too long for the summary. `usage` and
    `cost_usd` are those of the whole tree: of this run (`own_usage`) and of its `subruns`.

    `changes` are those that the rules allow, `withheld` the others; `ignored_changes` counts what
    git ignores; `patch` is the file that holds the changes, where one was asked for or kept.
    `flagged` are those among `changes` that some program executes unasked. Bytes of a path that are
    not UTF-8 stand as `\\xNN`.

    With `attempts` or a `check`, the other fields are those of the attempt that was chosen, or else
    of the one that came furthest; `usage`, `cost_usd` and `duration_s` are of all together.
    `exit_code` is what the command line ends with.

    >>> result = forkrun.run_sync("Where is the version set?", model="script:replies.jsonl")
    >>> result.stop_reason, result.exit_code, result.turns, result.summary
    ('completed', 0, 1, 'In pyproject.toml.')
    """

    schema: int = 1
    run_id: str
    label: str | None = None
    stop_reason: StopReason
    limit: LimitHit | None = None
    summary: str
    summary_turn: int | None = None
    summary_file: str | None = None
    recovered: bool = False
    turns: int = 0
    tool_calls: int = 0
    denials: tuple[Denial, ...] = ()
    changes: tuple[Change, ...] = ()
    withheld: tuple[Withheld, ...] = ()
    flagged: tuple[Flagged, ...] = ()
    ignored_changes: int = 0
    committed: bool = False
    patch: str | None = None
    attempts: tuple[Attempt, ...] = ()
    structured_output: Any = None
    model: str
    usage: Usage = Usage()
    own_usage: Usage = Usage()
    subruns: tuple[Subrun, ...] = ()
    cost_usd: float | None = None
    cache: Cache = Cache()
    repair: RepairRecord | None = None
    sandbox: SandboxRecord = SandboxRecord()
    resources: Resources = Resources()
    limits: Limits
    duration_s: float
    exit_signal: int | None = None
    error: Failure | None = None

    @property
    def exit_code(self) -> int:
        """The exit code of the command line for this result."""
        if self.stop_reason == "cancelled" and self.exit_signal:
            return 128 + self.exit_signal
        return EXIT_CODES[self.stop_reason]
