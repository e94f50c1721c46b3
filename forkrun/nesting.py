"""Runs that start runs: the tool `task`, and what all runs of one tree share.

    Tree    of the root: how deep, how many runs, and one budget of tokens, money and time
    Nest    of each run: the runs that it has started

A child cannot start anything by itself. Its model's call of `task` is answered by the broker, which
asks the tree, and the run that follows is one like any other, with a process and a sandbox of its
own. It has no right that its parent lacks: the same model, tools, network, paths and environment,
and the rules of all its ancestors. Its files are a view of the user's workspace as it stands on
disk, and what it writes there is thrown away: only its summary comes back.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from forkrun.costs import total_cost_usd
from forkrun.errors import ForkrunError
from forkrun.job import NO_SNAPSHOT, Job, WorkspaceMode, check
from forkrun.ledger import Ledger, spending_hit
from forkrun.limits import Limits
from forkrun.models.base import Usage
from forkrun.protocol import Rules, ToolCall, ToolResult
from forkrun.result import LimitHit, Result, Subrun

TASK = "task"
_LABEL_CHARS = 80
_MODES: dict[WorkspaceMode, WorkspaceMode] = {"read-only": "read-only", "temp": "temp"}


class TaskInput(msgspec.Struct, frozen=True, kw_only=True):
    """Have a subagent do one task in a process of its own, and read its summary.

    It knows nothing of your conversation: the prompt must say all that it needs. It has your tools
    and no more rights than you. It sees the files of the workspace as they were before your run,
    without your changes, and what it writes is thrown away: ask it for findings. Several calls in
    one turn run at the same time.
    """

    prompt: Annotated[str, Meta(description="The task, complete in itself.", min_length=1)]
    description: Annotated[str, Meta(description="The task in three to five words.")] = ""


Start = Callable[[TaskInput, str], "Started"]
"""Makes the run of a task, under the id of the call that asked for it; nothing is awaited yet."""


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was started: its result, to be awaited once, and its account at any time."""

    result: Callable[[], Awaitable[Result]]
    account: Callable[[], Awaitable[Subrun]]


def task_definition() -> dict[str, Any]:
    """Give the definition of `task` as the Messages API takes it."""
    schema = msgspec.json.schema(TaskInput)["$defs"][TaskInput.__name__]
    paragraphs = schema.pop("description").split("\n\n")
    return {
        "name": TASK,
        "description": "\n\n".join(" ".join(each.split()) for each in paragraphs),
        "input_schema": {key: value for key, value in schema.items() if key != "title"},
    }


def nested_job(
    task: TaskInput,
    parent: Job,
    *,
    tools: tuple[str, ...],
    rules: tuple[Rules, ...],
    timeout_s: float,
) -> Job:
    """Give the job of a nested run: at most the rights of its parent.

    Raises UsageError for a task that cannot be meant.
    """
    job = msgspec.structs.replace(
        parent,
        prompt=task.prompt,
        label=task.description[:_LABEL_CHARS] or None,
        snapshot=NO_SNAPSHOT,
        model=None,
        system=None,
        append_system_prompt=None,
        json_schema=None,
        tools=tools,
        allow=(),
        deny=(),
        parents=rules,
        workspace=_MODES.get(parent.workspace, "discard"),
        patch=None,
        transcript=None,
        limits=msgspec.structs.replace(parent.limits, timeout_s=timeout_s),
    )
    check(job)
    return job


