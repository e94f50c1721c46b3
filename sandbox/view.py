"""The file system that a sandbox sees: a new root, put together from detached mounts.

    /                     tmpfs, read-only when it is done (or a root file system of the user's)
    /usr /bin /lib …      the host's, read-only          /etc        a few files of it
    /proc                 its own                        /dev        seven devices, own pts and shm
    /tmp, HOME            private, of bounded size       readable    at their real paths, read-only
    the workspace         at its real path, as the spec says

All but what is readable and the workspace is the base of a view (`system`); that is added here.

All of this runs in PID 1 of the sandbox, which still has every capability in the namespaces that it
has just made, and before any code that is not ours. Nothing is unmounted or forbidden: what is
not put in is not there.
"""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from . import kernel
from .confine import place_in_foreign_root
from .fault import SandboxFault
from .spec import Spec
from .system import Base
from .tree import LOCKED, NO_LINKS, PRIVATE, View, fault_of

# Places that are the sandbox's own: a readable path may lie in them but not be or hide them.
_OWN = ("/", "/proc", "/sys", "/dev", "/tmp", "/etc")


class Built(NamedTuple):
    """A view that is ready to become the root: descriptors of it, and of a writable proc.

    The sandbox itself has no writable proc.
    """

    root: int
    proc: int


def finish(base: Base, spec: Spec, *, own: tuple[str, ...], upper_socket: int) -> Built:
    """Add to a view what is asked for, and close it.

    `own` are the paths that our interpreter needs. With an overlay, a descriptor of the directory
    that the writes land in is sent over `upper_socket` (-1: to nobody). Raises SandboxFault.
    """
    view = base.view
    view.forget_ways()
    try:
        if spec.network == "host":
            for path in ("/etc/hosts", "/etc/resolv.conf"):
                view.write(path, _text_of(path))
        if _is_in_var_tmp(spec):
            view.mount_private("/var/tmp", mode="1777", size=spec.limits.tmp_bytes)
        _show_readable(view, spec, own)
        _mount_workspace(view, spec, upper_socket=upper_socket)
        for path in sorted(spec.writable, key=_depth):
            _refuse_own(path)
            view.bind(path, path, attributes=PRIVATE)
        for path in spec.masked:
            view.mask(path)
        if spec.root is None:
            view.link("/var/tmp", "/tmp")
        view.finish()
    except OSError as refusal:
        raise fault_of(refusal) from refusal
    return Built(view.root, base.proc)


def become_root(built: Built) -> None:
    """Make a view the root of this namespace and of all in it, and let go of the old one."""
    try:
        kernel.pivot_into(built.root)
    except OSError as refusal:
        raise fault_of(refusal) from refusal
    os.close(built.root)


def _is_in_var_tmp(spec: Spec) -> bool:
    """Say whether something is to appear below /var/tmp, which is a link to /tmp otherwise."""
    shown = (spec.workspace, *spec.readable, *spec.writable)
    return any(path.startswith("/var/tmp/") for path in shown)


def _show_readable(view: View, spec: Spec, own: tuple[str, ...]) -> None:
    """Show what may be read; in a foreign root our own paths elsewhere, not over the root's."""
    if spec.root is not None:
        for number, path in enumerate(own):
            place = place_in_foreign_root(number)
            view.bind(os.path.realpath(path), place, attributes=LOCKED)
    for path in sorted(set(spec.readable), key=_depth):
        _refuse_own(path)
        view.show(path)


def _depth(path: str) -> tuple[int, str]:
    return path.count("/"), path


def _refuse_own(path: str) -> None:
    if not os.path.isabs(path) or os.path.normpath(path) in _OWN:
        raise SandboxFault("mount", f"cannot be shown inside: {path}")


def _overlay(lower: int, *, upper: int, work: int) -> int:
    """Give a detached overlay of open directories.

    By /proc/self/fd the paths need no escaping and fit into the 256 bytes that fsconfig(2) takes.
    `userxattr` is what an overlay inside a user namespace must say (Linux 5.11).
    """
    options: dict[str, str | None] = {
        "lowerdir": f"/proc/self/fd/{lower}",
        "upperdir": f"/proc/self/fd/{upper}",
        "workdir": f"/proc/self/fd/{work}",
        "userxattr": None,
    }
    return kernel.new_filesystem("overlay", options=options, attributes=PRIVATE)


def _text_of(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def _mount_workspace(view: View, spec: Spec, *, upper_socket: int) -> None:
    path = spec.workspace
    if spec.workspace_mode == "empty":
        view.mount_private(path, mode="755", size=spec.limits.disk_bytes)
    elif spec.workspace_mode == "overlay":
        _mount_overlay(view, spec, upper_socket=upper_socket)
    else:
        read_only = kernel.MOUNT_ATTR_RDONLY if spec.workspace_mode == "read" else 0
        source = spec.workspace_source or path
        view.bind(source, path, attributes=PRIVATE | read_only)


def _mount_overlay(view: View, spec: Spec, *, upper_socket: int) -> None:
    """Lay a private writable view over the workspace; hand out where its writes land."""
    if spec.upper is None:
        options = view.private_options(mode="700", size=spec.limits.disk_bytes)
        store = view.mount("/run/upper", kind="tmpfs", options=options)
    else:
        store = kernel.open_resolved(spec.upper, resolve=NO_LINKS)
    for name in ("upper", "work"):
        os.mkdir(name, 0o700, dir_fd=store)
        os.chown(name, view.uid, view.gid, dir_fd=store)
    lower = kernel.open_resolved(spec.workspace, resolve=NO_LINKS)
    found = os.stat(lower)
    os.chmod("upper", stat.S_IMODE(found.st_mode), dir_fd=store)
    upper = os.open("upper", os.O_RDONLY | os.O_DIRECTORY, dir_fd=store)
    work = os.open("work", os.O_PATH, dir_fd=store)
    if below := _mounted_below(spec.workspace):
        # In an overlay it would be missing, since the lower layer is one mount, or be refused.
        raise SandboxFault("overlay", f"something is mounted below the workspace: {below}")
    try:
        union = _overlay(lower, upper=upper, work=work)
    except OSError as refusal:
        reason = f"{refusal.filename}: {refusal.strerror} ({spec.workspace})"
        raise SandboxFault("overlay", reason, errno=refusal.errno) from refusal
    view.place(union, spec.workspace, is_directory=True)
    if upper_socket >= 0:
        _send_descriptor(upper_socket, upper)
    for descriptor in (store, lower, upper, work, union):
        os.close(descriptor)
    if spec.upper is None:
        view.unmount("/run/upper")


def _mounted_below(path: str) -> str | None:
    """Give a mount point below a directory, if there is one (proc_pid_mountinfo(5))."""
    beginning = os.fsencode(path.rstrip("/") + "/")
    with open("/proc/self/mountinfo", "rb", buffering=0) as mounts:
        found = mounts.readall() or b""
    escaped = beginning  # space, tab, newline and backslash stand as octal numbers
    for byte in b"\\ \t\n":
        escaped = escaped.replace(bytes((byte,)), b"\\%03o" % byte)
    if b" " + escaped not in found:
        return None
    for line in found.splitlines():
        point = line.split(b" ", 5)[4]
        if point.startswith(escaped):
            return os.fsdecode(point.decode("unicode_escape").encode("latin-1"))
    return None


def _send_descriptor(channel: int, descriptor: int) -> None:
    import array
    import socket

    with socket.socket(fileno=os.dup(channel)) as sender:
        rights = array.array("i", [descriptor])
        sender.sendmsg([b"u"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
