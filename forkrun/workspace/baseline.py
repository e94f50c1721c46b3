"""What the workspace was when the run started: enough to see what somebody else did since.

An overlay shows the workspace itself below the view, so nothing is copied and the tree is not
walked. Instead:

- **The start** is an instant on the workspace's own clock: the change time that its filesystem
  gave to an unnamed file, after that clock had moved once while we looked. Every change made
  before `open_view` therefore has a change time before the start, every change made after it one
  at or after the start, whatever the clock's grain (filesystems stamp with a coarse clock of 1 to
  10 ms; since Linux 6.13 a stamp that somebody has read is followed by a finer one, and stamps
  keep their order: multigrain-ts.rst). Unlike the modification time, the change time (inode(7))
  cannot be set by a program; writing, renaming, linking and chmod all move it.
- **What is gone** has no change time. The names in the top of the tree are listed up to a fixed
  number, and the index of git, where there is one, is kept open (git replaces that file and never
  writes into it), to be read only if the question arises.

A copy knows more: the stamp of every entry that was copied.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections import deque
from typing import Literal

import msgspec

from forkrun.workspace.dirs import Tree
from forkrun.workspace.gitfiles import Repository

Did = Literal["changed", "created", "deleted"]

_LISTED_NAMES = 2_000
_CLOCK_WAIT_S = 0.05
_CLOCK_REALTIME_COARSE = 5  # linux/time.h; Python does not name it


class Stamp(msgspec.Struct, frozen=True):
    """What changes when a file does."""

    inode: int
    size: int
    mode: int
    mtime_ns: int
    ctime_ns: int


def stamp_of(found: os.stat_result) -> Stamp:
    """Take the stamp of an entry; of a directory only what its own entries do not change."""
    if stat.S_ISDIR(found.st_mode):
        return Stamp(found.st_ino, 0, found.st_mode, 0, 0)
    return Stamp(found.st_ino, found.st_size, found.st_mode, found.st_mtime_ns, found.st_ctime_ns)


class OverlayBaseline:
    """The start of a run over an overlay: an instant, some names, and git's index."""

    def __init__(self, tree: Tree, repository: Repository | None) -> None:
        self._tree = tree
        self._repository = repository
        self._names, self._listed = _list_names(tree)
        self.start_ns = start_instant_ns(tree.fd)

    def somebody_did(
        self, path: str, *, now: os.stat_result | None, came_from: int | None
    ) -> Did | None:
        """Say what somebody did to a path since the start, judged by what stands there now.

        `came_from` is the inode of the workspace that the view's file is a copy of: 0 where that
        is not known, None where the file is new.
        """
        if now is None:
            return "deleted" if self._was_deleted(path, came_from=came_from) else None
        if stat.S_ISDIR(now.st_mode):
            # The times of a directory move with its entries; its own mode moves ctime alone.
            changed = now.st_ctime_ns >= self.start_ns and now.st_ctime_ns > now.st_mtime_ns
        else:
            changed = now.st_ctime_ns >= self.start_ns
        if not changed:
            return None
        return "created" if self._existed(path) is False else "changed"

    def came_later(self, path: str, now: os.stat_result) -> bool:
        """Whether an entry was not there at the start, as far as that can be known."""
        existed = self._existed(path)
        return now.st_ctime_ns >= self.start_ns if existed is None else not existed

    def _was_deleted(self, path: str, *, came_from: int | None) -> bool:
        existed = self._existed(path)
        if existed is not None or came_from is None:
            return bool(existed)
        # Whatever was removed since, a directory that still stands has seen it.
        return self._nearest_mtime_ns(path) >= self.start_ns

    def _existed(self, path: str) -> bool | None:
        """Whether the path stood at the start, or None where that is not known."""
        if path in self._names:
            return True
        if path.rpartition("/")[0] in self._listed:
            return False
        if self._repository is not None and self._repository.tracks(path):
            return True
        return None

    def _nearest_mtime_ns(self, path: str) -> int:
        """Return the time of the last entry made or removed in the deepest directory there is."""
        nearest = os.fstat(self._tree.fd)
        end = path.find("/")
        while end > 0:
            found = self._tree.lstat(path[:end])
            if found is None or not stat.S_ISDIR(found.st_mode):
                break
            nearest = found
            end = path.find("/", end + 1)
        return nearest.st_mtime_ns


class CopyBaseline:
    """The start of a run over a copy: the stamp of every entry in the workspace, by path."""

    def __init__(self, stamps: dict[str, Stamp]) -> None:
        self.stamps = stamps

    def somebody_did(
        self, path: str, *, now: os.stat_result | None, came_from: int | None
    ) -> Did | None:
        """Say what somebody did to a path since it was copied."""
        then = self.stamps.get(path)
        if now is None:
            return None if then is None else "deleted"
        if then is None:
            return "created"
        return None if stamp_of(now) == then else "changed"

    def came_later(self, path: str, now: os.stat_result) -> bool:
        """Whether an entry was not there at the start."""
        return path not in self.stamps


def start_instant_ns(directory: int) -> int:
    """Return an instant of the filesystem's clock that parts what was from what will be.

    On a filesystem whose stamps are coarser than 50 ms (whole seconds, say), what was changed in
    the same stamp before the start counts as changed after it: a conflict too many, never one
    too few.
    """
    probe = _open_probe(directory)
    if probe is None:
        # Not writable, so nothing can be committed either: the coarse clock will do.
        return time.clock_gettime_ns(_CLOCK_REALTIME_COARSE)
    try:
        first = last = os.fstat(probe).st_ctime_ns
        give_up = time.monotonic() + _CLOCK_WAIT_S
        while last <= first and time.monotonic() < give_up:
            os.fchmod(probe, 0o600)
            last = os.fstat(probe).st_ctime_ns
            if last <= first:
                time.sleep(0.0005)
        return last
    finally:
        os.close(probe)


def _open_probe(directory: int) -> int | None:
    flags = os.O_RDWR | os.O_CLOEXEC
    with contextlib.suppress(OSError):
        return os.open(".", os.O_TMPFILE | flags, 0o600, dir_fd=directory)
    # Filesystems without unnamed files (NFS, say): a name that is gone at once.
    name = f".forkrun-{os.urandom(8).hex()}"
    with contextlib.suppress(OSError):
        probe = os.open(name, os.O_CREAT | os.O_EXCL | flags, 0o600, dir_fd=directory)
        os.unlink(name, dir_fd=directory)
        return probe
    return None


def _list_names(tree: Tree) -> tuple[set[str], set[str]]:
    """List names from the top down to a fixed number: (the names, the directories listed whole)."""
    names: set[str] = set()
    listed: set[str] = set()
    pending = deque([""])
    while pending:
        path = pending.popleft()
        try:
            with os.scandir(tree.open_dir(path)) as entries:
                for entry in entries:
                    if len(names) >= _LISTED_NAMES:
                        return names, listed
                    full = f"{path}/{entry.name}" if path else entry.name
                    names.add(full)
                    if entry.name != ".git" and entry.is_dir(follow_symlinks=False):
                        pending.append(full)
        except OSError:
            continue  # not readable, or gone: nothing is known of it
        listed.add(path)
    return names, listed
