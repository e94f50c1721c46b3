"""Make the changes of a view the workspace's own: all of them, or none.

    lock ─▶ recover what a dead commit left ─▶ conflicts? ─▶ plan on disk ─▶ new files ready beside
    their places ─▶ conflicts? ─▶ "committing" on disk ─▶ steps ─▶ "done" on disk ─▶ remove the old

A kill before "committing" is undone by the next `recover`, one after it is finished, unless
somebody has changed a path meanwhile: then all that was done is undone. Each file is replaced by
one rename; where a rename is not possible (a file that is a mount point, a directory that cannot
be written, another owner) it is written in place, from a journalled copy.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from forkrun.errors import WorkspaceError
from forkrun.workspace.changes import join
from forkrun.workspace.dirs import Tree, open_tree
from forkrun.workspace.journal import (
    Plan,
    Step,
    new_journal,
    new_token,
    old_journals,
    workspace_key,
    workspaces_of,
)
from forkrun.workspace.lock import workspace_lock
from forkrun.workspace.planning import plan_steps
from forkrun.workspace.records import Change, Changes, Node
from forkrun.workspace.steps import Moved, Place, clean_step, do_step, undo_step
from forkrun.workspace.transfer import copy_bytes

_HARMLESS = ("user.", "system.posix_acl_access")


class Conflict(msgspec.Struct, frozen=True, kw_only=True):
    """A path that somebody else "changed", "created" or "deleted" since the start of the run."""

    path: str
    did: str


class Committed(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a commit: everything is in the workspace, or nothing is (`conflicts`).

    `recovered` is what had to be made good first.
    """

    is_committed: bool
    conflicts: tuple[Conflict, ...] = ()
    recovered: tuple[Recovery, ...] = ()


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """How a commit that was killed was made good, and which paths it was about."""

    outcome: Literal["finished", "undone"]
    paths: tuple[str, ...]


def commit_changes(changes: Changes, *, state_dir: str, lock_timeout_s: float = 60.0) -> Committed:
    """Bring all the changes into the workspace, or none where there is a conflict.

    Raises WorkspaceError where the workspace stays locked, or cannot be written; it is then as it
    was.
    """
    with _locked(changes.workspace, state_dir, lock_timeout_s) as tree, _failing():
        _expect_same_directory(tree, changes)
        recovered = _recover(tree, changes.workspace, state_dir)
        conflicts = find_conflicts(tree, changes.entries)
        if conflicts:
            return Committed(is_committed=False, conflicts=conflicts, recovered=recovered)
        if changes.entries:
            conflicts = _commit(tree, changes, state_dir)
    return Committed(is_committed=not conflicts, conflicts=conflicts, recovered=recovered)


def recover(
    workspace: str, *, state_dir: str, lock_timeout_s: float = 60.0
) -> tuple[Recovery, ...]:
    """Finish or undo every commit in this workspace that was killed, and say which."""
    workspace = os.path.realpath(workspace)
    if not os.path.isdir(os.path.join(state_dir, "journals")):
        return ()
    with _locked(workspace, state_dir, lock_timeout_s) as tree, _failing():
        return _recover(tree, workspace, state_dir)


def interrupted(state_dir: str) -> tuple[str, ...]:
    """Name the workspaces in which a commit was killed (or is under way at this moment)."""
    return tuple(os.fsdecode(workspace) for workspace in workspaces_of(state_dir))


def find_conflicts(tree: Tree, entries: Iterable[Change]) -> tuple[Conflict, ...]:
    """Compare what stands in the workspace with what stood there when the changes were read."""
    entries = tuple(entries)
    deleted = {each.path for each in entries if each.after is None}
    found: dict[str, str] = {}
    for each in entries:
        did = each.conflict or _since(tree, each, deleted=deleted)
        if did is not None:
            found.setdefault(each.path, did)
        elif each.after is None and each.before is not None and each.before.type == "directory":
            for name in tree.names(each.path):
                if join(each.path, name) not in deleted:
                    found.setdefault(join(each.path, name), "created")
    return tuple(Conflict(path=path, did=did) for path, did in found.items())


def _since(tree: Tree, change: Change, *, deleted: set[str]) -> str | None:
    now = tree.lstat(change.path)
    if change.before is None:
        if now is None or change.path in deleted:
            return None
        both = change.after is not None and change.after.type == "directory"
        return None if both and stat.S_ISDIR(now.st_mode) else "created"
    if now is None:
        return "deleted"
    return None if _is_as_before(now, change.before) else "changed"


def _is_as_before(now: os.stat_result, before: Node) -> bool:
    if stat.S_ISDIR(now.st_mode) or before.type == "directory":
        return stat.S_ISDIR(now.st_mode) and before.type == "directory"
    return (now.st_ino, now.st_mtime_ns, now.st_ctime_ns) == (
        before.inode,
        before.mtime_ns,
        before.ctime_ns,
    )


@contextlib.contextmanager
def _locked(workspace: str, state_dir: str, timeout_s: float) -> Iterator[Tree]:
    try:
        tree = open_tree(workspace)
    except OSError as error:
        raise WorkspaceError(f"the workspace cannot be opened: {error}") from error
    fallback = os.path.join(state_dir, "locks", workspace_key(os.fsencode(workspace)))
    with tree, workspace_lock(tree.fd, fallback=fallback, timeout_s=timeout_s):
        yield tree


