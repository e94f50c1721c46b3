"""The files of one run as a transaction: a private view before it, a commit or nothing after it.

The view is opened before the child's first turn and settled after everything in the sandbox is
dead. The changes of a completed run are committed as far as the rules allow; those of any other run
are kept as a patch. Everything here blocks on files: what takes long is done in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from forkrun.errors import WorkspaceError
from forkrun.job import Job
from forkrun.leftovers import sweep_files, sweep_groups
from forkrun.policy import Policy
from forkrun.result import LimitHit
from forkrun.settled import Act, Settled, in_words
from forkrun.state import made_state_folder, state_folder
from forkrun.workspace.views import (
    Form,
    View,
    check_state,
    open_view,
    private_directory,
    sweep_views,
)

if TYPE_CHECKING:
    from forkrun.ledger import Ending
    from forkrun.settling import Changed
    from forkrun.workspace.commit import Recovery
    from forkrun.workspace.copies import Progress

SPARE_BYTES = 64 * 1024
SPARE_FILES = 16
COPY_POLL_S = 1.0


class Settle(Protocol):
    """Settles the files of a run, once."""

    def __call__(self, act: Act) -> Awaitable[Settled]: ...


Judge = Callable[["Ending", "Transaction", Settle], Awaitable["Settled"]]
"""Decides what becomes of the changes of a run whose child is dead."""


def tidy(
    workspace: str, *, environ: Mapping[str, str], keep_days: float, runs_follow: bool = True
) -> tuple[Recovery, ...]:
    """Finish or undo commits that were killed here, and remove what killed runs left behind.

    Where `runs_follow`, it is remembered where their control groups will be.
    """
    state = state_folder(environ)
    sweep_groups(state, remember=runs_follow)
    if not os.path.isdir(state):
        return ()
    sweep_views(state)
    sweep_files(state, keep_days=keep_days)
    if not _holds_something(os.path.join(state, "journals")):
        return ()
    from forkrun.workspace.commit import recover

    return tuple(map(in_words, recover(workspace, state_dir=state)))


def _holds_something(directory: str) -> bool:
    try:
        with os.scandir(directory) as entries:
            return any(True for _ in entries)
    except FileNotFoundError:
        return False


class Transaction:
    """A private view of a workspace, from when it is opened until it is settled.

    A context manager: when the block is left, everything of the view is gone. An overlay is opened
    as late as before the child's first turn, since the child needs nothing of it to start.
    """

    def __init__(
        self,
        workspace: str,
        *,
        form: Form,
        run_id: str,
        environ: Mapping[str, str],
        disk_bytes: int | None = None,
        is_shared: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """`disk_bytes` bounds the size of a copy, and what is added to it; `is_shared` says that
        its owner, who need not be us, must reach it by its path."""
        self.form = form
        self._environ = environ
        self._state = state_folder(environ)
        self._open = functools.partial(
            open_view,
            workspace,
            run_id=run_id,
            form=form,
            in_memory=True,
            max_copy_bytes=disk_bytes,
            is_shared=is_shared,
            progress=progress,
        )
        check_state(os.path.realpath(self._state), workspace=os.path.realpath(workspace))
        self._run_id = run_id
        self._disk_bytes = disk_bytes
        self._stack = contextlib.ExitStack()
        self._view: View | None = None
        self._upper: int | None = None
        self._changed: Changed | None = None
        self._copied_bytes = 0

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def view(self) -> View:
        """The view, once it is open."""
        if self._view is None:
            raise RuntimeError("the view is not open yet")
        return self._view

    def open(self) -> None:
        """Open the view, unless it is. Blocks on files; raises UsageError and WorkspaceError."""
        if self._view is not None:
            return
        self._state = made_state_folder(self._environ)
        try:
            self._view = self._stack.enter_context(self._open(state_dir=self._state))
        except OSError as error:
            raise WorkspaceError(f"the workspace cannot be opened: {error.strerror}") from error
        if self._view.copy and self._disk_bytes:
            self._copied_bytes = _usage_of(self._view.copy)

    def take_upper(self, descriptor: int) -> None:
        """Take the descriptor of the directory that the child's writes land in; ours from now."""
        self._upper = descriptor
        self._stack.callback(os.close, descriptor)

    async def until_full(self) -> LimitHit:
        """Return when a copy has grown by more than is allowed; a tmpfs is bounded by itself."""
        pause_s = COPY_POLL_S
        while True:
            await asyncio.sleep(pause_s)
            began = time.monotonic()
            if self.view.copy and (limit := await asyncio.to_thread(self._disk_limit)):
                return limit
            pause_s = max(COPY_POLL_S, 20 * (time.monotonic() - began))

    def settle(self, job: Job, policy: Policy, *, act: Act) -> Settled:
        """Read the changes, and commit, keep or discard them; once, when the child is dead."""
        if self.is_untouched:
            return Settled()
        limit = self._disk_limit()
        return self.changed().settle(job, policy, act=act, limit=limit)

    def changed(self) -> Changed:
        """Give what the child has changed, once it is dead; always the same."""
        if self._changed is None:
            # Much is needed for this, and nothing of it before the child is dead.
            from forkrun.settling import Changed

            self._changed = Changed(
                self.view,
                self._upper,
                state=self._state,
                run_id=self._run_id,
                disk_bytes=self._disk_bytes,
            )
        return self._changed

    def private_directory(self, name: str) -> AbstractContextManager[str]:
        """Make a directory that the child of another run over the same workspace can reach."""
        owner = self.view.workspace_owner[0]
        return private_directory(self._state, f"{self._run_id}.{name}", reached_by=owner)

    @property
    def is_untouched(self) -> bool:
        """Whether the child was never confined, so that nothing can have been written."""
        return self._upper is None and self.form == "overlay"

    def _disk_limit(self) -> LimitHit | None:
        """Say whether the view is full: then some file in it may be cut short."""
        if self.view.copy and self._disk_bytes is not None:
            used = _usage_of(self.view.copy) - self._copied_bytes
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


def _usage_of(directory: str) -> int:
    from forkrun.workspace.copies import usage_of

    return usage_of(directory)
