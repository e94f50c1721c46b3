"""What a child has changed, and what becomes of it: read as data, chosen, then committed or kept.

Apart from the transaction itself, since nothing of this is needed before the child is dead.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any, BinaryIO, cast

import msgspec

from forkrun.catalog import WRITERS
from forkrun.errors import WorkspaceError
from forkrun.job import Job
from forkrun.policy import Policy
from forkrun.policy.rules import Rule
from forkrun.result import Change, Failure, Flagged, LimitHit, Withheld
from forkrun.settled import Act, Settled, in_words
from forkrun.text import sayable
from forkrun.workspace.archive import write_archive
from forkrun.workspace.changes import read_changes
from forkrun.workspace.commit import Conflict, commit_changes
from forkrun.workspace.keep import keep_patch, save_patch
from forkrun.workspace.patch import diffstat, write_patch
from forkrun.workspace.protected import PROTECTED, executed
from forkrun.workspace.records import Changes
from forkrun.workspace.selection import Selection, select_changes
from forkrun.workspace.views import View

EXECUTED = "a program runs it, or does what it says, unasked"


LARGE_BYTES = 16 * 1024 * 1024
"""Beyond this, a patch is written only where it is kept: it takes a second for 4 MB of a binary."""


class Changed:
    """The changes of one view, whose child is dead."""

    def __init__(
        self,
        view: View,
        upper: int | None,
        *,
        state: str,
        run_id: str,
        disk_bytes: int | None = None,
    ) -> None:
        self._view = view
        self._upper = upper
        self._state = state
        self._run_id = run_id
        self._disk_bytes = disk_bytes
        self._changes: Changes | None = None

    def select(self, job: Job, policy: Policy, *, commit_ignored: bool) -> Selection:
        """Choose what of the changes may be committed; the child must be dead.

        Raises WorkspaceError where the changes cannot be read.
        """
        if self._changes is None:
            self._changes = read_changes(
                self._view, upper_fd=self._upper, max_bytes=self._disk_bytes
            )
        return select_changes(
            self._view,
            self._changes,
            may_write=policy.may_write,
            named=named_by(policy),
            protected=(*PROTECTED, *(path.strip("/") for path in job.protect)),
            commit_ignored=commit_ignored,
        )

    def settle(
        self, job: Job, policy: Policy, *, act: Act, limit: LimitHit | None = None
    ) -> Settled:
        """Commit, keep or discard the changes, once; with a `limit` they may be cut short, and are
        kept at most."""
        settled = Settled()
        try:
            selection = self.select(job, policy, commit_ignored=job.commit_ignored)
            settled = _described(selection, limit=limit)
            settled = self._settle(selection.changes, job, settled, act=act)
        except WorkspaceError as error:
            settled = _failed(settled, error)
        # A state directory may have any name; a result is text.
        patch = settled.patch and sayable(settled.patch)
        return msgspec.structs.replace(settled, patch=patch)

    def patch_size(self, job: Job, policy: Policy) -> int:
        """Give the size in bytes of what may be committed, as a patch."""
        selection = self.select(job, policy, commit_ignored=job.commit_ignored)
        counter = _Counter()
        write_patch(selection.changes, cast(BinaryIO, counter))
        return counter.size

    def write_archive(self, job: Job, policy: Policy, *, path: str) -> None:
        """Write an archive of what may be committed, and of what git ignores."""
        write_archive(self.select(job, policy, commit_ignored=True).changes, path=path)

    def _settle(self, chosen: Changes, job: Job, settled: Settled, *, act: Act) -> Settled:
        may_commit = act == "commit" and job.commits and not settled.limit
        if not chosen.entries:
            return msgspec.structs.replace(settled, committed=may_commit)
        if job.patch and act != "discard":
            try:
                settled = _saved(chosen, settled, path=os.path.abspath(job.patch))
            except WorkspaceError as error:
                # It could be written at the start. What was done is not lost, nor committed
                # without the patch that was asked for.
                return _failed(self._keep(chosen, settled), error)
        if act == "discard" or not job.commits:
            return settled
        return self._commit_or_keep(chosen, settled, may_commit=may_commit)

    def _commit_or_keep(self, chosen: Changes, settled: Settled, *, may_commit: bool) -> Settled:
        if may_commit and not settled.patch and _size_of(chosen) > LARGE_BYTES:
            return self._commit_large(chosen, settled)
        # The patch comes first: a commit replaces the contents that it is made of.
        kept = settled if settled.patch else self._keep(chosen, settled)
        if not may_commit:
            return kept
        try:
            return self._commit(chosen, kept, asked_for=settled.patch)
        except WorkspaceError as error:
            return _failed(kept, error)

    def _commit(self, chosen: Changes, kept: Settled, *, asked_for: str | None) -> Settled:
        done = commit_changes(chosen, state_dir=self._state)
        kept = msgspec.structs.replace(kept, recovered=tuple(map(in_words, done.recovered)))
        if not done.is_committed:
            error = conflict_in_words(done.conflicts)
            return msgspec.structs.replace(kept, is_conflict=True, error=error)
        if kept.patch and kept.patch != asked_for:
            os.unlink(kept.patch)
        return msgspec.structs.replace(kept, committed=True, patch=asked_for)

    def _commit_large(self, chosen: Changes, settled: Settled) -> Settled:
        """Commit what would take long to write as a patch, which is made where it is needed: a
        commit that did not take place has replaced nothing."""
        try:
            done = commit_changes(chosen, state_dir=self._state)
        except WorkspaceError as error:
            return _failed(self._keep(chosen, settled), error)
        settled = msgspec.structs.replace(settled, recovered=tuple(map(in_words, done.recovered)))
        if not done.is_committed:
            conflict = conflict_in_words(done.conflicts)
            kept = self._keep(chosen, settled)
            return msgspec.structs.replace(kept, is_conflict=True, error=conflict)
        count = f" {len(chosen.entries)} changes, {_size_of(chosen):,} bytes"
        return msgspec.structs.replace(settled, committed=True, diffstat=count)

    def _keep(self, chosen: Changes, settled: Settled) -> Settled:
        path, stats = keep_patch(chosen, state_dir=self._state, run_id=self._run_id)
        return msgspec.structs.replace(
            settled, patch=path, diffstat=diffstat(stats), size_bytes=os.path.getsize(path)
        )


class _Counter(io.BufferedIOBase):
    """Takes what is written and keeps its size."""

    size = 0

    def write(self, content: Any) -> int:
        self.size += len(content)
        return len(content)


def _size_of(chosen: Changes) -> int:
    """Give the size of the new contents in bytes."""
    return sum(each.after.size for each in chosen.entries if each.after is not None)


def named_by(policy: Policy) -> Callable[[str], bool]:
    """Say of a path whether a write or edit rule of every layer names it literally.

    Of every layer, since a run must not have more rights than its parents: that they may write
    everything does not name anything.
    """
    layers = [{path for rule in layer.allow for path in _named(rule)} for layer in policy.parsed]
    named = frozenset.intersection(*map(frozenset, layers)) if layers else frozenset[str]()
    return lambda path: path in named


def _named(rule: Rule) -> tuple[str, ...]:
    if rule.path is None or rule.path.literal is None or WRITERS.isdisjoint(rule.tools or ()):
        return ()
    return (rule.path.literal,)


def conflict_in_words(conflicts: tuple[Conflict, ...]) -> Failure:
    """Name the paths, and say what others did to them."""
    shown = ", ".join(f"{sayable(each.path)} ({each.did} meanwhile)" for each in conflicts[:20])
    more = f" and {len(conflicts) - 20} more" if len(conflicts) > 20 else ""
    return Failure(
        type="conflict", message=f"nothing was committed, since others wrote there: {shown}{more}"
    )


def _described(selection: Selection, *, limit: LimitHit | None) -> Settled:
    entries = selection.changes.entries
    flagged = executed(each.path for each in entries if each.after is not None)
    return Settled(
        changes=tuple(Change(path=sayable(each.path), kind=each.kind) for each in entries),
        withheld=tuple(
            Withheld(path=sayable(each.path), reason=each.reason) for each in selection.withheld
        ),
        flagged=tuple(Flagged(path=sayable(path), reason=EXECUTED) for path in flagged),
        ignored=selection.ignored,
        limit=limit,
    )


def _saved(chosen: Changes, settled: Settled, *, path: str) -> Settled:
    stats = save_patch(chosen, path=path)
    size = os.path.getsize(path) if os.path.isfile(path) else None
    return msgspec.structs.replace(settled, patch=path, diffstat=diffstat(stats), size_bytes=size)


def _failed(settled: Settled, error: WorkspaceError) -> Settled:
    message = sayable(str(error) + (f"\n{error.hint}" if error.hint else ""))
    return msgspec.structs.replace(settled, error=Failure(type="workspace", message=message))
