"""Move and compare the bytes of files: bounded memory, holes kept as holes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator

_CHUNK_BYTES = 1024 * 1024
_FICLONE = 0x40049409  # linux/fs.h: share the blocks of the source, where the filesystem can
_CANNOT = {
    errno.EXDEV, errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.ENOSYS, errno.EPERM,
    errno.EBADF,
}  # fmt: skip


def copy_bytes(source: int, target: int) -> None:
    """Copy a regular file into an empty one: shared blocks where possible, else data by data."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
    else:
        return
    size = os.fstat(source).st_size
    for start, end in data_ranges(source, size):
        _copy_range(source, target, start=start, end=end)
    os.ftruncate(target, size)


def same_bytes(one: int, other: int) -> bool:
    """Compare two regular files of equal size; holes that both have are not read."""
    size = os.fstat(one).st_size
    if os.fstat(other).st_size != size:
        return False
    return all(
        _same_range(one, other, start=start, end=end)
        for fd in (one, other)
        for start, end in data_ranges(fd, size)
    )


def chunks(fd: int) -> Iterator[bytes]:
    """Read a file from its start, piece by piece, whatever its offset is."""
    at = 0
    while piece := os.pread(fd, _CHUNK_BYTES, at):
        yield piece
        at += len(piece)


def write_all(fd: int, content: bytes) -> None:
    """Write all of it (a regular file takes less only when the disk is full, which raises)."""
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


def data_ranges(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield where a file has data (lseek(2), SEEK_DATA): one range where holes are not known."""
    at = 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
            end = os.lseek(fd, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            if error.errno != errno.EINVAL:
                raise
            start, end = at, size
        yield start, end
        at = end


def _copy_range(source: int, target: int, *, start: int, end: int) -> None:
    at = start
    with contextlib.suppress(OSError):
        while hasattr(os, "copy_file_range") and at < end:
            copied = os.copy_file_range(source, target, end - at, at, at)
            if not copied:
                break
            at += copied
    while at < end and (piece := os.pread(source, min(_CHUNK_BYTES, end - at), at)):
        written = os.pwrite(target, piece, at)
        at += written


def _same_range(one: int, other: int, *, start: int, end: int) -> bool:
    at = start
    while at < end:
        length = min(_CHUNK_BYTES, end - at)
        piece = os.pread(one, length, at)
        if piece != os.pread(other, length, at):
            return False
        if not piece:
            return True
        at += len(piece)
    return True