def _commit(tree: Tree, changes: Changes, state_dir: str) -> tuple[Conflict, ...]:
    token = new_token()
    steps = plan_steps(tree, changes.entries, token=token)
    plan = Plan(workspace=os.fsencode(changes.workspace), steps=steps)
    with new_journal(state_dir, plan, token=token) as journal:
        place = Place(tree, journal)
        try:
            _prepare(place, changes)
            conflicts = find_conflicts(tree, changes.entries)
            if conflicts:
                _undo(place)
                return conflicts
            journal.mark("committing")
            _do(place)
        except Moved as moved:
            _undo(place)
            return (Conflict(path=moved.path, did=moved.did),)
        except BaseException:
            _undo(place)
            raise
        _clean(place)
    return ()


@contextlib.contextmanager
def _failing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WorkspaceError(
            f"the changes cannot be committed: {error}", hint="The workspace is as it was."
        ) from error


def _expect_same_directory(tree: Tree, changes: Changes) -> None:
    """Refuse where another directory stands at the workspace's path than at the start."""
    if isinstance(changes.old, Tree):
        then, now = os.fstat(changes.old.fd), os.fstat(tree.fd)
        if (then.st_dev, then.st_ino) != (now.st_dev, now.st_ino):
            raise WorkspaceError(
                f"another directory has taken the place of the workspace: {changes.workspace}"
            )


def _recover(tree: Tree, workspace: str, state_dir: str) -> tuple[Recovery, ...]:
    with old_journals(state_dir, os.fsencode(workspace)) as journals:
        return tuple(_make_good(Place(tree, journal)) for journal in journals)


def _make_good(place: Place) -> Recovery:
    journal = place.journal
    paths = tuple(os.fsdecode(step.path) for step in journal.plan.steps)
    outcome: Literal["finished", "undone"] = "finished"
    if journal.has("committing"):
        journal.read_inodes()
    if not journal.has("done"):
        try:
            if journal.has("undoing") or not journal.has("committing"):
                outcome = "undone"
            else:
                _do(place)
        except (Moved, OSError):
            outcome = "undone"
    if outcome == "finished":
        _clean(place)
    else:
        _undo(place)
    return Recovery(outcome=outcome, paths=paths)


def _prepare(place: Place, changes: Changes) -> None:
    """Make every new file, link and content ready beside its place, and on the disk."""
    after = {each.path: each for each in changes.entries if each.after is not None}
    ready: list[int] = []
    try:
        for index, step in enumerate(place.journal.plan.steps):
            if step.act in ("add", "replace"):
                change = after[os.fsdecode(step.path)]
                ready += _make_new(place, step, change, changes)
                found = place.lstat(step.new)
                assert found is not None
                place.journal.inodes[index] = found.st_ino
            if len(ready) >= 64:
                _sync(ready)
        _sync(ready)
    finally:
        for fd in ready:
            os.close(fd)


def _sync(ready: list[int]) -> None:
    while ready:
        os.fsync(ready[-1])
        os.close(ready.pop())


def _make_new(place: Place, step: Step, change: Change, changes: Changes) -> list[int]:
    """Make one new entry; return the descriptor of a file, still to be synced."""
    assert change.after is not None
    directory, name = place.at(step.new)
    if change.after.type == "symlink":
        os.symlink(change.after.target, name, dir_fd=directory)
        place.give_to_owner(name, directory)
        return []
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    new = os.open(name, flags, 0o600, dir_fd=directory)
    try:
        source = changes.source.open_file(change.path)
        try:
            copy_bytes(source, new)
        finally:
            os.close(source)
        if not step.new.startswith(b"/"):
            _dress(place, new, step)
    except BaseException:
        os.close(new)
        raise
    return [new]


def _dress(place: Place, new: int, step: Step) -> None:
    """Give a new file the owner and extended attributes of the old one, and its mode."""
    if step.act == "replace":
        directory, name = place.at(step.path)
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISREG(found.st_mode):
            if (found.st_uid, found.st_gid) != (os.geteuid(), os.getegid()):
                with contextlib.suppress(PermissionError):
                    os.fchown(new, found.st_uid, found.st_gid)
            _copy_attributes(place.tree, os.fsdecode(step.path), new)
    else:
        directory, name = place.at(step.new)
        place.give_to_owner(name, directory)
    os.fchmod(new, step.mode)


def _copy_attributes(tree: Tree, path: str, new: int) -> None:
    """Copy the user's own extended attributes and the access list, as far as we may.

    Nothing else: `security.capability` (capabilities(7)) was given to the old content.
    """
    with contextlib.suppress(OSError):
        old = tree.open_file(path)
        try:
            names = [name for name in os.listxattr(old) if name.startswith(_HARMLESS)]
            for name in names:
                with contextlib.suppress(OSError):
                    os.setxattr(new, name, os.getxattr(old, name))
        finally:
            os.close(old)


def _do(place: Place) -> None:
    for step in place.journal.plan.steps:
        do_step(place, step)
    place.tree.forget()
    for directory in sorted({os.path.dirname(step.path) for step in place.journal.plan.steps}):
        with contextlib.suppress(OSError):  # removed since, or not to be synced
            os.fsync(place.tree.open_dir(os.fsdecode(directory)))
    place.journal.mark("done")


def _undo(place: Place) -> None:
    journal = place.journal
    try:
        if journal.has("committing"):
            journal.mark("undoing")
        place.tree.forget()
        for index, step in reversed(list(enumerate(journal.plan.steps))):
            undo_step(place, step, new_inode=journal.inodes.get(index, 0))
    except OSError as error:
        raise WorkspaceError(
            f"a commit that failed half way cannot be undone now: {error}",
            hint=f"`forkrun recover` tries again; the journal is {journal.directory}",
        ) from error
    journal.remove()


def _clean(place: Place) -> None:
    place.tree.forget()
    for step in place.journal.plan.steps:
        clean_step(place, step)
    place.journal.remove()
