"""The steps of a commit, each of which can be done, done again, and undone.

Whether a step was done is read from the names themselves, so that it can be carried on after a
kill between any two system calls:

    add      `new` is gone once it stands at `path` (link, then unlink: nothing is overwritten)
    replace  `backup` is a second link to the old file until `new` has been renamed over `path`
    remove   `backup` is the old entry, moved
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from forkrun.workspace.dirs import Tree
from forkrun.workspace.journal import Journal, Step
from forkrun.workspace.transfer import copy_bytes

_NO_LINK = {errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS}
_NO_RENAME = {errno.EBUSY, errno.EXDEV, errno.EPERM, errno.EACCES}
_PARTIAL = b".partial"


class Moved(Exception):
    """Somebody changed a path between the last look and the step: (path, what they did)."""

    def __init__(self, path: bytes, did: str) -> None:
        super().__init__(path, did)
        self.path = os.fsdecode(path)
        self.did = did


class Place:
    """Where steps happen: a workspace, and the journal for what cannot lie in the workspace."""

    def __init__(self, tree: Tree, journal: Journal) -> None:
        self.tree = tree
        self.journal = journal
        found = os.fstat(tree.fd)
        self._owner = (found.st_uid, found.st_gid)

    def give_to_owner(self, name: str, directory: int) -> None:
        """As root, let a new entry belong to the owner of the workspace."""
        if os.geteuid() == 0:
            os.chown(name, *self._owner, dir_fd=directory, follow_symlinks=False)

    def at(self, path: bytes) -> tuple[int, str]:
        """Return a borrowed descriptor of the directory of a path, and the last part."""
        if path.startswith(b"/"):
            return self.journal.tree.fd, os.fsdecode(path[1:])
        return self.tree.parent(os.fsdecode(path))

    def lstat(self, path: bytes) -> os.stat_result | None:
        """Stat an entry without following it; None where there is none."""
        if path.startswith(b"/"):
            return self.journal.tree.lstat(os.fsdecode(path[1:]))
        return self.tree.lstat(os.fsdecode(path))

    def rename(self, old: bytes, new: bytes) -> None:
        """Rename within the workspace. A directory may have other contents at its path now."""
        directory, name = self.at(old)
        directory = os.dup(directory)
        try:
            target, new_name = self.at(new)
            os.rename(name, new_name, src_dir_fd=directory, dst_dir_fd=target)
        finally:
            os.close(directory)

    def link(self, old: bytes, new: bytes) -> None:
        """Make a second link, of a symbolic link as of a file."""
        directory, name = self.at(old)
        directory = os.dup(directory)
        try:
            target, new_name = self.at(new)
            os.link(name, new_name, src_dir_fd=directory, dst_dir_fd=target, follow_symlinks=False)
        finally:
            os.close(directory)

    def unlink(self, path: bytes) -> None:
        """Remove a file or link, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            directory, name = self.at(path)
            os.unlink(name, dir_fd=directory)


def do_step(place: Place, step: Step) -> None:
    """Do one step, or what is left of it. Raises Moved, or OSError."""
    {"add": _add, "replace": _replace, "remove": _remove, "make": _make, "mode": _mode}[step.act](
        place, step
    )


def undo_step(place: Place, step: Step, *, new_inode: int) -> None:
    """Put back what one step did, if it did anything; `new_inode` is that of its new file."""
    if step.act == "add":
        _undo_add(place, step, new_inode=new_inode)
    elif step.act == "replace":
        _undo_replace(place, step)
    elif step.act == "remove":
        _undo_remove(place, step)
    elif step.act == "make":
        _remove_directory(place, step.path)
    else:
        _undo_mode(place, step)


def clean_step(place: Place, step: Step) -> None:
    """Remove what is old, after every step was done."""
    if not step.backup:
        return
    place.unlink(step.backup + _PARTIAL)
    if not step.is_directory:
        place.unlink(step.backup)
    elif not _remove_directory(place, step.backup) and place.lstat(step.path) is None:
        # Somebody put something into it at the last moment: that is theirs, and stays.
        place.rename(step.backup, step.path)


def _add(place: Place, step: Step) -> None:
    new = place.lstat(step.new)
    if new is None:
        return
    try:
        place.link(step.new, step.path)
    except FileExistsError:
        there = place.lstat(step.path)
        if there is None or there.st_ino != new.st_ino:
            raise Moved(step.path, "created") from None
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        if place.lstat(step.path) is not None:
            raise Moved(step.path, "created") from None
        place.rename(step.new, step.path)
    place.unlink(step.new)


def _undo_add(place: Place, step: Step, *, new_inode: int) -> None:
    there = place.lstat(step.path)
    if there is not None and new_inode and there.st_ino == new_inode:
        place.unlink(step.path)
    place.unlink(step.new)


def _replace(place: Place, step: Step) -> None:
    if place.lstat(step.new) is None:
        return
    there, backup = place.lstat(step.path), place.lstat(step.backup)
    is_copied = backup is not None and there is not None and backup.st_ino != there.st_ino
    if not is_copied:
        _expect_old(there, step)
    if backup is None:
        _back_up(place, step)
    if step.new.startswith(b"/"):
        _write_in_place(place, step.new, step.path, mode=step.mode)
    else:
        try:
            place.rename(step.new, step.path)
        except OSError as error:
            if error.errno not in _NO_RENAME:
                raise
            if not is_copied:
                _copy_aside(place, step)
            _write_in_place(place, step.new, step.path, mode=step.mode)


