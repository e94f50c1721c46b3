"""Landlock: which files may be read and written, by rule, whatever the mounts allow.

Behind a view of its own it is a second lock on the same door; in tier "lsm" it is the only one, and
then it does not stop chmod, utime, setxattr of files outside, nor pathname unix sockets.
landlock(7); ABI 1 is Linux 5.13, 2: 5.19, 3: 6.2, 4: 6.7, 5: 6.10, 6: 6.12, 7: 6.15.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable

from . import kernel
from .fault import SandboxFault

_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
# The highest access right of each ABI, as a mask of all rights up to it.
_HANDLED = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
_HANDLED_LATER = (1 << 16) - 1
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV

READ = _EXECUTE | _READ_FILE | _READ_DIR
WRITE = _HANDLED_LATER & ~(_MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV)
DEVICE = _READ_FILE | _WRITE_FILE | _READ_DIR | _IOCTL_DEV | _TRUNCATE


def version() -> int:
    """Give the Landlock ABI of this kernel, 0 where there is none."""
    try:
        return kernel.call("landlock_create_ruleset", None, 0, _CREATE_RULESET_VERSION)
    except OSError:
        return 0


def restrict(rules: Iterable[tuple[str, int]], *, network_allowed: bool) -> int:
    """Confine this process to `rules`, pairs of a path and what is allowed beneath it.

    A path that is not there is left out. Signals and abstract sockets reach no further than this
    process and its descendants (ABI 6). Gives the ABI; raises SandboxFault below ABI 2, which
    would refuse every rename from one directory to another.
    """
    abi = version()
    if abi < 2:
        raise SandboxFault("landlock", f"ABI 2 (Linux 5.19) is needed, this kernel has: {abi}")
    handled = _HANDLED.get(abi, _HANDLED_LATER)
    tcp = 0 if network_allowed or abi < 4 else 0b11
    scopes = 0b11 if abi >= 6 else 0
    attributes = struct.pack("=QQQ", handled, tcp, scopes)[
        : 8 if abi < 4 else 16 if abi < 6 else 24
    ]
    try:
        ruleset = kernel.call("landlock_create_ruleset", attributes, len(attributes), 0)
        for path, access in rules:
            _add(ruleset, path, access=access & handled)
        kernel.call("landlock_restrict_self", ruleset, 0)
        os.close(ruleset)
    except OSError as refusal:
        reason = f"{refusal.filename}: {refusal.strerror}"
        raise SandboxFault("landlock", reason, errno=refusal.errno) from refusal
    return abi


def _add(ruleset: int, path: str, *, access: int) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.stat(opened).st_mode):
            access &= _ON_FILES
        rule = struct.pack("=Qi", access, opened)
        kernel.call("landlock_add_rule", ruleset, _RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(opened)