class Tree:
    """What all runs of one tree share; the root's limits are the tree's."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.deadline = math.inf  # an instant of time.monotonic, once the root has begun
        self.runs = 1
        self._ledgers: list[tuple[str, Ledger]] = []

    def enter(self, model: str, ledger: Ledger) -> None:
        """Count what this ledger spends."""
        self._ledgers.append((model, ledger))

    def admit(self, depth: int) -> str | None:
        """Count one more run, so deep (the root: 0), or say why there may be none."""
        limits = self.limits
        if depth > limits.max_depth:
            return (
                f"Not started: runs may be nested {limits.max_depth} deep (max_depth), and this "
                f"one would be {depth} deep. Do the task yourself."
            )
        if self.runs >= limits.max_runs:
            return (
                f"Not started: {self.runs} of {limits.max_runs} runs of this tree (max_runs) have "
                "been started. Do the task yourself."
            )
        self.runs += 1
        return None

    async def spending_hit(self) -> LimitHit | None:
        """Say whether the tokens or the money of the whole tree are used up, and which."""
        cost_usd = None
        if self.limits.max_budget_usd is not None:
            cost_usd = await self._cost_usd()
        used = Ledger(replies=[usage for _, ledger in self._ledgers for usage in ledger.replies])
        return spending_hit(used, self.limits, cost_usd=cost_usd)

    async def _cost_usd(self) -> float:
        costs = [await total_cost_usd(model, ledger.replies) for model, ledger in self._ledgers]
        return sum(cost for cost in costs if cost is not None)


class Nest:
    """The runs that one run has started."""

    def __init__(self, tree: Tree, *, depth: int, start: Start) -> None:
        self.tree = tree
        self.depth = depth
        self.running = 0
        self._start = start
        self._started: list[Started] = []

    @property
    def offers_task(self) -> bool:
        """Whether the model is shown the tool: whether a run could be nested here at all."""
        return self.depth < self.tree.limits.max_depth

    def deadline(self, timeout_s: float) -> float:
        """Give the instant at which a run of so many seconds that begins now is out of time."""
        deadline = time.monotonic() + timeout_s
        if self.depth == 0:
            self.tree.deadline = deadline
        return min(deadline, self.tree.deadline)

    def remaining_s(self, timeout_s: float) -> float:
        """Give the seconds that a nested run has: never more than its tree."""
        return max(min(timeout_s, self.tree.deadline - time.monotonic()), 0.001)

    def admit(self) -> str | None:
        """Count the run that a call asks for, or say why there may be none."""
        return self.tree.admit(self.depth + 1)

    async def run(self, call: ToolCall) -> ToolResult:
        """Run what a call asks for, which must have been admitted, and give what came of it."""
        try:
            task = msgspec.json.decode(call.input, type=TaskInput)
            started = self._start(task, call.id)
        except (msgspec.MsgspecError, ForkrunError) as error:
            return ToolResult(id=call.id, text=f"{TASK}: {error}", is_error=True)
        self._started.append(started)
        self.running += 1
        try:
            result = await started.result()
        except ForkrunError as error:
            return ToolResult(id=call.id, text=f"{TASK}: {error}", is_error=True)
        finally:
            self.running -= 1
        from forkrun.report import report

        return ToolResult(
            id=call.id, text=report(result), is_error=result.stop_reason != "completed"
        )

    async def subruns(self) -> tuple[Subrun, ...]:
        """Give the account of each run that was started here, in the order of the calls."""
        return tuple([await started.account() for started in self._started])


def account(
    tool_use_id: str,
    *,
    run_id: str,
    label: str | None,
    depth: int,
    ledger: Ledger,
    cost_usd: float | None,
    subruns: tuple[Subrun, ...],
    ended: Result | None,
) -> Subrun:
    """Give the account of a nested run from its ledger, and from its result where it has one."""
    return Subrun(
        run_id=run_id,
        tool_use_id=tool_use_id,
        label=label,
        depth=depth,
        stop_reason=ended.stop_reason if ended else "cancelled",
        turns=ledger.turns,
        tool_calls=ledger.tool_calls,
        denials=len(ledger.denials),
        usage=summed(ledger.usage, subruns),
        own_usage=ledger.usage,
        cost_usd=summed_cost(cost_usd, subruns),
        duration_s=ended.duration_s if ended else 0.0,
        error=ended.error if ended else None,
        subruns=subruns,
    )


def summed(own: Usage, subruns: tuple[Subrun, ...]) -> Usage:
    """Give the tokens of a run and of all runs below it."""
    return sum((subrun.usage for subrun in subruns), own)


def summed_cost(own: float | None, subruns: tuple[Subrun, ...]) -> float | None:
    """Give the price of a run and of all below it; None where the price of a part is not known."""
    costs = [own, *(subrun.cost_usd for subrun in subruns if subrun.usage.total_tokens)]
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None
