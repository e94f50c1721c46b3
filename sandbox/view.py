"""The file system that a sandbox sees: a new root, put together from detached mounts.

    /                     tmpfs, read-only when it is done (or a root file system of the user's)
    /usr /bin /lib …      the host's, read-only          /etc        a few files of it
    /proc                 its own                        /dev        seven devices, own pts and shm
    /tmp, HOME            private, of bounded size       readable    at their real paths, read-only
    the workspace         at its real path, as the spec says

All of this runs in PID 1 of the sandbox, which still has every capability in the namespaces that it
has just made, and before any code that is not ours. Nothing is unmounted or forbidden here: what
is not put in is not there.
"""

from __future__ import annotations

import os
import stat
import time
from typing import NamedTuple

from . import kernel
from .confine import place_in_foreign_root
from .fault import SandboxFault
from .spec import Shape, Spec
from .tree import LOCKED, NO_LINKS, PRIVATE, ROOT_OPTIONS, View, make_empty_file

SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "opt", "nix", "gnu")
# Of /etc only what programs need to run: no keys, no shadow, no configuration with credentials.
ETC = (
    "alternatives",
    "ca-certificates.conf",
    "crypto-policies",
    "fonts",
    "java-11-openjdk",
    "java-17-openjdk",
    "java-21-openjdk",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "os-release",
    "perl",
    "pki/ca-trust",
    "pki/tls/cert.pem",
    "pki/tls/certs",
    "pki/tls/openssl.cnf",
    "protocols",
    "services",
    "ssl/cert.pem",
    "ssl/certs",
    "ssl/openssl.cnf",
    "static",
    "terminfo",
    "timezone",
)
# The directories that SYSTEM and ETC lie in, and the coarsest clock of their times.
_SHOWN_IN = ("/", "/etc", "/etc/pki", "/etc/pki/tls", "/etc/ssl")
_TICK_NS = 20_000_000
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEV_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
# Keys are not namespaced. The rest only root may read, and root it may be, without capabilities.
_PROC_MASKED = ("keys", "key-users")
_PROC_MASKED_FOR_ROOT = (
    *("kcore", "kmsg", "kallsyms", "kpagecount", "kpageflags", "kpagecgroup"),
    *("sched_debug", "slabinfo", "timer_list", "vmallocinfo", "sysrq-trigger"),
)
# Places that are the sandbox's own: a readable path may lie in them but not be or hide them.
_OWN = ("/", "/proc", "/sys", "/dev", "/tmp", "/etc")


class Base(NamedTuple):
    """The part of a view that no workspace changes.

    `host` is what of the host it was made from, as that was before; None where nobody will ask.
    """

    view: View
    proc: int
    shape: Shape
    host: tuple[object, ...] | None

    def is_current(self, shape: Shape, own: tuple[str, ...]) -> bool:
        """Say whether it would be made the same way now."""
        return self.shape == shape and self.host == _host(own)


class Built(NamedTuple):
    """A view that is ready to become the root: descriptors of it, and of a writable proc.

    The sandbox itself has no writable proc.
    """

    root: int
    proc: int


def begin(
    shape: Shape, own: tuple[str, ...], *, root: str | None = None, keeps_watch: bool = False
) -> Base:
    """Begin a view in this mount namespace, beside its root: of the host's system, or of `root`.

    `own` are the paths that our interpreter needs. With `keeps_watch`, `Base.is_current` will see
    what has been replaced on the host since. Raises SandboxFault.
    """
    try:
        host = _host(own) if keeps_watch else None
        kernel.make_mounts_private()
        view = View(_new_root(), uid=shape.uid, gid=shape.gid)
        if root is None:
            _bind_system(view)
            _write_etc(view, shape)
        else:
            _bind_foreign_root(view, root)
        _mount_dev(view)
        proc = _mount_proc(view)
        for path, mode in (("/dev/shm", "1777"), ("/tmp", "1777"), (shape.home, "700")):
            view.mount_private(path, mode=mode, size=shape.tmp_bytes)
        for path in own if root is None else ():
            view.show(path)
    except OSError as refusal:
        raise _fault(refusal) from refusal
    return Base(view, proc, shape, host)


def finish(base: Base, spec: Spec, *, own: tuple[str, ...], upper_socket: int) -> Built:
    """Add to a view what is asked for, and close it.

    `own` are the paths that our interpreter needs. With an overlay, a descriptor of the directory
    that the writes land in is sent over `upper_socket` (-1: to nobody). Raises SandboxFault.
    """
    view = base.view
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
        raise _fault(refusal) from refusal
    return Built(view.root, base.proc)


def become_root(built: Built) -> None:
    """Make a view the root of this namespace and of all in it, and let go of the old one."""
    try:
        kernel.pivot_into(built.root)
    except OSError as refusal:
        raise _fault(refusal) from refusal
    os.close(built.root)


