"""Open a private view of a workspace, and leave nothing of it behind.

    STATE/views/RUN_ID/            0700, locked by us as long as we live
        copy                       a copy of the workspace, to be mounted in its place
        upper, work                or an overlay's own directories; the workspace is the lower one

An overlay is mounted by the sandbox, inside its own mount namespace, with `userxattr`. Its upper
directory is the one here or one on a tmpfs, which bounds its size: the sandbox hands that over as a
descriptor, and nothing is made on the disk. Reading comes after the death of everything in the
sandbox.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from typing import Literal

from forkrun.errors import UsageError
from forkrun.workspace.baseline import CopyBaseline, OverlayBaseline
from forkrun.workspace.copies import Copied, Progress, copy_tree
from forkrun.workspace.dirs import Tree, open_tree, remove_tree
from forkrun.workspace.gitfiles import Ignored, Repository, find_repository, rules_of

Form = Literal["overlay", "copy"]

_OPEN_TO_ALL = "/var/tmp"  # noqa: S108 - names in it cannot be guessed, and are made exclusively


class View:
    """A view that is open. All paths are absolute; those of another form are None.

    `workspace_mode` and `workspace_owner` are what the top of an upper directory on a tmpfs must
    have too: a mounted overlay shows the modes of its upper directory.
    """

    def __init__(
        self,
        *,
        workspace: str,
        directory: str | None,
        form: Form,
        tree: Tree,
        repository: Repository | None,
    ) -> None:
        self.workspace = workspace
        self.directory = directory
        self.form = form
        self.tree = tree
        self.repository = repository
        found = os.fstat(tree.fd)
        self.workspace_mode = stat.S_IMODE(found.st_mode)
        self.workspace_owner = (found.st_uid, found.st_gid)
        self.upper = self.work = self.copy = None
        if directory is not None and form == "overlay":
            self.upper = os.path.join(directory, "upper")
            self.work = os.path.join(directory, "work")
        elif directory is not None:
            self.copy = os.path.join(directory, "copy")
        self.copied = Copied()
        self.baseline: OverlayBaseline | CopyBaseline = CopyBaseline({})
        self.trees: list[Tree] = []


@contextlib.contextmanager
def open_view(
    workspace: str,
    *,
    run_id: str,
    state_dir: str,
    form: Form = "overlay",
    in_memory: bool = False,
    max_copy_bytes: int | None = None,
    is_shared: bool = False,
    progress: Progress | None = None,
) -> Iterator[View]:
    """Open a view of a directory; the start of the run is the moment before this returns.

    `in_memory` says that the upper directory of an overlay will be handed over; `is_shared`
    says that the owner of the workspace must reach the view by its path.
    Everything of the view is removed at the end, whatever was put into it. Raises UsageError where
    the state directory lies in the workspace, WorkspaceError where a copy would be too large.
    """
    workspace = os.path.realpath(workspace)
    state_dir = os.path.realpath(state_dir)
    check_state(state_dir, workspace=workspace)
    with contextlib.ExitStack() as stack:
        tree = stack.enter_context(open_tree(workspace))
        owner = os.fstat(tree.fd).st_uid if is_shared else None
        directory = None
        if form == "copy" or not in_memory:
            directory = stack.enter_context(private_directory(state_dir, run_id, reached_by=owner))
        repository = find_repository(workspace)
        if repository is not None:
            stack.callback(repository.close)
        view = View(
            workspace=workspace,
            directory=directory,
            form=form,
            tree=tree,
            repository=repository,
        )
        stack.callback(_close_trees, view)
        for path in (view.upper, view.work, view.copy):
            if path is not None:
                _make_like(path, view)
        if view.copy is None:
            view.baseline = OverlayBaseline(tree, repository)
        else:
            ignored = Ignored(rules_of(tree), repository=repository)
            with open_tree(view.copy) as target:
                view.copied = copy_tree(
                    tree, target, ignored=ignored, max_bytes=max_copy_bytes, progress=progress
                )
            view.baseline = CopyBaseline(view.copied.before)
        tree.forget()  # a thousand runs may wait like this
        yield view


def check_state(state_dir: str, *, workspace: str) -> None:
    """Refuse a workspace that our own files lie in; both paths are real ones."""
    if os.path.commonpath([workspace, state_dir]) == workspace:
        raise UsageError(f"the state directory lies in the workspace: {state_dir}")


def check_workspace(workspace: str, *, home: str) -> None:
    """Refuse what must never be a workspace: "/", the home directory, and what contains it."""
    real, home = os.path.realpath(workspace), os.path.realpath(home)
    if not os.path.isdir(real):
        raise UsageError(f"the workspace is no directory: {workspace}")
    if os.path.commonpath([real, home]) == real:
        what = "the root directory" if real == "/" else "the home directory, or contains it"
        raise UsageError(
            f"the workspace is {what}: {real}", hint="Name the directory of a project instead."
        )


def sweep_views(state_dir: str) -> int:
    """Remove the views whose owners are dead, and return how many there were."""
    try:
        views = os.open(os.path.join(state_dir, "views"), os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return 0
    try:
        fcntl.flock(views, fcntl.LOCK_EX)
        return sum(_remove_if_dead(views, name) for name in os.listdir(views))
    finally:
        os.close(views)


@contextlib.contextmanager
def private_directory(
    state_dir: str, run_id: str, *, reached_by: int | None = None
) -> Iterator[str]:
    """Make STATE/views/RUN_ID, and hold a lock on it that dies with us; gone afterwards.

    Where we are root and another user (`reached_by`) could not pass through STATE, the directory
    that is given lies elsewhere; a link in STATE names it, so that a sweep finds it.
    """
    at = os.path.join(state_dir, "views")
    os.makedirs(at, mode=0o700, exist_ok=True)
    views = os.open(at, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(views, fcntl.LOCK_EX)  # so that no sweep comes between the next two lines
        os.mkdir(run_id, 0o700, dir_fd=views)
        lock = os.open(run_id, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=views)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            fcntl.flock(views, fcntl.LOCK_UN)
            if reached_by is None or os.geteuid() != 0 or reached_by == 0:
                yield os.path.join(at, run_id)
            else:
                yield _make_elsewhere(lock)
        finally:
            _remove_elsewhere(lock)
            remove_tree(views, run_id)
            os.close(lock)
    finally:
        os.close(views)


_ELSEWHERE = "elsewhere"
_PREFIX = "forkrun-"


def _make_elsewhere(directory: int) -> str:
    """Make a directory that everybody can pass through and nobody but root list or write."""
    path = os.path.join(_OPEN_TO_ALL, _PREFIX + os.urandom(16).hex())
    os.symlink(path, _ELSEWHERE, dir_fd=directory)  # first, so that a kill in between leaves none
    os.mkdir(path, 0o700)
    os.chmod(path, 0o711)  # noqa: S103 - to pass through, not to list
    return path


def _remove_elsewhere(directory: int) -> None:
    try:
        above, name = os.path.split(os.readlink(_ELSEWHERE, dir_fd=directory))
    except OSError:
        return
    if name.startswith(_PREFIX):
        with open_tree(above) as tree:
            remove_tree(tree.fd, name)


def _remove_if_dead(views: int, name: str) -> bool:
    try:
        lock = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=views)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove_elsewhere(lock)
        remove_tree(views, name)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


def _make_like(path: str, view: View) -> None:
    """Make a directory with the mode and, as root, the owner of the workspace."""
    os.mkdir(path)
    if os.geteuid() == 0:
        os.chown(path, *view.workspace_owner)
    os.chmod(path, view.workspace_mode)


def _close_trees(view: View) -> None:
    for tree in view.trees:
        tree.close()
