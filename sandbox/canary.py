"""Try, in every fresh sandbox, what must not work: the last step of `enter`.

A layer that says it is in force and is not stops the run here, before any code that is not ours.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from . import kernel
from .fault import SandboxFault
from .spec import Spec

_AF_NETLINK, _SOCK_RAW, _NETLINK_KOBJECT_UEVENT = 16, 3, 15


def try_forbidden(spec: Spec) -> None:
    """Raise SandboxFault if an act that `spec` forbids succeeds."""
    if spec.tier == "none":
        return
    _must_fail("mount", errno_in=(errno.EROFS, errno.EACCES), act=lambda: _write_outside(spec))
    _must_fail("seccomp", errno_in=(errno.EPERM,), act=_open_netlink)
    _must_fail("user", errno_in=(errno.EPERM,), act=_make_user_namespace)
    if spec.tier in ("full", "bwrap"):
        if os.path.lexists("/etc/shadow") and spec.root is None:
            raise SandboxFault("mount", "a file of the host is visible that must not be")
        if os.getpid() > 16:
            raise SandboxFault("pid", "process numbers are not those of a fresh namespace")


def _must_fail(layer: str, *, errno_in: tuple[int, ...], act: Callable[[], None]) -> None:
    try:
        act()
    except OSError as refusal:
        if refusal.errno in errno_in:
            return
        raise SandboxFault(
            layer, f"trial: {refusal.strerror}, not a refusal", errno=refusal.errno
        ) from None
    raise SandboxFault(layer, "trial: what must be refused succeeded")


def _write_outside(spec: Spec) -> None:
    """Write where the user could, were it not for the confinement."""
    outside = os.path.dirname(spec.home) if spec.tier == "lsm" else "/"
    path = os.path.join(outside, ".forkrun-trial")
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    os.unlink(path)


def _open_netlink() -> None:
    """Open what every process may open that has no filter, and none whatever the network."""
    kernel.call("socket", _AF_NETLINK, _SOCK_RAW, _NETLINK_KOBJECT_UEVENT)


def _make_user_namespace() -> None:
    kernel.unshare(kernel.CLONE_NEWUSER)
