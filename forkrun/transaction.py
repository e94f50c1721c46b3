"""The files of one run as a transaction: a private view before it, a commit or nothing after it.

The view is opened before the child starts and settled after everything in the sandbox is dead. The
changes of a completed run are committed as far as the rules allow; those of any other run are kept
as a patch. Everything here blocks on files: the event loop has it done in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import msgspec

from forkrun.errors import WorkspaceError
from forkrun.job import Job
from forkrun.policy import Policy
from forkrun.result import Change, Failure, Flagged, LimitHit, Withheld
from forkrun.state import state_folder
from forkrun.text import sayable
from forkrun.workspace.changes import read_changes
from forkrun.workspace.commit import Conflict, Recovery, commit_changes, recover
from forkrun.workspace.copies import Progress, usage_of
from forkrun.workspace.keep import keep_patch, save_patch, sweep_patches
from forkrun.workspace.patch import diffstat
from forkrun.workspace.protected import PROTECTED, is_executed
from forkrun.workspace.records import Changes
from forkrun.workspace.selection import Selection, select_changes
from forkrun.workspace.views import Form, View, open_view, sweep_views
from forkrun_sandbox.launch import sweep as sweep_groups

SPARE_BYTES = 64 * 1024
SPARE_FILES = 16
COPY_POLL_S = 1.0
EXECUTED = "a program runs it, or does what it says, unasked"

Act = Literal["commit", "keep", "discard"]
"""What becomes of the changes: `keep` keeps them as a patch."""


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the changes. `ignored` counts those that git ignores; `diffstat` is text for
    people; `limit` says that the view was full; `error` says why a commit that should have been
    could not be (`is_conflict`: because somebody else changed the same files); `recovered` is what
    had to be made good before it. Bytes of paths that are not UTF-8 stand as `\\xNN`."""

    changes: tuple[Change, ...] = ()
    withheld: tuple[Withheld, ...] = ()
    flagged: tuple[Flagged, ...] = ()
    ignored: int = 0
    committed: bool = False
    patch: str | None = None
    size_bytes: int | None = None
    diffstat: str = ""
    is_conflict: bool = False
    limit: LimitHit | None = None
    error: Failure | None = None
    recovered: tuple[Recovery, ...] = ()


def tidy(workspace: str, *, environ: Mapping[str, str], keep_days: float) -> tuple[Recovery, ...]:
    """Finish or undo commits that were killed here, and remove what killed runs left behind."""
    state = state_folder(environ)
    sweep_groups()
    if not os.path.isdir(state):
        return ()
    sweep_views(state)
    sweep_patches(state, keep_days=keep_days)
    return tuple(map(in_words, recover(workspace, state_dir=state)))


def in_words(recovery: Recovery) -> Recovery:
    """Give it with paths that can be encoded."""
    return msgspec.structs.replace(recovery, paths=tuple(map(sayable, recovery.paths)))


@contextlib.contextmanager
def open_transaction(
    workspace: str,
    *,
    form: Form,
    run_id: str,
    environ: Mapping[str, str],
    disk_bytes: int | None = None,
    is_shared: bool = False,
    progress: Progress | None = None,
) -> Iterator[Transaction]:
    """Open a private view of a workspace; everything of it is gone when the block is left.

    `disk_bytes` bounds the size of a copy, and what is added to it; `is_shared` says that its
    owner, who need not be us, must reach it by its path.
    """
    state = state_folder(environ)
    os.makedirs(state, mode=0o700, exist_ok=True)
    with open_view(
        workspace,
        run_id=run_id,
        state_dir=state,
        form=form,
        max_copy_bytes=disk_bytes,
        is_shared=is_shared,
        progress=progress,
    ) as view:
        transaction = Transaction(view, state=state, run_id=run_id, disk_bytes=disk_bytes)
        try:
            yield transaction
        finally:
            transaction.close()


