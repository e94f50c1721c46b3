"""Several attempts at one task, from the same start; one that passes the check is committed.

    Run 1 … Run N, each in its own view ─▶ dead ─▶ check ─▶ wait ─▶ commit | keep | discard

Each attempt is a run like any other, up to the moment when its files are settled: it then has the
check run (see `forkrun.checking`) and waits until it is known which attempt is committed. The first
that passes ends the others, or, with `best`, all are waited for and the smallest change is taken.
Where none passes, what the attempts changed is kept as patches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

import msgspec

from forkrun.checking import Checked, RunJob, run_check
from forkrun.errors import ForkrunError
from forkrun.events import (
    CheckEvent,
    ConfirmedEvent,
    Emit,
    Event,
    ResultEvent,
    SettledEvent,
)
from forkrun.job import Job
from forkrun.ledger import Ending
from forkrun.models.base import Usage
from forkrun.policy import Policy
from forkrun.record import Record
from forkrun.result import Attempt, Failure, Result
from forkrun.settled import Settled
from forkrun.transaction import Judge, Settle, Transaction


class Running(Protocol):
    """A run, as far as it matters here."""

    run_id: str

    def cancel(self, *, signal_number: int | None = None) -> None: ...

    async def result(self) -> Result: ...


Start = Callable[[Job, Emit, Judge], Running]
"""Makes the run of one attempt, not yet started."""


async def run_attempts(
    job: Job,
    *,
    start: Start,
    run_job: RunJob,
    record: Record,
    emit: Emit,
    cancelled: Awaitable[object],
) -> Result:
    """Run all attempts of a job to their end; give the result of the one that was chosen."""
    contest = _Contest(job, start=start, run_job=run_job, record=record, emit=emit)
    cancelling = asyncio.ensure_future(cancelled)
    cancelling.add_done_callback(lambda _: contest.cancel())
    try:
        return await contest.result()
    finally:
        cancelling.cancel()


class _Verdict(NamedTuple):
    """What is known of one attempt: whether it may win, and the size of its change as a patch."""

    passed: bool = False
    size_bytes: int = 0


class _Contest:
    """The attempts of one job, and what is decided between them."""

    def __init__(
        self, job: Job, *, start: Start, run_job: RunJob, record: Record, emit: Emit
    ) -> None:
        self._job = job
        self._policy = Policy.parse(allow=job.allow, deny=job.deny, parents=job.parents)
        self._run_job = run_job
        self._record = record
        self._emit = emit
        self._verdicts: dict[int, _Verdict] = {}
        self._checks: dict[int, Checked] = {}
        self._checking: dict[int, asyncio.Future[tuple[Checked, int]]] = {}
        self._winner: int | None = None
        self._decided = asyncio.Event()
        self._committed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        numbers = range(1, job.attempts + 1)
        self._runs = {n: start(self._job_of(n), self._forward(n), self._judge(n)) for n in numbers}

    async def result(self) -> Result:
        """Wait for all attempts and put their results together."""
        tasks = {n: asyncio.ensure_future(self._attempt(n)) for n in self._runs}
        try:
            await asyncio.wait(tasks.values())
        except BaseException:
            self.cancel()
            await asyncio.wait(tasks.values())
            raise
        errors = {n: error for n, task in tasks.items() if (error := task.exception())}
        results = {n: task.result() for n, task in tasks.items() if n not in errors}
        if not results:
            raise next(iter(errors.values()))
        return self._together(results, errors)

    def cancel(self) -> None:
        """End every attempt and every check."""
        for number in self._runs:
            self._end(number)

    def _end(self, number: int) -> None:
        self._runs[number].cancel()
        if checking := self._checking.get(number):
            checking.cancel()

    def _job_of(self, number: int) -> Job:
        transcript = self._job.transcript
        if transcript and self._job.attempts > 1:
            transcript = f"{transcript}.{number}"
        return msgspec.structs.replace(
            self._job, attempts=1, check=None, best=False, transcript=transcript
        )

    def _forward(self, number: int) -> Emit:
        def forward(event: Event) -> None:
            if isinstance(event, SettledEvent) and number != self._winner:
                return
            if not isinstance(event, ResultEvent | ConfirmedEvent):  # of these there is one
                self._emit(event)

        return forward

    async def _attempt(self, number: int) -> Result:
        try:
            return await self._runs[number].result()
        finally:
            self._report(number, _Verdict())  # for one whose files were never settled
            if number == self._winner and not self._committed.done():
                self._committed.set_result(False)

    # -- what becomes of the files ----------------------------------------------------------------

    def _judge(self, number: int) -> Judge:
        async def judge(ending: Ending, transaction: Transaction, settle: Settle) -> Settled:
            self._report(number, await self._verdict(number, ending, transaction))
            await self._decided.wait()
            if self._winner is None:
                return await settle("keep")
            if number != self._winner:
                return await settle("discard" if await self._committed else "keep")
            settled = await settle("commit")
            self._committed.set_result(settled.error is None and settled.limit is None)
            return settled

        return judge

    async def _verdict(self, number: int, ending: Ending, transaction: Transaction) -> _Verdict:
        if ending.stop_reason != "completed" or transaction.is_untouched:
            return _Verdict()
        checking = asyncio.ensure_future(self._check(transaction))
        self._checking[number] = checking
        await asyncio.wait({checking})
        if checking.cancelled():
            return _Verdict()
        checked, size_bytes = checking.result()
        self._checks[number] = checked
        self._record.event(CheckEvent, attempt=number, passed=checked.passed, output=checked.output)
        return _Verdict(passed=checked.passed, size_bytes=size_bytes)

    async def _check(self, transaction: Transaction) -> tuple[Checked, int]:
        """Run the check in what an attempt left, and measure its change."""
        changed = transaction.changed()
        try:
            with transaction.private_directory("check") as directory:
                path = f"{directory}/changes.tar"
                await asyncio.to_thread(changed.write_archive, self._job, self._policy, path=path)
                checked = await run_check(self._job, archive=path, run_job=self._run_job)
            return checked, await asyncio.to_thread(changed.patch_size, self._job, self._policy)
        except (ForkrunError, OSError) as error:
            return Checked(passed=False, output=f"[the check could not be run: {error}]"), 0

    def _report(self, number: int, verdict: _Verdict) -> None:
        """Take note of an attempt, and decide as soon as that can be done."""
        if number in self._verdicts or self._decided.is_set():
            return
        self._verdicts[number] = verdict
        is_last = len(self._verdicts) == len(self._runs)
        passed = {n: each.size_bytes for n, each in self._verdicts.items() if each.passed}
        if passed and (is_last or not self._job.best):
            self._winner = min(passed, key=lambda n: (passed[n], n))
            for other in self._runs.keys() - {self._winner}:
                self._end(other)
        if self._winner is not None or is_last:
            self._decided.set()

    # -- the one result ---------------------------------------------------------------------------

    def _together(self, results: dict[int, Result], errors: dict[int, BaseException]) -> Result:
        chosen = self._winner if self._winner in results else _furthest(results)
        assert chosen is not None
        attempts = [self._described(n, each) for n, each in results.items()]
        attempts += [_failed(n, error, run=self._runs[n]) for n, error in errors.items()]
        result = results[chosen]
        if self._winner is None and result.stop_reason == "completed":
            result = self._unchecked(result, self._checks.get(chosen))
        return msgspec.structs.replace(
            result,
            run_id=self._record.run_id,
            attempts=tuple(sorted(attempts, key=lambda each: each.number)),
            usage=sum((each.usage for each in results.values()), Usage()),
            cost_usd=_sum([each.cost_usd for each in results.values()]),
            duration_s=round(self._record.elapsed_s, 3),
        )

    def _unchecked(self, result: Result, checked: Checked | None) -> Result:
        which = "the check failed" if self._job.attempts == 1 else "no attempt passed the check"
        said = checked.output.strip().rpartition("\n")[2] if checked else ""
        error = Failure(type="check", message=f"{which}: {said}" if said else which)
        return msgspec.structs.replace(result, stop_reason="check_failed", error=error)

    def _described(self, number: int, result: Result) -> Attempt:
        checked = self._checks.get(number)
        verdict = self._verdicts.get(number, _Verdict())
        return Attempt(
            number=number,
            run_id=result.run_id,
            stop_reason=result.stop_reason,
            check="none" if checked is None else "passed" if checked.passed else "failed",
            check_output=checked.output if checked else "",
            changes=result.changes,
            size_bytes=verdict.size_bytes if checked else None,
            committed=result.committed,
            patch=result.patch,
            turns=result.turns,
            tool_calls=result.tool_calls,
            usage=result.usage,
            cost_usd=result.cost_usd,
            duration_s=result.duration_s,
            error=result.error,
        )


def _failed(number: int, error: BaseException, *, run: Running) -> Attempt:
    failure = Failure(type=type(error).__name__, message=str(error))
    return Attempt(number=number, run_id=run.run_id, stop_reason="crashed", error=failure)


def _furthest(results: dict[int, Result]) -> int:
    """Choose among attempts that all failed: one that came to its end, else the first."""
    return min(results, key=lambda n: (results[n].stop_reason != "completed", n))


def _sum(costs: list[float | None]) -> float | None:
    known = [each for each in costs if each is not None]
    return sum(known) if len(known) == len(costs) else None
