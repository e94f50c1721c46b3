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

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from typing import NamedTuple

from . import kernel
from .confine import place_in_foreign_root
from .fault import SandboxFault
from .spec import Limits, Spec

_LOCKED = kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV
_PRIVATE = kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV
_NO_LINKS = kernel.RESOLVE_NO_SYMLINKS | kernel.RESOLVE_NO_MAGICLINKS

_SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "opt", "nix", "gnu")
# Of /etc only what programs need to run: no keys, no shadow, no configuration with credentials.
_ETC = (
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

_MAX_UNFOLDED = 2000
_DEFAULT_TMP_BYTES = 512 * 1024**2
_ROOT_OPTIONS: dict[str, str | None] = {"mode": "755", "size": "4m", "nr_inodes": "4096"}


class Built(NamedTuple):
    """A view that is ready to become the root: descriptors of it, and of a writable proc.

    The sandbox itself has no writable proc.
    """

    root: int
    proc: int


def build(spec: Spec, *, uid: int, gid: int, own: tuple[str, ...], upper_socket: int) -> Built:
    """Build the view of `spec` in this mount namespace, beside its root.

    `own` are the paths that our interpreter needs. With an overlay, a descriptor of the directory
    that the writes land in is sent over `upper_socket` (-1: to nobody). Raises SandboxFault.
    """
    try:
        kernel.make_mounts_private()
        root = _new_root()
        view = _View(root, uid=uid, gid=gid, limits=spec.limits)
        if spec.root is None:
            _bind_system(view)
        else:
            _bind_foreign_root(view, spec.root)
        _write_etc(view, spec)
        _mount_dev(view)
        proc = _mount_proc(view)
        view.mount_private("/tmp", mode="1777", size=spec.limits.tmp_bytes)
        if _is_in_var_tmp(spec):
            view.mount_private("/var/tmp", mode="1777", size=spec.limits.tmp_bytes)
        view.mount_private(spec.home, mode="700", size=spec.limits.tmp_bytes)
        _show_readable(view, spec, own)
        _mount_workspace(view, spec, upper_socket=upper_socket)
        for path in sorted(spec.writable, key=_depth):
            _refuse_own(path)
            view.bind(path, path, attributes=_PRIVATE)
        for path in spec.masked:
            view.mask(path)
        if spec.root is None:
            view.link("/var/tmp", "/tmp")
        view.finish()
    except OSError as refusal:
        raise _fault(refusal) from refusal
    return Built(root, proc)


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


def _show_readable(view: _View, spec: Spec, own: tuple[str, ...]) -> None:
    """Show what may be read; in a foreign root our own paths elsewhere, not over the root's."""
    shown = set(spec.readable)
    if spec.root is None:
        shown.update(own)
    else:
        for number, path in enumerate(own):
            place = place_in_foreign_root(number)
            view.bind(os.path.realpath(path), place, attributes=_LOCKED)
    for path in sorted(shown, key=_depth):
        _refuse_own(path)
        view.show(path)


def _depth(path: str) -> tuple[int, str]:
    return path.count("/"), path


def _refuse_own(path: str) -> None:
    if not os.path.isabs(path) or os.path.normpath(path) in _OWN:
        raise SandboxFault("mount", f"cannot be shown inside: {path}")


def _new_root() -> int:
    """Attach an empty root, beside the old one, which paths still start at until we pivot."""
    root = kernel.new_filesystem("tmpfs", options=_ROOT_OPTIONS, attributes=_PRIVATE)
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
    return kernel.new_filesystem("overlay", options=options, attributes=_PRIVATE)


def _bind_system(view: _View) -> None:
    """Bind the host's programs and the harmless part of /etc, and lock all of it in one call."""
    view.bind_members("/", _SYSTEM)
    os.mkdir("etc", 0o755, dir_fd=view.root)
    view.bind_members("/etc", _ETC)
    view.lock_all()


def _bind_foreign_root(view: _View, root: str) -> None:
    """Bind what lies in a root of the user's, save what is the sandbox's own."""
    names = set(os.listdir(root)) - {"proc", "sys", "dev", "tmp"}
    view.bind_members("/", tuple(sorted(names)), source=root)
    view.lock_all()
    try:
        shell = kernel.open_resolved("bin/sh", at=view.root, resolve=kernel.RESOLVE_IN_ROOT)
    except OSError as refusal:
        raise SandboxFault("root", f"no usable /bin/sh in it: {root}") from refusal
    os.close(shell)


def _write_etc(view: _View, spec: Spec) -> None:
    if spec.root is None:
        view.write("/etc/passwd", _users(view, spec))
        view.write("/etc/group", _groups(view))
        view.write("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")
    if spec.network == "host":
        for path in ("/etc/hosts", "/etc/resolv.conf"):
            view.write(path, _text_of(path))
    elif spec.root is None:
        view.write("/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n")


def _users(view: _View, spec: Spec) -> str:
    shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
    users = {0: "root", 65534: "nobody", view.uid: "root" if view.uid == 0 else "agent"}
    homes = {view.uid: (view.gid, spec.home, shell)}
    lines = []
    for uid, name in sorted(users.items()):
        gid, home, program = homes.get(uid, (uid, "/", "/bin/false"))
        lines.append(f"{name}:x:{uid}:{gid}:{name}:{home}:{program}\n")
    return "".join(lines)


def _groups(view: _View) -> str:
    groups = {0: "root", 65534: "nogroup", view.gid: "root" if view.gid == 0 else "agent"}
    return "".join(f"{name}:x:{gid}:\n" for gid, name in sorted(groups.items()))


def _text_of(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def _mount_dev(view: _View) -> None:
    dev = view.mount("/dev", kind="tmpfs", options={"mode": "755", "size": "1m"})
    for name, target in _DEV_LINKS.items():
        os.symlink(target, name, dir_fd=dev)
    for name in ("shm", "pts"):
        os.mkdir(name, 0o755, dir_fd=dev)
    for name in _DEVICES:
        _make_empty_file(dev, name)
        device = kernel.clone_tree(f"/dev/{name}", recursive=False)
        kernel.attach(device, dev, name=name)
        os.close(device)
    # Read-only: a device itself stays writable, its owner, mode and times do not.
    kernel.set_mount(dev, add=kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID)
    view.mount_private("/dev/shm", mode="1777", size=view.limits.tmp_bytes)
    terminals: dict[str, str | None] = {"newinstance": None, "ptmxmode": "0666", "mode": "620"}
    os.close(view.mount("/dev/pts", kind="devpts", options=terminals, devices=True))
    os.close(dev)


def _mount_proc(view: _View) -> int:
    proc = view.mount("/proc", kind="proc", options={})
    writable = kernel.clone_tree("", at=proc)
    kernel.set_mount(proc, add=_LOCKED | kernel.MOUNT_ATTR_NOEXEC)
    os.close(proc)
    for name in _PROC_MASKED + (_PROC_MASKED_FOR_ROOT if view.uid == 0 else ()):
        view.mask(f"/proc/{name}")
    view.show("/sys/devices/system/cpu")
    return writable


def _mount_workspace(view: _View, spec: Spec, *, upper_socket: int) -> None:
    path = spec.workspace
    if spec.workspace_mode == "empty":
        view.mount_private(path, mode="755", size=spec.limits.disk_bytes)
    elif spec.workspace_mode == "overlay":
        _mount_overlay(view, spec, upper_socket=upper_socket)
    else:
        read_only = kernel.MOUNT_ATTR_RDONLY if spec.workspace_mode == "read" else 0
        source = spec.workspace_source or path
        view.bind(source, path, attributes=_PRIVATE | read_only)


def _mount_overlay(view: _View, spec: Spec, *, upper_socket: int) -> None:
    """Lay a private writable view over the workspace; hand out where its writes land."""
    if spec.upper is None:
        options = view.private_options(mode="700", size=spec.limits.disk_bytes)
        store = view.mount("/run/upper", kind="tmpfs", options=options)
    else:
        store = kernel.open_resolved(spec.upper, resolve=_NO_LINKS)
    for name in ("upper", "work"):
        os.mkdir(name, 0o700, dir_fd=store)
        os.chown(name, view.uid, view.gid, dir_fd=store)
    lower = kernel.open_resolved(spec.workspace, resolve=_NO_LINKS)
    found = os.stat(lower)
    os.chmod("upper", stat.S_IMODE(found.st_mode), dir_fd=store)
    upper = os.open("upper", os.O_RDONLY | os.O_DIRECTORY, dir_fd=store)
    work = os.open("work", os.O_PATH, dir_fd=store)
    union = _overlay(lower, upper=upper, work=work)
    view.place(union, spec.workspace, is_directory=True)
    if upper_socket >= 0:
        _send_descriptor(upper_socket, upper)
    for descriptor in (store, lower, upper, work, union):
        os.close(descriptor)
    if spec.upper is None:
        view.unmount("/run/upper")


def _send_descriptor(channel: int, descriptor: int) -> None:
    import array
    import socket

    with socket.socket(fileno=os.dup(channel)) as sender:
        rights = array.array("i", [descriptor])
        sender.sendmsg([b"u"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])


class _View:
    """A root under construction. Paths are those of the host and, the same, of the sandbox."""

    def __init__(self, root: int, *, uid: int, gid: int, limits: Limits) -> None:
        self.root = root
        self.uid = uid
        self.gid = gid
        self.limits = limits
        self._shown: list[str] = []
        self._unfolded: list[int] = []

    def bind_members(
        self, directory: str, names: tuple[str, ...], *, source: str | None = None
    ) -> None:
        """Bind those of `names` in a directory that are there; links stay links.

        `source` is the directory on the host, if it has another name there.
        """
        at = self._open(directory)
        for name in names:
            path = os.path.join(source or directory, name)
            try:
                target = os.readlink(path)
            except OSError as refusal:
                if refusal.errno == errno.EINVAL:
                    self._bind_member(at, name, path=path)
                    if source is None:
                        self._shown.append(path)
                continue
            self._make_parents(at, name)
            os.symlink(target, name, dir_fd=at)
        os.close(at)

    def lock_all(self) -> None:
        """Make all that is mounted so far read-only, and let the root itself be added to."""
        kernel.set_mount(self.root, add=_LOCKED)
        kernel.set_mount(self.root, clear=kernel.MOUNT_ATTR_RDONLY, recursive=False)

    def finish(self) -> None:
        """Make read-only what was kept writable to add to it."""
        for tree in (*self._unfolded, self.root):
            kernel.set_mount(tree, add=_LOCKED, recursive=False)
        for tree in self._unfolded:
            os.close(tree)

    def _bind_member(self, at: int, name: str, *, path: str, source: int = kernel.AT_FDCWD) -> None:
        tree = kernel.clone_tree(path, at=source)
        self._make_parents(at, name)
        if stat.S_ISDIR(os.stat(tree).st_mode):
            os.mkdir(name, 0o755, dir_fd=at)
        else:
            _make_empty_file(at, name)
        kernel.attach(tree, at, name=name)
        os.close(tree)

    def _make_parents(self, at: int, name: str) -> None:
        parent = os.path.dirname(name)
        if not parent:
            return
        self._make_parents(at, parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(parent, 0o755, dir_fd=at)

    def show(self, path: str) -> None:
        """Bind `path` read-only if it exists, with the symbolic links on the way to it."""
        real = self._reproduce_links(path)
        if any(real == s or real.startswith(s + "/") for s in self._shown):
            return
        if not os.path.lexists(real):
            return
        self.bind(real, real, attributes=_LOCKED)

    def bind(self, source: str, target: str, *, attributes: int) -> None:
        """Mount `source`, with all that is mounted below it, at `target`.

        No link is followed on the way: what another process swaps meanwhile is refused.
        """
        opened = kernel.open_resolved(source, resolve=_NO_LINKS)
        try:
            is_directory = stat.S_ISDIR(os.stat(opened).st_mode)
            tree = kernel.clone_tree("", at=opened)
        except OSError as refusal:
            raise OSError(refusal.errno, f"{refusal.strerror} ({source})", "open_tree") from refusal
        finally:
            os.close(opened)
        kernel.set_mount(tree, add=attributes)
        self.place(tree, target, is_directory=is_directory)
        os.close(tree)
        if not _is_private(target):
            self._shown.append(target)

    def mount(
        self, path: str, *, kind: str, options: dict[str, str | None], devices: bool = False
    ) -> int:
        """Mount a new file system and give a descriptor of its root."""
        attributes = kernel.MOUNT_ATTR_NOSUID if devices else _PRIVATE
        tree = kernel.new_filesystem(kind, options=options, attributes=attributes)
        self.place(tree, path, is_directory=True)
        return tree

    def private_options(self, *, mode: str, size: int | None) -> dict[str, str | None]:
        """Give the options of a tmpfs of the sandbox's user."""
        size = _DEFAULT_TMP_BYTES if size is None else size
        return {
            "mode": mode,
            "uid": str(self.uid),
            "gid": str(self.gid),
            "size": str(max(size, 4096)),
            "nr_inodes": str(max(size // 4096, 1024)),
        }

    def mount_private(self, path: str, *, mode: str, size: int | None) -> None:
        """Mount an empty directory of the sandbox's user, of bounded size."""
        options = self.private_options(mode=mode, size=size)
        os.close(self.mount(path, kind="tmpfs", options=options))

    def unmount(self, path: str) -> None:
        """Take a mount out of the view again; what is open stays open."""
        opened = self._open(path)
        kernel.call("umount2", f"/proc/self/fd/{opened}".encode(), kernel.MNT_DETACH)
        os.close(opened)

    def write(self, path: str, text: str) -> None:
        """Make a small file that everybody may read."""
        directory = self._directory(os.path.dirname(path))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.basename(path), dir_fd=directory)
            file = os.open(os.path.basename(path), flags, 0o644, dir_fd=directory)
        finally:
            os.close(directory)
        os.write(file, text.encode("utf-8", "surrogateescape"))
        os.close(file)

    def link(self, path: str, target: str) -> None:
        """Make a symbolic link, unless something is there."""
        directory = self._directory(os.path.dirname(path))
        with contextlib.suppress(FileExistsError):
            os.symlink(target, os.path.basename(path), dir_fd=directory)
        os.close(directory)

    def mask(self, path: str) -> None:
        """Cover a file or directory with one that nobody may read, if it is there."""
        try:
            target = self._open(path)
        except OSError as refusal:
            if refusal.errno in (errno.ENOENT, errno.ENOTDIR):
                return
            raise
        is_directory = stat.S_ISDIR(os.stat(target).st_mode)
        cover = self._cover(is_directory=is_directory)
        tree = kernel.clone_tree("", at=cover)
        os.close(cover)
        kernel.set_mount(tree, add=_LOCKED | kernel.MOUNT_ATTR_NOEXEC)
        kernel.attach(tree, target)
        os.close(tree)
        os.close(target)

    def place(self, tree: int, path: str, *, is_directory: bool) -> None:
        """Attach a detached mount at `path`, making the mount point where it is missing."""
        target = self._directory(path) if is_directory else self._file(path)
        kernel.attach(tree, target)
        os.close(target)

    def _open(self, path: str) -> int:
        inside = kernel.RESOLVE_IN_ROOT | _NO_LINKS
        return kernel.open_resolved(path.lstrip("/") or ".", at=self.root, resolve=inside)

    def _directory(self, path: str) -> int:
        try:
            return self._open(path)
        except FileNotFoundError:
            self._add(path, make=lambda parent, name: os.mkdir(name, 0o755, dir_fd=parent))
            return self._open(path)

    def _file(self, path: str) -> int:
        try:
            return self._open(path)
        except FileNotFoundError:
            self._add(path, make=_make_empty_file)
            return self._open(path)

    def _add(self, path: str, *, make: Callable[[int, str], None]) -> None:
        """Add a mount point, if need be in a directory that is shown and cannot be written to."""
        above, name = os.path.split(path)
        parent = self._directory(above)
        try:
            make(parent, name)
        except OSError as refusal:
            if refusal.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise
            unfolded = self._unfold(above, parent)
            make(unfolded, name)
        finally:
            os.close(parent)

    def _unfold(self, path: str, shown: int) -> int:
        """Lay a directory of our own over one of the host's, with the same things in it."""
        tree = kernel.new_filesystem("tmpfs", options=_ROOT_OPTIONS, attributes=_PRIVATE)
        listed = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=shown)
        names = os.listdir(listed)
        os.close(listed)
        if len(names) > _MAX_UNFOLDED:
            raise OSError(errno.E2BIG, f"too much in it to add to it: {path}", "mkdir")
        kernel.attach(tree, shown)
        for name in names:
            try:
                os.symlink(os.readlink(name, dir_fd=shown), name, dir_fd=tree)
            except OSError:
                self._bind_member(tree, name, path=name, source=shown)
        self._unfolded.append(tree)
        return tree

    def _cover(self, *, is_directory: bool) -> int:
        """Give the empty file or directory of mode 000 that covers what is masked."""
        name = ".hidden-directory" if is_directory else ".hidden-file"
        try:
            return self._open(name)
        except FileNotFoundError:
            if is_directory:
                os.mkdir(name, 0, dir_fd=self.root)
            else:
                _make_empty_file(self.root, name)
                os.chmod(name, 0, dir_fd=self.root)
            return self._open(name)

    def _reproduce_links(self, path: str) -> str:
        """Make inside each symbolic link on the way of `path`; give where the way ends."""
        real = "/"
        rest = [part for part in path.split("/") if part]
        hops = 0
        while rest:
            part = rest.pop(0)
            if part == "..":
                real = os.path.dirname(real)
                continue
            step = os.path.join(real, part)
            try:
                target = os.readlink(step)
            except OSError:
                real = step
                continue
            hops += 1
            if hops > 40:
                raise OSError(40, os.strerror(40), path)
            if not any(step.startswith(s + "/") for s in self._shown):
                self.link(step, target)
            if target.startswith("/"):
                real = "/"
            rest[:0] = [part for part in target.split("/") if part and part != "."]
        return real


def _make_empty_file(directory: int, name: str) -> None:
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
    os.close(os.open(name, flags, 0o644, dir_fd=directory))


def _is_private(path: str) -> bool:
    return path.startswith(("/proc/", "/dev/"))
