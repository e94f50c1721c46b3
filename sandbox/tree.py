"""A root under construction: an empty tmpfs, to which things of the host are bound one by one.

No link is followed on the way, neither at the source nor at the target, so what another process
swaps meanwhile is refused rather than found elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable

from . import kernel
from .fault import SandboxFault

LOCKED = kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV
PRIVATE = kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV
NO_LINKS = kernel.RESOLVE_NO_SYMLINKS | kernel.RESOLVE_NO_MAGICLINKS
ROOT_OPTIONS: dict[str, str | None] = {"mode": "755", "size": "4m", "nr_inodes": "4096"}
_MAX_UNFOLDED = 2000
_MAX_HOPS = 40
_DEFAULT_TMP_BYTES = 512 * 1024**2


class View:
    """A root under construction. Paths are those of the host and, the same, of the sandbox."""

    def __init__(self, root: int, *, uid: int, gid: int) -> None:
        self.root = root
        self.uid = uid
        self.gid = gid
        self._shown: list[str] = []
        self._unfolded: list[int] = []
        self._covers: dict[bool, int] = {}
        self._no_links: set[str] = set()

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

    def forget_ways(self) -> None:
        """Look anew for links: what was found to be none may have become one since."""
        self._no_links.clear()

    def lock_all(self) -> None:
        """Make all that is mounted so far read-only, and let the root itself be added to."""
        kernel.set_mount(self.root, add=LOCKED)
        kernel.set_mount(self.root, clear=kernel.MOUNT_ATTR_RDONLY, recursive=False)

    def finish(self) -> None:
        """Make read-only what was kept writable to add to it."""
        for tree in (*self._unfolded, self.root):
            kernel.set_mount(tree, add=LOCKED, recursive=False)
        for tree in (*self._unfolded, *self._covers.values()):
            os.close(tree)

    def _bind_member(self, at: int, name: str, *, path: str, source: int = kernel.AT_FDCWD) -> None:
        tree = kernel.clone_tree(path, at=source)
        self._make_parents(at, name)
        if stat.S_ISDIR(os.stat(tree).st_mode):
            os.mkdir(name, 0o755, dir_fd=at)
        else:
            make_empty_file(at, name)
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
        self.bind(real, real, attributes=LOCKED)

    def bind(self, source: str, target: str, *, attributes: int) -> None:
        """Mount `source`, with all that is mounted below it, at `target`.

        No link is followed on the way: what another process swaps meanwhile is refused.
        """
        opened = kernel.open_resolved(source, resolve=NO_LINKS)
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
        attributes = kernel.MOUNT_ATTR_NOSUID if devices else PRIVATE
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
        tree = kernel.clone_tree("", at=self._cover(is_directory=is_directory))
        kernel.attach(tree, target)
        os.close(tree)
        os.close(target)

    def place(self, tree: int, path: str, *, is_directory: bool) -> None:
        """Attach a detached mount at `path`, making the mount point where it is missing."""
        target = self._directory(path) if is_directory else self._file(path)
        kernel.attach(tree, target)
        os.close(target)

    def _open(self, path: str) -> int:
        inside = kernel.RESOLVE_IN_ROOT | NO_LINKS
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
            self._add(path, make=make_empty_file)
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
        tree = kernel.new_filesystem("tmpfs", options=ROOT_OPTIONS, attributes=PRIVATE)
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
        """Give a mount of the empty file or directory of mode 000 that covers what is masked.

        Its clones are locked as it is.
        """
        if is_directory not in self._covers:
            name = ".hidden-directory" if is_directory else ".hidden-file"
            if is_directory:
                os.mkdir(name, 0, dir_fd=self.root)
            else:
                make_empty_file(self.root, name)
                os.chmod(name, 0, dir_fd=self.root)
            place = self._open(name)
            tree = kernel.clone_tree("", at=place)
            kernel.set_mount(tree, add=LOCKED | kernel.MOUNT_ATTR_NOEXEC)
            kernel.attach(tree, place)
            os.close(place)
            self._covers[is_directory] = tree
        return self._covers[is_directory]

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
            step = f"/{part}" if real == "/" else f"{real}/{part}"
            if step in self._no_links:
                real = step
                continue
            try:
                target = os.readlink(step)
            except OSError:
                self._no_links.add(step)
                real = step
                continue
            hops += 1
            if hops > _MAX_HOPS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            if not any(step.startswith(s + "/") for s in self._shown):
                self.link(step, target)
            if target.startswith("/"):
                real = "/"
            rest[:0] = [part for part in target.split("/") if part and part != "."]
        return real


def fault_of(refusal: OSError) -> SandboxFault:
    """Say which call refused to build a view, and why."""
    return SandboxFault("mount", f"{refusal.filename}: {refusal.strerror}", errno=refusal.errno)


def make_empty_file(directory: int, name: str) -> None:
    """Make a file to mount another on."""
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
    os.close(os.open(name, flags, 0o644, dir_fd=directory))


def _is_private(path: str) -> bool:
    return path.startswith(("/proc/", "/dev/"))
