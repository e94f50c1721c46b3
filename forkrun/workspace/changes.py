"""Read what a view changed, as data, after everything that could write into it is dead.

An overlay's upper directory is the difference itself: only it is walked (and of the workspace no
more than what was deleted). Marks are those of overlayfs mounted with `userxattr`: a deleted name
is a 0/0 character device or carries `user.overlay.whiteout`; a directory with
`user.overlay.opaque` = "y" hides what is below it; `user.overlay.origin` marks a copy of a file of
the workspace, and is empty where a user namespace mounted it (Linux 6.18; overlayfs.rst). A child
can neither make nor see such marks. Redirects and metacopy are off under `userxattr`.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import NamedTuple

from forkrun.errors import WorkspaceError
from forkrun.workspace.baseline import stamp_of
from forkrun.workspace.dirs import MAX_PATH_BYTES, Tree, open_tree
from forkrun.workspace.records import Change, Changes, Kind, Node, NodeType, Withheld
from forkrun.workspace.transfer import same_bytes
from forkrun.workspace.views import View

_TYPES: dict[int, NodeType] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
}
_SPECIAL_NAMES = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


def read_changes(
    view: View,
    *,
    upper_fd: int | None = None,
    max_bytes: int | None = None,
    max_entries: int = 200_000,
) -> Changes:
    """Return what the view differs in from the workspace as it is now. Call it once for a view.

    Files may be larger than those of the workspace by `max_bytes` in all, holes included (those
    beyond are withheld); by default, the size of the filesystem that the view's writes land in.

    `upper_fd` is the upper directory where the sandbox made one of its own (a tmpfs); it stays the
    caller's. Files that were touched but are the same are no change. Raises WorkspaceError beyond
    `max_entries` changes or `MAX_PATHS_BYTES` of their paths, or where something cannot be read.
    """
    new = _open_new_side(view, upper_fd)
    if max_bytes is None:
        found = os.fstatvfs(new.fd)
        max_bytes = found.f_blocks * found.f_frsize
    reader = _Reader(view, new, max_entries=max_entries, max_bytes=max_bytes)
    try:
        if view.copy is None:
            reader.read_upper()
        else:
            reader.read_copy()
    except OSError as error:
        raise WorkspaceError(f"the changes cannot be read: {error}") from error
    return reader.result()


def node_of(found: os.stat_result, *, target: str = "", is_old: bool = False) -> Node:
    """Describe an entry; `is_old` keeps what a later look at the workspace is compared with."""
    kind = _TYPES.get(stat.S_IFMT(found.st_mode), "special")
    return Node(
        type=kind,
        mode=stat.S_IMODE(found.st_mode),
        size=found.st_size if kind == "file" else 0,
        target=target,
        inode=found.st_ino if is_old else 0,
        mtime_ns=found.st_mtime_ns if is_old else 0,
        ctime_ns=found.st_ctime_ns if is_old else 0,
    )


MAX_PATHS_BYTES = 64 * 1024 * 1024
"""Of all paths that were changed, together: they are held in memory several times."""


class _Frame(NamedTuple):
    """A directory of the upper that is still to be read; `is_opaque` hides the workspace below."""

    path: str
    is_opaque: bool


class _Doubt(NamedTuple):
    """A new entry with nothing below it: new, renamed, or was what it replaced deleted?"""

    entry: int
    came_from: int | None


class _Reader:
    """Collects the changes of one view."""

    def __init__(self, view: View, new: Tree, *, max_entries: int, max_bytes: int) -> None:
        self.view = view
        self.new = new
        self.old = view.tree
        self.max_entries = max_entries
        self.max_bytes = max_bytes
        self.grown_bytes = 0
        self.path_bytes = 0
        self.entries: list[Change] = []
        self.withheld: list[Withheld] = []
        self.doubts: list[_Doubt] = []
        self.met: set[int] = set()
        self.absent: set[str] = set()

    def result(self) -> Changes:
        self._settle_doubts()
        # A deletion comes before an addition at the same path.
        self.entries.sort(key=lambda each: (each.path, each.after is not None))
        return Changes(
            workspace=self.view.workspace,
            entries=tuple(self.entries),
            source=self.new,
            old=self.old,
            withheld=tuple(self.withheld),
        )

    # -- an overlay's upper directory

    def read_upper(self) -> None:
        pending = [_Frame("", is_opaque=False)]
        while pending:
            frame = pending.pop()
            names = self.new.names(frame.path)
            for name in names:
                below = self._read_upper_entry(join(frame.path, name), frame)
                if below is not None:
                    pending.append(below)
            if frame.is_opaque:
                self._hidden(frame.path, shown=set(names))

    def _read_upper_entry(self, path: str, frame: _Frame) -> _Frame | None:
        if self._is_too_long(path):
            return None
        found = self._stat_new(path)
        now = self._now(path, found)
        marks = self._marks(path, found)
        if now is not None and not stat.S_ISDIR(now.st_mode):
            self.met.add(now.st_ino)
        if _is_whiteout(found, marks):
            if now is not None:
                self._deleted(path, now)
            return None
        origin = marks.get("origin")
        came_from = None if origin is None else _inode_of(origin)
        self._differs(path, found, now, came_from=came_from)
        if not stat.S_ISDIR(found.st_mode):
            return None
        return _Frame(path, is_opaque=frame.is_opaque or marks.get("opaque") == b"y")

    def _marks(self, path: str, found: os.stat_result) -> dict[str, bytes]:
        """Read the marks of overlayfs on a file or directory of the upper."""
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            return {}
        try:
            at = (
                self.new.open_dir(path) if stat.S_ISDIR(found.st_mode) else self.new.open_file(path)
            )
            try:
                return {
                    name[13:]: os.getxattr(at, name)
                    for name in os.listxattr(at)
                    if name.startswith("user.overlay.")
                }
            finally:
                if stat.S_ISREG(found.st_mode):
                    os.close(at)
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.ENODATA):
                return {}
            raise

    def _hidden(self, path: str, *, shown: set[str]) -> None:
        """Take as deleted what an opaque directory hides, unless all of it came after the start.

        Overlayfs also marks directories opaque that were simply new; if somebody has made one of
        the same name since, nothing of theirs was deleted by anybody.
        """
        try:
            names = [name for name in self.old.names(path) if name not in shown]
        except OSError:
            return
        found = [(join(path, name), self.old.lstat(join(path, name))) for name in names]
        came_later = self.view.baseline.came_later
        if all(each is None or came_later(below, each) for below, each in found):
            return
        for below, each in found:
            if each is not None:
                self._deleted(below, each)

    # -- a copy

    def read_copy(self) -> None:
        before, copied = self.view.copied.before, self.view.copied.copy
        seen, seen_directories = set(), {""}
        pending = [""]
        while pending:
            directory = pending.pop()
            for name in self.new.names(directory):
                path = join(directory, name)
                if self._is_too_long(path):
                    continue
                found = self._stat_new(path)
                seen.add(path)
                if stat.S_ISDIR(found.st_mode):
                    pending.append(path)
                    seen_directories.add(path)
                now = self._now(path, found)
                if stamp_of(found) != copied.get(path):
                    self._differs(path, found, now, came_from=None)
        for path in before:
            if path not in seen and path.rpartition("/")[0] in seen_directories:
                now = self.old.lstat(path)
                if now is not None:
                    self._deleted(path, now)

    # -- one path, whatever the form of the view

    def _differs(
        self,
        path: str,
        found: os.stat_result,
        now: os.stat_result | None,
        *,
        came_from: int | None,
    ) -> None:
        kind = _TYPES.get(stat.S_IFMT(found.st_mode))
        if kind is None:
            what = _SPECIAL_NAMES.get(stat.S_IFMT(found.st_mode), "a special file")
            self._withhold(path, f"{what} cannot be committed")
            return
        target = self.new.readlink(path) if kind == "symlink" else ""
        after = node_of(found, target=target)
        if after.type == "file" and not self._fits(path, after.size, now):
            return
        if now is not None and _is_of_two_kinds(found, now):
            self._deleted(path, now)
            now = None
            self._add(Change(path=path, kind=_kind_of_new(after), after=after))
            return
        if now is None:
            self.doubts.append(_Doubt(len(self.entries), came_from))
            self._add(Change(path=path, kind=_kind_of_new(after), after=after))
            return
        before = self._old_node(path, now)
        change_kind = self._kind(path, before, after)
        if change_kind is not None:
            conflict = self.view.baseline.somebody_did(path, now=now, came_from=came_from)
            self._add(
                Change(path=path, kind=change_kind, before=before, after=after, conflict=conflict)
            )

    def _fits(self, path: str, size: int, now: os.stat_result | None) -> bool:
        """Withhold a file that, with its holes, makes more than the view could hold."""
        grown = size - (now.st_size if now is not None and stat.S_ISREG(now.st_mode) else 0)
        room = self.max_bytes - self.grown_bytes
        if grown <= room:
            self.grown_bytes += max(0, grown)
            return True
        self._withhold(
            path, f"{size} bytes with its holes, more than the {self.max_bytes} of the view"
        )
        return False

    def _kind(self, path: str, before: Node, after: Node) -> Kind | None:
        if before.type != after.type:
            return _kind_of_new(after, replaces=True)
        if after.type == "symlink":
            return None if before.target == after.target else "symlink"
        if after.type == "file" and not self._is_same_file(path, before, after):
            return "modified"
        return None if before.mode == after.mode else "mode"

    def _is_same_file(self, path: str, before: Node, after: Node) -> bool:
        if before.size != after.size:
            return False
        new = self.new.open_file(path)
        try:
            old = self.old.open_file(path)
        except PermissionError:
            return False
        else:
            try:
                return same_bytes(new, old)
            finally:
                os.close(old)
        finally:
            os.close(new)

    def _deleted(self, path: str, now: os.stat_result) -> None:
        """Record a deletion, with everything below a directory."""
        pending = [(path, now)]
        while pending:
            path, now = pending.pop()
            if self._is_too_long(path):
                continue
            if stat.S_ISDIR(now.st_mode):
                pending += self._below(path)
            else:
                self.met.add(now.st_ino)
            conflict = self.view.baseline.somebody_did(path, now=now, came_from=None)
            before = self._old_node(path, now)
            self._add(Change(path=path, kind="deleted", before=before, conflict=conflict))

    def _below(self, path: str) -> list[tuple[str, os.stat_result]]:
        found = [
            (join(path, name), self.old.lstat(join(path, name))) for name in self.old.names(path)
        ]
        return [(below, each) for below, each in found if each is not None]

    def _settle_doubts(self) -> None:
        """Judge the new entries, now that every file of the workspace in question has been met."""
        for doubt in self.doubts:
            change = self.entries[doubt.entry]
            came_from = doubt.came_from
            if came_from and came_from in self.met:
                came_from = None  # renamed or linked from a file that still stands
            conflict = self.view.baseline.somebody_did(change.path, now=None, came_from=came_from)
            if conflict is not None:
                self.entries[doubt.entry] = Change(
                    path=change.path, kind=change.kind, after=change.after, conflict=conflict
                )
        self.doubts.clear()

    def _old_node(self, path: str, now: os.stat_result) -> Node:
        target = self.old.readlink(path) if stat.S_ISLNK(now.st_mode) else ""
        return node_of(now, target=target, is_old=True)

    def _now(self, path: str, found: os.stat_result) -> os.stat_result | None:
        """Stat the workspace's own entry, unless it is known to have no such directory."""
        now = None if path.rpartition("/")[0] in self.absent else self.old.lstat(path)
        if stat.S_ISDIR(found.st_mode) and (now is None or not stat.S_ISDIR(now.st_mode)):
            self.absent.add(path)
        return now

    def _stat_new(self, path: str) -> os.stat_result:
        found = self.new.lstat(path)
        if found is None:
            raise OSError(errno.ESTALE, "the view changes while it is read", path)
        return found

    def _is_too_long(self, path: str) -> bool:
        if len(os.fsencode(path)) <= MAX_PATH_BYTES:
            return False
        self._withhold(path, f"the path is longer than {MAX_PATH_BYTES} bytes")
        return True

    def _withhold(self, path: str, reason: str) -> None:
        self._count(path)
        self.withheld.append(Withheld(path=path, reason=reason))

    def _add(self, change: Change) -> None:
        self._count(change.path)
        self.entries.append(change)

    def _count(self, path: str) -> None:
        if len(self.entries) + len(self.withheld) >= self.max_entries:
            raise WorkspaceError(f"more than {self.max_entries} paths were changed")
        self.path_bytes += len(path)
        if self.path_bytes > MAX_PATHS_BYTES:
            raise WorkspaceError(
                f"the paths that were changed are longer than {MAX_PATHS_BYTES} bytes together"
            )