def _fault(refusal: OSError) -> SandboxFault:
    reason = f"{refusal.filename}: {refusal.strerror}"
    return SandboxFault("mount", reason, errno=refusal.errno)


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


def _new_root() -> int:
    """Attach an empty root, beside the old one, which paths still start at until we pivot."""
    root = kernel.new_filesystem("tmpfs", options=ROOT_OPTIONS, attributes=PRIVATE)
    _attach_aside(root)
    return root


def _attach_aside(tree: int) -> None:
    """Attach a root-to-be where nothing is that we need: a directory that every proc has.

    Not over "/": that would make a chroot of every process that still has the old root, and a
    process in a chroot may make no user namespace.
    """
    place = os.open("/proc/fs", os.O_PATH)
    kernel.attach(tree, place)
    os.close(place)


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


def _bind_system(view: View) -> None:
    """Bind the host's programs and the harmless part of /etc, and lock all of it in one call."""
    view.bind_members("/", SYSTEM)
    os.mkdir("etc", 0o755, dir_fd=view.root)
    view.bind_members("/etc", ETC)
    view.lock_all()


def _host(own: tuple[str, ...]) -> tuple[object, ...]:
    """Give what tells the host's part of a view from one that would be made later.

    Whatever is put into a directory, taken out or replaced moves the directory's time, save in the
    same tick of the clock: a time that is as young as that is equal to none.
    """
    now = time.time_ns()
    found: list[object] = []
    for path in (*_SHOWN_IN, *own):
        try:
            stand = os.stat(path)
        except OSError:
            found.append(None)
            continue
        is_young = path in _SHOWN_IN and now - stand.st_mtime_ns < _TICK_NS
        changed = object() if is_young else stand.st_mtime_ns if path in _SHOWN_IN else 0
        found.append((stand.st_dev, stand.st_ino, changed))
    return tuple(found)


def _bind_foreign_root(view: View, root: str) -> None:
    """Bind what lies in a root of the user's, save what is the sandbox's own."""
    names = set(os.listdir(root)) - {"proc", "sys", "dev", "tmp"}
    view.bind_members("/", tuple(sorted(names)), source=root)
    view.lock_all()
    try:
        shell = kernel.open_resolved("bin/sh", at=view.root, resolve=kernel.RESOLVE_IN_ROOT)
    except OSError as refusal:
        raise SandboxFault("root", f"no usable /bin/sh in it: {root}") from refusal
    os.close(shell)


def _write_etc(view: View, shape: Shape) -> None:
    view.write("/etc/passwd", _users(shape))
    view.write("/etc/group", _groups(view))
    view.write("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")
    view.write("/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n")


def _users(shape: Shape) -> str:
    shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
    users = {0: "root", 65534: "nobody", shape.uid: "root" if shape.uid == 0 else "agent"}
    homes = {shape.uid: (shape.gid, shape.home, shell)}
    lines = []
    for uid, name in sorted(users.items()):
        gid, home, program = homes.get(uid, (uid, "/", "/bin/false"))
        lines.append(f"{name}:x:{uid}:{gid}:{name}:{home}:{program}\n")
    return "".join(lines)


def _groups(view: View) -> str:
    groups = {0: "root", 65534: "nogroup", view.gid: "root" if view.gid == 0 else "agent"}
    return "".join(f"{name}:x:{gid}:\n" for gid, name in sorted(groups.items()))


def _text_of(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def _mount_dev(view: View) -> None:
    dev = view.mount("/dev", kind="tmpfs", options={"mode": "755", "size": "1m"})
    for name, target in _DEV_LINKS.items():
        os.symlink(target, name, dir_fd=dev)
    for name in ("shm", "pts"):
        os.mkdir(name, 0o755, dir_fd=dev)
    for name in _DEVICES:
        make_empty_file(dev, name)
        device = kernel.clone_tree(f"/dev/{name}", recursive=False)
        kernel.attach(device, dev, name=name)
        os.close(device)
    # Read-only: a device itself stays writable, its owner, mode and times do not.
    kernel.set_mount(dev, add=kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID)
    terminals: dict[str, str | None] = {"newinstance": None, "ptmxmode": "0666", "mode": "620"}
    os.close(view.mount("/dev/pts", kind="devpts", options=terminals, devices=True))
    os.close(dev)


def _mount_proc(view: View) -> int:
    proc = view.mount("/proc", kind="proc", options={})
    writable = kernel.clone_tree("", at=proc)
    kernel.set_mount(proc, add=LOCKED | kernel.MOUNT_ATTR_NOEXEC)
    os.close(proc)
    for name in _PROC_MASKED + (_PROC_MASKED_FOR_ROOT if view.uid == 0 else ()):
        view.mask(f"/proc/{name}")
    view.show("/sys/devices/system/cpu")
    return writable


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
