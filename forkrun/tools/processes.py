"""Start a program; find and end what it leaves: every descendant, however it tries to slip away.

While this process adopts orphans (`kernel.adopt_orphans`), a descendant that has left its session
and lost its parents becomes our child. Hence the rule that ends the search: no new child of ours,
no descendant.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping

import msgspec

from forkrun.tools import kernel

_PROC = "/proc"


class Process(msgspec.Struct, frozen=True):
    """A process as /proc shows it. `name` is the kernel's, cut at 15 bytes."""

    pid: int
    parent: int
    name: str
    is_zombie: bool


def start(
    argv: list[str],
    standard: tuple[int | None, int, int],
    *,
    directory: int,
    env: Mapping[str, str],
) -> int:
    """Start a program (an absolute path and its arguments) in a session of its own.

    It has these descriptors for 0, 1 and 2 (None: an input that is empty) and no other, works in
    the directory of a descriptor, and begins with default signals. Gives its process id. Raises
    OSError where it cannot be started.
    """
    kernel.keep_descriptors_from_children()
    before = os.open(".", getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fchdir(directory)
        return os.posix_spawn(
            argv[0],
            argv,
            env,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, at, "/dev/null", os.O_RDONLY, 0)
                if descriptor is None
                else (os.POSIX_SPAWN_DUP2, descriptor, at)
                for at, descriptor in enumerate(standard)
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
        )
    finally:
        os.fchdir(before)
        os.close(before)


def can_be_listed() -> bool:
    """Say whether there is a /proc that shows the processes of this namespace."""
    return os.path.exists(f"{_PROC}/{os.getpid()}/stat")


def children() -> frozenset[int]:
    """Give the process ids of the children that this process has now, zombies included."""
    if not _has_children():
        return frozenset()
    return frozenset(process.pid for process in _table() if process.parent == os.getpid())


def descendants(*, known: frozenset[int]) -> list[Process]:
    """List the descendants that live, but for the `known` children and those of theirs.

    Empty where there is no /proc.
    """
    if not known and not _has_children():
        return []
    below: dict[int, list[Process]] = {}
    for process in _table():
        below.setdefault(process.parent, []).append(process)
    found = [process for process in below.get(os.getpid(), []) if process.pid not in known]
    for process in found:
        found.extend(below.get(process.pid, []))
    return [process for process in found if not process.is_zombie]


def send(number: int, *, to: list[Process]) -> None:
    """Send a signal to processes that were listed, and to nobody who took their ids since."""
    for process in to:
        try:
            handle = os.pidfd_open(process.pid)
        except OSError:  # it is gone
            continue
        try:
            # Whoever has this id and this parent now is one of ours.
            if _read(process.pid).parent == process.parent:
                signal.pidfd_send_signal(handle, number)
        except OSError:
            continue
        finally:
            os.close(handle)


def reap(*, known: frozenset[int]) -> None:
    """Take the exit statuses of children that have ended, but for the `known` ones."""
    for pid in children() - known:
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            continue


def _has_children() -> bool:
    """Ask the kernel, which knows better than a walk over /proc; True where it cannot be asked."""
    if not hasattr(os, "waitid"):
        return True
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _table() -> Iterator[Process]:
    try:
        names = os.listdir(_PROC)
    except FileNotFoundError:
        return
    for name in names:
        if name.isdecimal():
            try:
                yield _read(int(name))
            except (FileNotFoundError, ProcessLookupError):
                continue


def _read(pid: int) -> Process:
    with open(f"{_PROC}/{pid}/stat", "rb", buffering=0) as file:
        line = file.read(1024)
    # "pid (comm) state ppid …"; comm may hold blanks and parentheses: proc_pid_stat(5).
    name, _, rest = line.partition(b"(")[2].rpartition(b")")
    state, parent = rest.split()[:2]
    return Process(pid, int(parent), name.decode("utf-8", "replace"), state in {b"Z", b"X"})
