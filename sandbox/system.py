"""The base of a view: what of it no workspace changes, put together from the host or another root.

A base can be made before the job is known; what has changed since then, `Base.is_current` sees.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from . import kernel
from .fault import SandboxFault
from .spec import Shape
from .tree import LOCKED, PRIVATE, ROOT_OPTIONS, View, fault_of, make_empty_file

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
        raise fault_of(refusal) from refusal
    return Base(view, proc, shape, host)


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
