"""Directory trees by descriptors: nothing here follows a symbolic link or leaves the tree."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections import OrderedDict
from types import TracebackType

MAX_PATH_BYTES = 4095
"""Longer paths cannot be named to the kernel in one piece (PATH_MAX, limits.h)."""

_OPEN_DIRECTORIES = 48
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}


class Tree:
    """One tree below one open directory, named by relative paths ("" is the directory itself).

    Keeps a bounded number of directories open, whatever the depth. `is_ours` says that nobody else
    uses the tree, so that permission bits which are in the way may be changed.
    """

    def __init__(self, fd: int, *, is_ours: bool = False) -> None:
        self.fd = fd
        self._is_ours = is_ours
        self._open: OrderedDict[str, int] = OrderedDict()

    def __enter__(self) -> Tree:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every descriptor, the tree's own as well."""
        self.forget()
        os.close(self.fd)

    def forget(self) -> None:
        """Close all but the tree's own descriptor: the directories below may have moved."""
        while self._open:
            os.close(self._open.popitem()[1])

    def open_dir(self, path: str) -> int:
        """Return a borrowed descriptor of a directory, good until the next call.

        Raises OSError: ENOENT, ENOTDIR or ELOOP where a part of the path is no directory.
        """
        if not path:
            return self.fd
        known = self._open.get(path)
        if known is not None:
            self._open.move_to_end(path)
            return known
        return self._descend(path)

    def lstat(self, path: str) -> os.stat_result | None:
        """Stat an entry without following it; None where there is none."""
        try:
            parent, name = self.parent(path)
            return os.stat(name, dir_fd=parent, follow_symlinks=False)
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise

    def parent(self, path: str) -> tuple[int, str]:
        """Return a borrowed descriptor of the directory that holds `path`, and the last part."""
        directory, _, name = path.rpartition("/")
        return self.open_dir(directory), name

    def names(self, path: str) -> list[str]:
        """List a directory, sorted."""
        return sorted(os.listdir(self.open_dir(path)))

    def open_file(self, path: str) -> int:
        """Open a regular file for reading; the caller closes it. Never blocks on a FIFO."""
        parent, name = self.parent(path)
        fd = self._permitted(parent, name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "not a regular file", path)
        return fd

    def readlink(self, path: str) -> str:
        """Read where a symbolic link points."""
        parent, name = self.parent(path)
        return os.readlink(name, dir_fd=parent)

    def _descend(self, path: str) -> int:
        done, at = self._nearest(path)
        while done < len(path):
            end = path.find("/", done + 1)
            end = len(path) if end < 0 else end
            at = self._permitted(at, path[done:end].lstrip("/"), _DIRECTORY)
            self._remember(path[:end], at)
            done = end
        return at

    def _nearest(self, path: str) -> tuple[int, int]:
        """Find the deepest directory on the way that is open: (where its path ends, it)."""
        if path.count("/") > _OPEN_DIRECTORIES:
            above = [each for each in self._open if path.startswith(each + "/")]
            nearest = max(above, key=len, default="")
            return len(nearest), self._open.get(nearest, self.fd)
        end = path.rfind("/")
        while end > 0:
            known = self._open.get(path[:end])
            if known is not None:
                return end, known
            end = path.rfind("/", 0, end)
        return 0, self.fd

    def _remember(self, path: str, fd: int) -> None:
        self._open[path] = fd
        if len(self._open) > _OPEN_DIRECTORIES:
            os.close(self._open.popitem(last=False)[1])

    def _permitted(self, parent: int, name: str, flags: int) -> int:
        flags |= os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(name, flags, dir_fd=parent)
        except PermissionError:
            if not self._is_ours or not widen(parent, name):
                raise
            return os.open(name, flags, dir_fd=parent)


def open_tree(path: str, *, is_ours: bool = False) -> Tree:
    """Open a directory by its path (whose last part may not be a symbolic link)."""
    return Tree(os.open(path, _DIRECTORY), is_ours=is_ours)


def widen(parent: int, name: str) -> bool:
    """Give the owner all rights on an entry of a tree that is ours; say whether that was done."""
    found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if not (stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)):
        return False
    with contextlib.suppress(PermissionError):
        os.chmod(name, found.st_mode & 0o7777 | 0o700, dir_fd=parent)
        return True
    return False


def remove_tree(parent: int, name: str) -> None:
    """Remove a directory of ours and all beneath it, whatever its modes, names and depth.

    A directory found below is first moved up to the top, so neither recursion nor paths grow with
    the depth. Nothing is done where `name` does not exist.
    """
    try:
        top = _open_own(parent, name)
    except FileNotFoundError:
        return
    try:
        pending = _empty(top, top=top)
        while pending:
            lower = pending.pop()
            at = _open_own(top, lower)
            try:
                pending += _empty(at, top=top)
            finally:
                os.close(at)
            os.rmdir(lower, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=parent)


def _empty(at: int, *, top: int) -> list[str]:
    """Unlink what is in a directory, move its directories up, and return their new names."""
    moved = []
    for name, is_directory in _entries(at):
        if is_directory:
            moved.append(os.urandom(16).hex())
            _move_up(at, name, top=top, new_name=moved[-1])
        else:
            os.unlink(name, dir_fd=at)
    return moved


def _entries(fd: int) -> list[tuple[str, bool]]:
    with os.scandir(fd) as found:
        return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]


def _move_up(at: int, name: str, *, top: int, new_name: str) -> None:
    try:
        os.rename(name, new_name, src_dir_fd=at, dst_dir_fd=top)
    except PermissionError:
        # A directory that its owner may not write cannot get another parent (rename(2)).
        widen(at, name)
        os.rename(name, new_name, src_dir_fd=at, dst_dir_fd=top)


def _open_own(parent: int, name: str) -> int:
    """Open a directory of ours that we are going to empty, with full rights for us."""
    found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if stat.S_ISDIR(found.st_mode) and found.st_mode & 0o700 != 0o700:
        widen(parent, name)
    return os.open(name, _DIRECTORY, dir_fd=parent)
