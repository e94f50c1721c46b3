"""The few system calls that the tools need and that Python does not offer.

Each does nothing, and says so by its result, where the system does not have it.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import struct
import sys

_OPENAT2 = 437  # the same number on every architecture (Linux 5.6)
_RESOLVE_NO_MAGICLINKS = 0x02  # linux/openat2.h
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08
_CLOSE_RANGE = 436  # the same number on every architecture (Linux 5.9)
_CLOSE_RANGE_CLOEXEC = 4  # Linux 5.11
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37

LINUX = sys.platform == "linux"


def openat2(directory: int, path: str, *, flags: int) -> int:
    """Open a path below a directory that has no symbolic link in it; return the descriptor.

    Raises OSError: ELOOP for a link, EXDEV for a path that leaves, ENOSYS where there is no such
    call. See openat2(2).
    """
    if not LINUX:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    resolve = _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS
    how = struct.pack("=3Q", flags | os.O_CLOEXEC, 0, resolve)
    try:
        return _call(_OPENAT2, directory, os.fsencode(path), how, len(how))
    except OSError as error:
        error.filename = path
        raise


def keep_descriptors_from_children() -> None:
    """Mark every descriptor from 3 on as close-on-exec, whoever opened it."""
    if LINUX:
        try:
            _call(_CLOSE_RANGE, 3, 0xFFFFFFFF, _CLOSE_RANGE_CLOEXEC)
        except OSError:
            pass
        else:
            return
    for name in os.listdir("/dev/fd"):
        descriptor = int(name)
        try:
            if descriptor > 2 and os.get_inheritable(descriptor):
                os.set_inheritable(descriptor, False)
        except OSError as error:  # the descriptor of the listing itself
            if error.errno != errno.EBADF:
                raise


def adopt_orphans(*, wanted: bool) -> bool:
    """Choose whether orphaned descendants become children of this process; return the old choice.

    Always False where there is no such thing. See PR_SET_CHILD_SUBREAPER in prctl(2).
    """
    if not LINUX:
        return False
    libc = _libc()
    before = ctypes.c_int(0)
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(wanted), 0, 0, 0)
    return bool(before.value)


def _call(number: int, *arguments: int | bytes) -> int:
    # A pointer takes integers and bytes alike, and fills the whole register.
    result = _libc().syscall(number, *arguments, *(0,) * (4 - len(arguments)))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(result)


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    libc.syscall.argtypes = (ctypes.c_long, *(ctypes.c_void_p,) * 4)
    return libc
