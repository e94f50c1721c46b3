"""The bounds of a run, as the user sets them."""

from __future__ import annotations

import msgspec

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

MAX_SUMMARY_BYTES = 256 * KIB


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds on one run; None is no bound. Durations are in seconds, sizes in bytes.

    `max_turns`: replies of the model (a recovery turn that asks for the summary is not counted).
    `max_tokens`: output tokens of one reply (None: 8,000,
    or in a fork what the snapshot says). `max_total_tokens`: all tokens read and written,
    cached or not. `max_budget_usd`: the price of all tokens; refused where no price is known.
    `timeout_s`: wall clock of the run. `idle_timeout_s`: no byte from the model and no sign of
    life of a tool. `tool_timeout_s`: wall clock of a command that asks for no other.
    `memory_bytes`, `processes`, `disk_bytes`, `tmp_bytes`: of the whole sandbox together; no
    single file grows beyond `disk_bytes` either. `cpu_s`: CPU time of each process on its own.
    `max_depth`: how deep runs may be nested; 0 means that none may be started. `max_runs`: runs of
    the whole tree, this one included; tokens, money and time are shared by all of them.
    `corrections`: further answers where one does not match the JSON schema that was asked for.
    `retries`: further attempts of a model call that failed and may succeed later.
    `grace_s`: between the request to end and the kill.

    >>> limits = forkrun.Limits(max_turns=1, timeout_s=60)
    >>> result = forkrun.run_sync("Look", model="script:step.jsonl", limits=limits)
    >>> result.stop_reason, result.limit.kind
    ('max_turns', 'turns')
    """

    max_turns: int = 30
    max_tokens: int | None = None
    max_total_tokens: int | None = None
    max_budget_usd: float | None = None
    timeout_s: float = 1_800.0
    idle_timeout_s: float = 300.0
    tool_timeout_s: float = 120.0
    cpu_s: int | None = None
    memory_bytes: int | None = 4 * GIB
    processes: int | None = 512
    disk_bytes: int | None = 4 * GIB
    tmp_bytes: int | None = 512 * MIB
    max_depth: int = 0
    max_runs: int = 32
    retries: int = 5
    corrections: int = 3
    grace_s: float = 1.0
