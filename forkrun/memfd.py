"""Bytes in memory that several processes read and nobody can change: sealed memory files.

Shared by both sides. A descriptor of one crosses to a child by inheritance or over a socket; all
who map it share the same pages, and it is gone when the last descriptor and mapping are.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def sealed(*parts: bytes, name: str = "forkrun") -> int:
    """Put bytes into a memory file, seal it and give its descriptor, which the caller closes.

    The descriptor is not inherited across exec unless it is passed on. Linux 3.17, memfd_create(2).
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        for part in parts:
            _write_all(fd, part)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextmanager
def mapped(fd: int) -> Iterator[memoryview]:
    """Map a memory file for reading. Raises `ValueError` where it is not sealed.

    Views taken from it must be released before the block ends. The descriptor stays open.
    """
    if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
        raise ValueError("the memory file is not sealed")
    size = os.fstat(fd).st_size
    if not size:  # mmap(2) refuses an empty mapping
        yield memoryview(b"")
        return
    with mmap.mmap(fd, size, prot=mmap.PROT_READ) as pages, memoryview(pages) as view:
        yield view


def _write_all(fd: int, part: bytes) -> None:
    left = memoryview(part)
    while left:
        left = left[os.write(fd, left) :]