def _undo_replace(place: Place, step: Step) -> None:
    backup, there = place.lstat(step.backup), place.lstat(step.path)
    if backup is not None and (there is None or there.st_ino != backup.st_ino):
        try:
            if step.backup.startswith(b"/"):
                raise OSError(errno.EXDEV, "the backup lies in the journal")
            place.rename(step.backup, step.path)
        except OSError as error:
            if error.errno not in _NO_RENAME:
                raise
            _write_in_place(place, step.backup, step.path, mode=step.old_mode)
    place.unlink(step.backup)
    place.unlink(step.backup + _PARTIAL)
    place.unlink(step.new)


def _remove(place: Place, step: Step) -> None:
    there = place.lstat(step.path)
    if there is None or place.lstat(step.backup) is not None:
        return
    if step.is_directory:
        if there.st_ino != step.inode:
            raise Moved(step.path, "changed")
        place.tree.forget()
        if place.tree.names(os.fsdecode(step.path)):
            raise Moved(step.path, "changed")
    else:
        _expect_old(there, step)
    try:
        place.rename(step.path, step.backup)
    except OSError as error:
        # Overlayfs (the tree of a container) cannot rename what lies in a lower layer.
        if error.errno != errno.EXDEV or not step.is_directory:
            raise
        _remove_directory(place, step.path)
    if step.is_directory:
        place.tree.forget()


def _undo_remove(place: Place, step: Step) -> None:
    if place.lstat(step.backup) is None:
        if step.is_directory and place.lstat(step.path) is None:
            _make(place, step)
            _mode(place, step)
        return
    if place.lstat(step.path) is None:
        place.rename(step.backup, step.path)
    elif step.is_directory:
        _remove_directory(place, step.backup)
    else:
        place.unlink(step.backup)
    if step.is_directory:
        place.tree.forget()


def _make(place: Place, step: Step) -> None:
    directory, name = place.at(step.path)
    try:
        os.mkdir(name, 0o700, dir_fd=directory)
        place.give_to_owner(name, directory)
    except FileExistsError:
        there = place.lstat(step.path)
        if there is None or not stat.S_ISDIR(there.st_mode):
            raise Moved(step.path, "created") from None


def _mode(place: Place, step: Step) -> None:
    there = place.lstat(step.path)
    if there is None or stat.S_ISLNK(there.st_mode):
        raise Moved(step.path, "deleted" if there is None else "changed")
    directory, name = place.at(step.path)
    os.chmod(name, step.mode, dir_fd=directory)


def _undo_mode(place: Place, step: Step) -> None:
    there = place.lstat(step.path)
    if there is None or stat.S_ISLNK(there.st_mode) or stat.S_IMODE(there.st_mode) != step.mode:
        return
    directory, name = place.at(step.path)
    os.chmod(name, step.old_mode, dir_fd=directory)


def _expect_old(there: os.stat_result | None, step: Step) -> None:
    if there is None:
        raise Moved(step.path, "deleted")
    if (there.st_ino, there.st_size, there.st_mtime_ns) != (step.inode, step.size, step.mtime_ns):
        raise Moved(step.path, "changed")


def _back_up(place: Place, step: Step) -> None:
    try:
        if step.backup.startswith(b"/"):
            raise OSError(errno.EXDEV, "the backup lies in the journal")
        place.link(step.path, step.backup)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        _copy_aside(place, step)


def _copy_aside(place: Place, step: Step) -> None:
    """Make `backup` a copy of the old file, wholly or not at all."""
    partial = step.backup + _PARTIAL
    place.unlink(partial)
    there = place.lstat(step.path)
    if there is None:
        raise Moved(step.path, "deleted")
    directory, name = place.at(partial)
    if stat.S_ISLNK(there.st_mode):
        target = place.tree.readlink(os.fsdecode(step.path))
        directory, name = place.at(partial)
        os.symlink(target, name, dir_fd=directory)
    else:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        os.close(os.open(name, flags, 0o600, dir_fd=directory))
        _copy_over(place, step.path, partial)
        directory, name = place.at(partial)
        os.chmod(name, stat.S_IMODE(there.st_mode), dir_fd=directory)
        if os.geteuid() == 0:
            os.chown(name, there.st_uid, there.st_gid, dir_fd=directory)
    directory, name = place.at(step.backup)
    os.rename(
        os.fsdecode(partial.rpartition(b"/")[2]), name, src_dir_fd=directory, dst_dir_fd=directory
    )


def _write_in_place(place: Place, source: bytes, target: bytes, *, mode: int) -> None:
    directory, name = place.at(target)
    found = stat.S_IMODE(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    if found & ~0o1777:
        # Before the content: as root, writing takes no set-user-ID bit away.
        os.chmod(name, found & 0o1777, dir_fd=directory)
    _copy_over(place, source, target)
    directory, name = place.at(target)
    if stat.S_IMODE(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode) != mode:
        os.chmod(name, mode, dir_fd=directory)
    place.unlink(source)


def _copy_over(place: Place, source: bytes, target: bytes) -> None:
    """Write one regular file over another, in place, keeping the other's inode and mode."""
    directory, name = place.at(source)
    old = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        directory, name = place.at(target)
        new = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            os.ftruncate(new, 0)
            copy_bytes(old, new)
            os.fsync(new)
        finally:
            os.close(new)
    finally:
        os.close(old)


def _remove_directory(place: Place, path: bytes) -> bool:
    place.tree.forget()
    try:
        directory, name = place.at(path)
        os.rmdir(name, dir_fd=directory)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        return False
    return True
