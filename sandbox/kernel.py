"""Raw system calls: what the standard library of Python 3.11 has no name for.

Every wrapper raises OSError with the call's name in the `filename` field, so that a refusal says
which call it was. Nothing here knows what a sandbox is.

What the kernel only reads is given as bytes: they cost nothing, where ctypes makes a type for every
size of an array.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Any

from .numbers import numbers

CLONE_NEWTIME = 0x00000080
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

AT_FDCWD = -100
AT_SYMLINK_NOFOLLOW = 0x100
AT_RECURSIVE = 0x8000
AT_EMPTY_PATH = 0x1000
OPEN_TREE_CLONE = 1
OPEN_TREE_CLOEXEC = os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH = 0x00000004
MOVE_MOUNT_T_EMPTY_PATH = 0x00000040
MOUNT_ATTR_RDONLY = 0x00000001
MOUNT_ATTR_NOSUID = 0x00000002
MOUNT_ATTR_NODEV = 0x00000004
MOUNT_ATTR_NOEXEC = 0x00000008
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_IN_ROOT = 0x10
MS_REC = 0x4000
MS_PRIVATE = 1 << 18
MNT_DETACH = 2
O_PATH = 0o10000000

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_NAME = 15
PR_CAPBSET_DROP = 24
PR_SET_SECUREBITS = 28
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4

_FSCONFIG_SET_FLAG = 0
_FSCONFIG_SET_STRING = 1
_FSCONFIG_SET_FD = 5
_FSCONFIG_CMD_CREATE = 6
_FSOPEN_CLOEXEC = 1
_FSMOUNT_CLOEXEC = 1
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
# A pointer takes integers, bytes, arrays and None alike, and fills the whole register.
_syscall.argtypes = (ctypes.c_long,) + (ctypes.c_void_p,) * 6
_prctl: Any = getattr(_libc, "prctl", None)  # not on systems that only import this
if _prctl is not None:
    _prctl.argtypes = (ctypes.c_int,) + (ctypes.c_ulong,) * 4
_signal = _libc.signal
_signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
_NONE = (0,) * 6
_numbers: dict[str, int] = {}


def call(name: str, *arguments: Any) -> int:
    """Make the system call `name` and give its result. Integers, bytes and ctypes pointers pass.

    Raises OSError; on a machine that we have no numbers for, with ENOSYS.
    """
    if not _numbers:
        try:
            _numbers.update(numbers(os.uname().machine))
        except KeyError:
            raise OSError(38, "no system call numbers for this machine", name) from None
    result: int = _syscall(_numbers[name], *arguments, *_NONE[len(arguments) :])
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    return result


def unshare(flags: int) -> None:
    """Leave the namespaces that `flags` name (CLONE_NEW…) for fresh ones; unshare(2)."""
    call("unshare", flags)


def prctl(option: int, *arguments: int) -> int:
    """prctl(2)."""
    result: int = _prctl(option, *arguments, *_NONE[len(arguments) : 4])
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "prctl")
    return result


def clone_tree(path: str | bytes, *, at: int = AT_FDCWD, recursive: bool = True) -> int:
    """Copy the mounts at `path` to a detached tree and give its descriptor; open_tree(2).

    A path that ends in a symbolic link is refused.
    """
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_SYMLINK_NOFOLLOW
    flags |= AT_RECURSIVE if recursive else 0
    if not path:
        flags |= AT_EMPTY_PATH
    return call("open_tree", at, os.fsencode(path), flags)


def attach(tree: int, target: int, *, name: str = "") -> None:
    """Mount a detached tree on what `target` is open on, or on `name` in it; move_mount(2)."""
    flags = MOVE_MOUNT_F_EMPTY_PATH | (0 if name else MOVE_MOUNT_T_EMPTY_PATH)
    call("move_mount", tree, b"", target, os.fsencode(name), flags)


def set_mount(tree: int, *, add: int = 0, clear: int = 0, recursive: bool = True) -> None:
    """Set and clear MOUNT_ATTR_… of a mount and, unless told otherwise, all below it.

    mount_setattr(2), Linux 5.12.
    """
    attributes = struct.pack("=4Q", add, clear, 0, 0)  # set, clear, propagation, userns
    flags = AT_EMPTY_PATH | (AT_RECURSIVE if recursive else 0)
    call("mount_setattr", tree, b"", flags, attributes, 32)


def new_filesystem(kind: str, *, options: dict[str, str | None], attributes: int = 0) -> int:
    """Make a file system and give the descriptor of its detached mount.

    `options` are as in mount(8), None for one without a value. fsopen(2), Linux 5.2.
    """
    configuration = call("fsopen", kind.encode(), _FSOPEN_CLOEXEC)
    try:
        for key, value in options.items():
            command = _FSCONFIG_SET_FLAG if value is None else _FSCONFIG_SET_STRING
            encoded = None if value is None else os.fsencode(value)
            call("fsconfig", configuration, command, key.encode(), encoded, 0)
        call("fsconfig", configuration, _FSCONFIG_CMD_CREATE, None, None, 0)
        return call("fsmount", configuration, _FSMOUNT_CLOEXEC, attributes)
    finally:
        os.close(configuration)


def open_resolved(path: str, *, at: int = AT_FDCWD, flags: int = O_PATH, resolve: int) -> int:
    """Open `path` with the restrictions RESOLVE_… on the way; openat2(2), Linux 5.6."""
    how = struct.pack("=3Q", flags | os.O_CLOEXEC, 0, resolve)
    return call("openat2", at, os.fsencode(path), how, 24)


def make_mounts_private() -> None:
    """Let no mount of this namespace be seen by another, nor theirs here."""
    call("mount", None, b"/", None, MS_REC | MS_PRIVATE, None)


def pivot_into(root: int) -> None:
    """Make the mount that `root` is open on the root of this namespace, and drop the old one."""
    os.fchdir(root)
    # With both names the same the old root ends up stacked on the new one: pivot_root(2), NOTES.
    call("pivot_root", b".", b".")
    call("umount2", b".", MNT_DETACH)
    os.chdir("/")


def capabilities() -> int:
    """Give the effective capabilities of this process as a bit mask."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()
    call("capget", header, sets)
    return int(sets[0]) | int(sets[3]) << 32


def drop_capabilities() -> None:
    """Give up every capability of this process; capabilities(7)."""
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    call("capset", struct.pack("=2I", _CAPABILITY_VERSION_3, 0), bytes(24))


def drop_bounding_set() -> None:
    """Let no program that is run from here gain a capability; capabilities(7)."""
    for number in range(64):
        try:
            prctl(PR_CAPBSET_DROP, number)
        except OSError:  # EINVAL past the last one; EPERM where there are none to drop
            break


def default_signals() -> None:
    """Give every signal its default action, past the Python handlers; signal(2)."""
    for number in range(1, 65):
        _signal(number, None)  # refused, harmlessly, for SIGKILL, SIGSTOP and two of libc's


def close_all_but(keep: tuple[int, ...]) -> None:
    """Close every descriptor that is not in `keep`; close_range(2), Linux 5.9."""
    start = 0
    for descriptor in sorted(set(keep)):
        if descriptor > start:
            call("close_range", start, descriptor - 1, 0)
        start = descriptor + 1
    call("close_range", start, 0xFFFFFFFF, 0)
