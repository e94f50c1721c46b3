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
from forkrun.workspace.records import Change, Changes, Node
from forkrun.workspace.steps import Moved, Place, clean_step, do_step, undo_step
from forkrun.workspace.transfer import copy_bytes


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
    with _locked(changes.workspace, state_dir, lock_timeout_s) as tree:
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
    with _locked(workspace, state_dir, lock_timeout_s) as tree:
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
    steps = tuple(_Planner(tree, changes.entries, token=token).steps())
    plan = Plan(workspace=os.fsencode(changes.workspace), steps=steps)
    with _failing(changes.workspace), new_journal(state_dir, plan, token=token) as journal:
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
def _failing(workspace: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WorkspaceError(
            f"the changes cannot be committed to {workspace}: {error}",
            hint="Nothing was changed there.",
        ) from error


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
    """Copy extended attributes (access lists among them) as far as we may."""
    with contextlib.suppress(OSError):
        old = tree.open_file(path)
        try:
            for name in os.listxattr(old):
                with contextlib.suppress(OSError):
                    os.setxattr(new, name, os.getxattr(old, name))
        finally:
            os.close(old)


def _do(place: Place) -> None:
    for step in place.journal.plan.steps:
        do_step(place, step)
    place.tree.forget()
    for directory in {os.path.dirname(step.path) for step in place.journal.plan.steps}:
        with contextlib.suppress(OSError):  # removed since, or not to be synced
            os.fsync(place.tree.open_dir(os.fsdecode(directory)))
    place.journal.mark("done")


def _undo(place: Place) -> None:
    journal = place.journal
    if journal.has("committing"):
        journal.mark("undoing")
    place.tree.forget()
    for index, step in reversed(list(enumerate(journal.plan.steps))):
        undo_step(place, step, new_inode=journal.inodes.get(index, 0))
    journal.remove()


def _clean(place: Place) -> None:
    place.tree.forget()
    for step in place.journal.plan.steps:
        clean_step(place, step)
    place.journal.remove()


class _Planner:
    """Turns changes into steps, in an order in which each can be done."""

    def __init__(self, tree: Tree, entries: tuple[Change, ...], *, token: str) -> None:
        self._tree = tree
        self._token = token
        self._count = 0
        self._gone = {each.path for each in entries if each.after is None}
        self._fresh = {each.path for each in entries if each.before is None}
        self._entries = entries

    def steps(self) -> Iterator[Step]:
        """Yield removals from the bottom up, new directories, contents, and last the modes."""
        removed = [each for each in self._entries if each.after is None]
        for each in reversed(removed):
            yield self._remove(each)
        kept = [each for each in self._entries if each.after is not None]
        made = [each for each in kept if each.before is None and _is_directory(each)]
        for each in made:
            if self._tree.lstat(each.path) is None or each.path in self._gone:
                yield Step(act="make", path=os.fsencode(each.path), is_directory=True)
        for each in kept:
            if not _is_directory(each) and each.kind != "mode":
                yield self._put(each)
        for each in reversed(kept):
            if each.kind == "mode" or each in made:
                yield from self._mode(each)

    def _remove(self, change: Change) -> Step:
        before = change.before
        assert before is not None
        old = self._old(change.path)
        return Step(
            act="remove",
            path=os.fsencode(change.path),
            backup=self._name(change.path),
            is_directory=before.type == "directory",
            mode=before.mode,
            inode=old.st_ino,
            size=old.st_size,
            mtime_ns=old.st_mtime_ns,
        )

    def _put(self, change: Change) -> Step:
        after, before = change.after, change.before
        assert after is not None
        path = os.fsencode(change.path)
        if before is None:
            return Step(act="add", path=path, new=self._name(change.path), mode=after.mode & 0o777)
        old = self._old(change.path)
        in_place = after.type == before.type == "file" and self._is_stuck(change.path)
        return Step(
            act="replace",
            path=path,
            new=self._name(change.path, in_journal=in_place),
            backup=self._name(change.path, in_journal=in_place),
            mode=after.mode & (0o777 | before.mode),
            old_mode=before.mode,
            inode=old.st_ino,
            size=old.st_size,
            mtime_ns=old.st_mtime_ns,
        )

    def _mode(self, change: Change) -> Iterator[Step]:
        after, before = change.after, change.before
        assert after is not None
        old_mode = 0o700 if before is None else before.mode
        mode = after.mode & (0o777 | old_mode)
        is_theirs = before is None and change.path not in self._gone
        if is_theirs and self._tree.lstat(change.path) is not None:
            return  # somebody has made the same directory, and its mode
        yield Step(
            act="mode",
            path=os.fsencode(change.path),
            is_directory=_is_directory(change),
            mode=mode,
            old_mode=old_mode,
        )

    def _old(self, path: str) -> os.stat_result:
        found = self._tree.lstat(path)
        if found is None:
            raise WorkspaceError(f"gone while the commit was planned: {path}")
        return found

    def _name(self, path: str, *, in_journal: bool = False) -> bytes:
        """Return a name of our own in the nearest directory that stands before and after."""
        self._count += 1
        name = f".forkrun-{self._token}-{self._count}"
        if in_journal:
            return b"/" + os.fsencode(name)
        anchor = path.rpartition("/")[0]
        while anchor in self._gone or anchor in self._fresh:
            anchor = anchor.rpartition("/")[0]
        return os.fsencode(join(anchor, name))

    def _is_stuck(self, path: str) -> bool:
        """Whether a file can be written, but not replaced by another one of the same owner."""
        directory, name = self._tree.parent(path)
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if os.geteuid() not in (0, found.st_uid):
            return True
        return not os.access(".", os.W_OK | os.X_OK, dir_fd=directory, effective_ids=True)


def _is_directory(change: Change) -> bool:
    node = change.after or change.before
    return node is not None and node.type == "directory"
