"""Turn changes into the steps of a commit, in an order in which each can be done."""

from __future__ import annotations

import os
from collections.abc import Iterator

from forkrun.errors import WorkspaceError
from forkrun.workspace.changes import join
from forkrun.workspace.dirs import Tree
from forkrun.workspace.journal import Step
from forkrun.workspace.records import Change


def plan_steps(tree: Tree, entries: tuple[Change, ...], *, token: str) -> tuple[Step, ...]:
    """Plan removals from the bottom up, then new directories, contents, and last the modes.

    New and old contents get names with `token` in the nearest directory that stands both before
    and after.
    """
    return tuple(_Planner(tree, entries, token=token).steps())


class _Planner:
    def __init__(self, tree: Tree, entries: tuple[Change, ...], *, token: str) -> None:
        self._tree = tree
        self._token = token
        self._count = 0
        self._gone = {each.path for each in entries if each.after is None}
        self._fresh = {each.path for each in entries if each.before is None}
        self._entries = entries
        self._anchors = {"": ""}

    def steps(self) -> Iterator[Step]:
        removed = [each for each in self._entries if each.after is None]
        for each in reversed(removed):
            yield self._remove(each)
        kept = [each for each in self._entries if each.after is not None]
        made = {each.path: each for each in kept if each.before is None and _is_directory(each)}
        for each in made.values():
            if self._tree.lstat(each.path) is None or each.path in self._gone:
                yield Step(act="make", path=os.fsencode(each.path), is_directory=True)
        for each in kept:
            if not _is_directory(each) and each.kind != "mode":
                yield self._put(each)
        for each in reversed(kept):
            if each.kind == "mode" or each is made.get(each.path):
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
            mode=after.mode & 0o777,  # a set-user-ID bit was given to the old content
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
        return os.fsencode(join(self._anchor(path.rpartition("/")[0]), name))

    def _anchor(self, directory: str) -> str:
        """Return the nearest directory that stands before and after."""
        pending = []
        while directory not in self._anchors:
            if directory not in self._gone and directory not in self._fresh:
                self._anchors[directory] = directory
                break
            pending.append(directory)
            directory = directory.rpartition("/")[0]
        self._anchors.update(dict.fromkeys(pending, self._anchors[directory]))
        return self._anchors[directory]

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