class Transaction:
    """An open view, until it is settled."""

    def __init__(self, view: View, *, state: str, run_id: str, disk_bytes: int | None) -> None:
        self.view = view
        self._state = state
        self._run_id = run_id
        self._disk_bytes = disk_bytes
        self._upper: int | None = None
        self._changes: Changes | None = None
        self._copied_bytes = usage_of(view.copy) if view.copy and disk_bytes else 0

    def take_upper(self, descriptor: int) -> None:
        """Take the descriptor of the directory that the child's writes land in; ours from now."""
        self._upper = descriptor

    def close(self) -> None:
        """Let go of that directory."""
        if self._upper is not None:
            os.close(self._upper)
            self._upper = None

    async def until_full(self) -> LimitHit:
        """Return when a copy has grown by more than is allowed; a tmpfs is bounded by itself."""
        pause_s = COPY_POLL_S
        while True:
            await asyncio.sleep(pause_s)
            began = time.monotonic()
            if self.view.copy and (limit := await asyncio.to_thread(self._disk_limit)):
                return limit
            pause_s = max(COPY_POLL_S, 20 * (time.monotonic() - began))

    def select(self, job: Job, policy: Policy, *, commit_ignored: bool) -> Selection:
        """Choose what of the changes may be committed; the child must be dead.

        Raises WorkspaceError where the changes cannot be read.
        """
        if self._changes is None:
            self._changes = read_changes(self.view, upper_fd=self._upper)
        return select_changes(
            self.view,
            self._changes,
            may_write=policy.may_write,
            named=named_by(policy),
            protected=(*PROTECTED, *job.protect),
            commit_ignored=commit_ignored,
        )

    def settle(self, job: Job, policy: Policy, *, act: Act) -> Settled:
        """Read the changes, and commit, keep or discard them; once, when the child is dead."""
        if self.is_untouched:
            return Settled()
        settled = Settled()
        try:
            selection = self.select(job, policy, commit_ignored=job.commit_ignored)
            settled = _described(selection, limit=self._disk_limit())
            return self._settle(selection.changes, job, settled, act=act)
        except WorkspaceError as error:
            return _failed(settled, error)

    @property
    def is_untouched(self) -> bool:
        """Whether the child was never confined, so that nothing can have been written."""
        return self._upper is None and self.view.form == "overlay"

    def _settle(self, chosen: Changes, job: Job, settled: Settled, *, act: Act) -> Settled:
        may_commit = act == "commit" and job.commits and not settled.limit
        if not chosen.entries:
            return msgspec.structs.replace(settled, committed=may_commit)
        if job.patch and act != "discard":
            settled = _saved(chosen, settled, path=os.path.abspath(job.patch))
        if act == "discard" or not job.commits:
            return settled
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

    def _keep(self, chosen: Changes, settled: Settled) -> Settled:
        path, stats = keep_patch(chosen, state_dir=self._state, run_id=self._run_id)
        return msgspec.structs.replace(
            settled, patch=path, diffstat=diffstat(stats), size_bytes=os.path.getsize(path)
        )

    def _disk_limit(self) -> LimitHit | None:
        """Say whether the view is full: then some file in it may be cut short."""
        if self.view.copy and self._disk_bytes is not None:
            used = usage_of(self.view.copy) - self._copied_bytes
            if used > self._disk_bytes:
                return LimitHit(kind="disk", value=self._disk_bytes, used=used)
        if self._upper is None:
            return None
        found = os.fstatvfs(self._upper)
        if found.f_bavail * found.f_bsize < SPARE_BYTES:
            size = found.f_blocks * found.f_frsize
            return LimitHit(kind="disk", value=size, used=size - found.f_bavail * found.f_bsize)
        if found.f_files and found.f_favail < SPARE_FILES:
            used = found.f_files - found.f_favail
            return LimitHit(kind="files", value=found.f_files, used=used)
        return None


def named_by(policy: Policy) -> Callable[[str], bool]:
    """Say of a path whether a write or edit rule names it literally."""
    literals = frozenset(policy.writable().literals)
    return lambda path: path in literals


def conflict_in_words(conflicts: tuple[Conflict, ...]) -> Failure:
    """Name the paths, and say what others did to them."""
    shown = ", ".join(f"{sayable(each.path)} ({each.did} meanwhile)" for each in conflicts[:20])
    more = f" and {len(conflicts) - 20} more" if len(conflicts) > 20 else ""
    return Failure(
        type="conflict", message=f"nothing was committed, since others wrote there: {shown}{more}"
    )


def _described(selection: Selection, *, limit: LimitHit | None) -> Settled:
    entries = selection.changes.entries
    executed = [each for each in entries if each.after is not None and is_executed(each.path)]
    return Settled(
        changes=tuple(Change(path=sayable(each.path), kind=each.kind) for each in entries),
        withheld=tuple(
            Withheld(path=sayable(each.path), reason=each.reason) for each in selection.withheld
        ),
        flagged=tuple(Flagged(path=sayable(each.path), reason=EXECUTED) for each in executed),
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