def join(directory: str, name: str) -> str:
    """Put two parts of a relative path together ("" is the top)."""
    return f"{directory}/{name}" if directory else name


def _open_new_side(view: View, upper_fd: int | None) -> Tree:
    if upper_fd is not None:
        tree = Tree(os.dup(upper_fd), is_ours=True)
    else:
        tree = open_tree(view.copy or view.upper or "", is_ours=True)
    view.trees.append(tree)
    return tree


def _is_whiteout(found: os.stat_result, marks: dict[str, bytes]) -> bool:
    if stat.S_ISCHR(found.st_mode):
        return found.st_rdev == 0
    return "whiteout" in marks and stat.S_ISREG(found.st_mode) and found.st_size == 0


def _is_of_two_kinds(found: os.stat_result, now: os.stat_result) -> bool:
    return stat.S_ISDIR(found.st_mode) != stat.S_ISDIR(now.st_mode)


def _kind_of_new(after: Node, *, replaces: bool = False) -> Kind:
    if after.type == "symlink":
        return "symlink"
    return "modified" if replaces else "added"


def _inode_of(origin: bytes) -> int:
    """Read the inode number from the file handle of an origin mark, or 0 where it holds none.

    struct ovl_fh (fs/overlayfs/overlayfs.h): version, magic, len, flags, type, 16 bytes uuid, then
    the handle; types 1 and 2 start with a 32-bit inode number (FILEID_INO32_GEN).
    """
    if len(origin) < 25 or origin[4] not in (1, 2):
        return 0
    return int.from_bytes(origin[21:25], "big" if origin[3] & 1 else "little")
