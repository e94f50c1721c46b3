"""The files of one run as a transaction: a private view before it, a commit or nothing after it.

The view is opened before the child starts and settled after everything in the sandbox is dead. The
changes of a completed run are committed as far as the rules allow; those of any other run are kept
as a patch. Everything here blocks on files: the event loop has it done in a thread.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from forkrun.errors import WorkspaceError
from forkrun.job import Job
from forkrun.policy import Policy
from forkrun.result import Change, Failure, LimitHit, Withheld
from forkrun.state import state_folder
from forkrun.workspace.oldpatches import sweep_patches
from forkrun.workspace.views import Form, View, open_view, sweep_views
from forkrun_sandbox.launch import sweep as sweep_groups

if TYPE_CHECKING:
    from forkrun.workspace.commit import Conflict, Recovery
    from forkrun.workspace.records import Changes

SPARE_BYTES = 64 * 1024
SPARE_FILES = 16


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the changes. `ignored` counts those that git ignores; `diffstat` is text for
    people; `error` says why a commit that should have been could not be (`is_conflict`: because
    somebody else changed the same files)."""

    changes: tuple[Change, ...] = ()
    withheld: tuple[Withheld, ...] = ()
    ignored: int = 0
    committed: bool = False
    patch: str | None = None
    diffstat: str = ""
    is_conflict: bool = False
    limit: LimitHit | None = None
    error: Failure | None = None


def tidy(workspace: str, *, environ: Mapping[str, str], keep_days: float) -> tuple[Recovery, ...]:
    """Finish or undo commits that were killed here, and remove what killed runs left behind."""
    state = state_folder(environ)
    sweep_groups()
    if not os.path.isdir(state):
        return ()
    sweep_views(state)
    sweep_patches(state, keep_days=keep_days)
    if not _holds_something(os.path.join(state, "journals")):
        return ()
    from forkrun.workspace.commit import recover

    return recover(workspace, state_dir=state)


def _holds_something(directory: str) -> bool:
    try:
        with os.scandir(directory) as entries:
            return any(True for _ in entries)
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def open_transaction(
    workspace: str, *, form: Form, run_id: str, environ: Mapping[str, str]
) -> Iterator[Transaction]:
    """Open a private view of a workspace; everything of it is gone when the block is left."""
    state = state_folder(environ)
    os.makedirs(state, mode=0o700, exist_ok=True)
    with open_view(workspace, run_id=run_id, state_dir=state, form=form) as view:
        transaction = Transaction(view, state=state, run_id=run_id)
        try:
            yield transaction
        finally:
            transaction.close()


class Transaction:
    """An open view, until it is settled."""

    def __init__(self, view: View, *, state: str, run_id: str) -> None:
        self.view = view
        self._state = state
        self._run_id = run_id
        self._upper: int | None = None

    def take_upper(self, descriptor: int) -> None:
        """Take the descriptor of the directory that the child's writes land in; ours from now."""
        self._upper = descriptor

    def close(self) -> None:
        """Let go of that directory."""
        if self._upper is not None:
            os.close(self._upper)
            self._upper = None

    def settle(self, job: Job, policy: Policy, *, is_completed: bool) -> Settled:
        """Read the changes, and commit, keep or discard them; once, when the child is dead."""
        if self._upper is None and self.view.form == "overlay":
            return Settled()  # the child was never confined, so nothing can have been written
        try:
            return self._settle(job, policy, is_completed=is_completed)
        except WorkspaceError as error:
            return Settled(error=Failure(type="workspace", message=str(error)))

    def _settle(self, job: Job, policy: Policy, *, is_completed: bool) -> Settled:
        # Much is needed for this, and nothing of it before the child is dead.
        from forkrun.workspace.changes import read_changes
        from forkrun.workspace.selection import select_changes

        selection = select_changes(
            self.view,
            read_changes(self.view, upper_fd=self._upper),
            may_write=policy.may_write,
            named=named_by(policy),
            commit_ignored=job.commit_ignored,
        )
        chosen = selection.changes
        settled = Settled(
            changes=tuple(Change(path=each.path, kind=each.kind) for each in chosen.entries),
            withheld=tuple(Withheld(path=w.path, reason=w.reason) for w in selection.withheld),
            ignored=selection.ignored,
        )
        if not chosen.entries:
            return msgspec.structs.replace(settled, committed=is_completed and job.commits)
        if job.patch:
            from forkrun.workspace.keep import save_patch
            from forkrun.workspace.patch import diffstat

            stats = save_patch(chosen, path=os.path.abspath(job.patch))
            settled = msgspec.structs.replace(
                settled, patch=os.path.abspath(job.patch), diffstat=diffstat(stats)
            )
        if not job.commits:
            return settled
        if limit := self._disk_limit():
            return msgspec.structs.replace(self._keep(chosen, settled), limit=limit)
        if is_completed:
            return self._commit(chosen, settled)
        return self._keep(chosen, settled)

    def _disk_limit(self) -> LimitHit | None:
        """Say whether the view is full: then some file in it may be cut short."""
        if self._upper is None:
            return None
        found = os.fstatvfs(self._upper)
        if found.f_bavail * found.f_bsize >= SPARE_BYTES and found.f_favail >= SPARE_FILES:
            return None
        size = found.f_blocks * found.f_frsize
        return LimitHit(kind="disk", value=size, used=size - found.f_bavail * found.f_bsize)

    def _commit(self, chosen: Changes, settled: Settled) -> Settled:
        from forkrun.workspace.commit import commit_changes

        # The patch comes first: a commit replaces the contents that it is made of.
        kept = self._keep(chosen, settled)
        done = commit_changes(chosen, state_dir=self._state)
        if done.is_committed:
            if kept.patch and kept.patch != settled.patch:
                os.unlink(kept.patch)
            return msgspec.structs.replace(kept, committed=True, patch=settled.patch)
        return msgspec.structs.replace(kept, is_conflict=True, error=_in_words(done.conflicts))

    def _keep(self, chosen: Changes, settled: Settled) -> Settled:
        if settled.patch:
            return settled
        from forkrun.workspace.keep import keep_patch
        from forkrun.workspace.patch import diffstat

        path, stats = keep_patch(chosen, state_dir=self._state, run_id=self._run_id)
        return msgspec.structs.replace(settled, patch=path, diffstat=diffstat(stats))


def named_by(policy: Policy) -> Callable[[str], bool]:
    """Say of a path whether a write or edit rule names it literally."""
    literals = frozenset(policy.writable().literals)
    return lambda path: path in literals


def _in_words(conflicts: tuple[Conflict, ...]) -> Failure:
    shown = ", ".join(f"{each.path} ({each.did} meanwhile)" for each in conflicts[:20])
    more = f" and {len(conflicts) - 20} more" if len(conflicts) > 20 else ""
    return Failure(
        type="conflict", message=f"nothing was committed, since others wrote there: {shown}{more}"
    )
