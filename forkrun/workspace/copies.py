"""A private view by copying, for where an overlay cannot be had.

Blocks are shared where the filesystem can share them. What git ignores is not copied; links stay
links; FIFOs, sockets and devices are left out.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator

from forkrun.errors import WorkspaceError
from forkrun.workspace.baseline import Stamp, stamp_of
from forkrun.workspace.dirs import MAX_PATH_BYTES, Tree
from forkrun.workspace.gitfiles import Ignored
from forkrun.workspace.transfer import copy_bytes

Progress = Callable[[int, int], None]
"""Is called with (bytes copied, bytes in all)."""


class Copied:
    """The stamps of what was copied, by path: in the workspace (`before`) and in the copy."""

    def __init__(self) -> None:
        self.before: dict[str, Stamp] = {}
        self.copy: dict[str, Stamp] = {}


def copy_tree(
    source: Tree,
    target: Tree,
    *,
    ignored: Ignored,
    max_bytes: int | None = None,
    progress: Progress | None = None,
) -> Copied:
    """Copy a workspace into an empty directory. `max_bytes` bounds the size of all files.

    Raises WorkspaceError before anything is copied where the bound would be exceeded.
    """
    try:
        return _copy_all(source, target, ignored=ignored, max_bytes=max_bytes, progress=progress)
    except OSError as error:
        raise WorkspaceError(f"the workspace cannot be copied: {error}") from error


def usage_of(path: str) -> int:
    """Give the bytes that the files below a directory take; what goes meanwhile does not count."""
    total = 0
    pending = [path]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
                        if entry.is_dir(follow_symlinks=False):
                            pending.append(entry.path)
        except OSError:
            continue
    return total


def _copy_all(
    source: Tree,
    target: Tree,
    *,
    ignored: Ignored,
    max_bytes: int | None,
    progress: Progress | None,
) -> Copied:
    found = dict(_survey(source, ignored=ignored))
    total = sum(map(_size, found.values()))
    if max_bytes is not None and total > max_bytes:
        raise WorkspaceError(
            f"the workspace is too large to be copied: {total} bytes, of at most {max_bytes}",
            hint="name large directories in .gitignore, raise --disk, or use --workspace live",
        )
    copied = Copied()
    done = 0
    if progress is not None:
        progress(0, total)
    for path, each in found.items():
        try:
            _copy_entry(source, target, path=path, found=each)
        except (PermissionError, FileNotFoundError):
            continue  # not readable for the child either, or gone meanwhile
        copied.before[path] = stamp_of(each)
        if progress is not None and stat.S_ISREG(each.st_mode):
            done += _size(each)
            progress(done, total)
    # Last, and from the bottom up: a directory may be one that its owner must not write.
    for path in reversed(copied.before):
        each = found[path]
        parent, name = target.parent(path)
        if stat.S_ISDIR(each.st_mode):
            os.chmod(name, stat.S_IMODE(each.st_mode), dir_fd=parent)
            os.utime(name, ns=(each.st_atime_ns, each.st_mtime_ns), dir_fd=parent)
        copied.copy[path] = stamp_of(os.stat(name, dir_fd=parent, follow_symlinks=False))
    return copied


def _size(found: os.stat_result) -> int:
    """What copying a file costs: holes cost nothing."""
    return min(found.st_size, found.st_blocks * 512) if stat.S_ISREG(found.st_mode) else 0


def _survey(source: Tree, *, ignored: Ignored) -> Iterator[tuple[str, os.stat_result]]:
    """List what is to be copied, each directory before what is in it."""
    pending = [""]
    while pending:
        directory = pending.pop()
        for name in _readable_names(source, directory):
            path = f"{directory}/{name}" if directory else name
            found = source.lstat(path)
            if found is None or len(os.fsencode(path)) > MAX_PATH_BYTES:
                continue
            is_directory = stat.S_ISDIR(found.st_mode)
            if ignored(path, is_directory=is_directory) is not None:
                continue
            if is_directory:
                pending.append(path)
            if is_directory or stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode):
                yield path, found


def _readable_names(source: Tree, directory: str) -> list[str]:
    try:
        return source.names(directory)
    except (PermissionError, FileNotFoundError):
        return []


def _copy_entry(source: Tree, target: Tree, *, path: str, found: os.stat_result) -> None:
    parent, name = target.parent(path)
    if stat.S_ISDIR(found.st_mode):
        os.mkdir(name, 0o700, dir_fd=parent)
    elif stat.S_ISLNK(found.st_mode):
        os.symlink(source.readlink(path), name, dir_fd=parent)
    else:
        _copy_file(source, parent, name=name, path=path, found=found)
    if os.geteuid() == 0:
        os.chown(name, found.st_uid, found.st_gid, dir_fd=parent, follow_symlinks=False)


def _copy_file(source: Tree, parent: int, *, name: str, path: str, found: os.stat_result) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    old = source.open_file(path)
    try:
        new = os.open(name, flags, 0o600, dir_fd=parent)
        try:
            copy_bytes(old, new)
            os.fchmod(new, stat.S_IMODE(found.st_mode) & 0o1777)
            os.utime(new, ns=(found.st_atime_ns, found.st_mtime_ns))
        finally:
            os.close(new)
    finally:
        os.close(old)
