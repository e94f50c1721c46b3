"""Put new content into a file: by a temporary file and a rename, so that nobody sees half of it.

Mode bits and owner stay. Where a rename cannot be (a file that is mounted by itself, a directory
that is read-only), the file is written in place, and its old content put back if that fails.
Nothing is synced to disk: against a crash of the machine a run does not protect.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from forkrun.tools.failures import ToolError
from forkrun.tools.paths import Workspace

_IN_PLACE = {errno.EBUSY, errno.EXDEV, errno.EROFS, errno.EACCES, errno.EPERM, errno.EINVAL}
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def replace(
    workspace: Workspace, path: str, content: bytes, *, before: os.stat_result | None
) -> None:
    """Give the file at a resolved path this content; it was `before`, None for a new one.

    Raises ToolError where it is no longer what it was, and OSError; the file is then untouched.
    """
    try:
        with workspace.parent(path, make=before is None) as (directory, name):
            if before is None:
                _rename_over(directory, name, content, before=None, path=path)
                return
            if not os.access(name, os.W_OK, dir_fd=directory):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            try:
                _rename_over(directory, name, content, before=before, path=path)
            except OSError as error:
                if error.errno not in _IN_PLACE:
                    raise
                _overwrite(directory, name, content, before=before, path=path)
    except OSError as error:
        error.filename = path
        raise


def _rename_over(
    directory: int, name: str, content: bytes, *, before: os.stat_result | None, path: str
) -> None:
    temporary = f".forkrun-{os.urandom(8).hex()}"
    mode = 0o666 if before is None else stat.S_IMODE(before.st_mode) & 0o700
    descriptor = os.open(temporary, _CREATE, mode, dir_fd=directory)
    try:
        try:
            _write(descriptor, content)
            if before is not None:
                _take_over(descriptor, before)
        finally:
            os.close(descriptor)
        _check_same(directory, name, before, path=path)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        os.unlink(temporary, dir_fd=directory)
        raise


def _take_over(descriptor: int, before: os.stat_result) -> None:
    now = os.fstat(descriptor)
    if (now.st_uid, now.st_gid) != (before.st_uid, before.st_gid):
        os.fchown(descriptor, before.st_uid, before.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(before.st_mode))


def _check_same(directory: int, name: str, before: os.stat_result | None, *, path: str) -> None:
    try:
        now = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        if before is None:
            return
        raise ToolError(f"{path} was removed meanwhile; nothing was written") from None
    if before is None or _identity(now) != _identity(before):
        raise _changed_meanwhile(path)


def _changed_meanwhile(path: str) -> ToolError:
    return ToolError(f"{path} was changed meanwhile; nothing was written. Read it again")


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def _overwrite(
    directory: int, name: str, content: bytes, *, before: os.stat_result, path: str
) -> None:
    """Write in place, alone among all who write so: of two at once the later one must read anew."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=directory)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # until it is closed
        if _identity(os.fstat(descriptor)) != _identity(before):
            raise _changed_meanwhile(path)
        size = before.st_size
        old = os.pread(descriptor, size, 0)
        try:
            if len(content) > size and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, 0, len(content))  # no room is found out here
            os.lseek(descriptor, 0, os.SEEK_SET)
            _write(descriptor, content)
            os.ftruncate(descriptor, len(content))
        except OSError:
            os.lseek(descriptor, 0, os.SEEK_SET)
            _write(descriptor, old)
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)


def _write(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
