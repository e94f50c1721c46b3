"""Find, measure and kill what descends from a process, by /proc.

For killing it is the last resort, for tiers without a process namespace: a race against a tree that
grows while it is walked, so everything found is first stopped, and the walk repeated until nothing
is left. A namespace's init or a control group is better.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import NamedTuple

_ROUNDS = 400
_PAUSE_S = 0.005
_DEAD = (b"Z", b"X")


class Measure(NamedTuple):
    """What a process and its descendants use together. A page that several share counts once.

    `processes` counts as the kernel's bounds do: each thread, and what has ended and waits to be
    reaped; a fork bomb whose processes cannot fork is full of those.
    """

    memory_bytes: int
    cpu_s: float
    processes: int


def descendants(ancestor: int) -> set[int]:
    """Give the ids of all living processes below `ancestor`; without zombies."""
    living = {pid: fields for pid, fields in _all().items() if fields[0] not in _DEAD}
    return _below(ancestor, living)


def _below(ancestor: int, processes: dict[int, list[bytes]]) -> set[int]:
    parents = {pid: int(fields[1]) for pid, fields in processes.items()}
    found: set[int] = set()
    new = {ancestor}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new} - found
        found |= new
    return found


def children(parent: int) -> tuple[int, ...]:
    """Give the children of a process that has one thread; proc_pid_task_children(5)."""
    try:
        with open(f"/proc/{parent}/task/{parent}/children", "rb") as file:
            return tuple(int(pid) for pid in file.read().split())
    except FileNotFoundError:
        # A kernel without CONFIG_PROC_CHILDREN, or the process is gone.
        return tuple(pid for pid, fields in _all().items() if int(fields[1]) == parent)
    except ProcessLookupError:
        return ()


def is_namespace_init(pid: int) -> bool:
    """Say whether a process is PID 1 of a namespace below ours: NSpid in proc_pid_status(5)."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"NSpid:"):
                    ids = line.split()[1:]
                    return len(ids) > 1 and ids[-1] == b"1"
    except (FileNotFoundError, ProcessLookupError):
        pass
    return False


def tree(root: int) -> set[int]:
    """Give a process and its descendants, as far as each is the child of a first thread."""
    found, new = {root}, [root]
    while new:
        new = [child for pid in new for child in children(pid) if child not in found]
        found.update(new)
    return found


def is_dead(pid: int) -> bool:
    """Say whether a process is gone, or a zombie that waits to be reaped."""
    fields = _stat(pid)
    return fields is None or fields[0] in _DEAD


def kill_descendants(ancestor: int) -> bool:
    """Kill all that descends from `ancestor`, and say whether nothing is left.

    To be called by the ancestor, which must be a subreaper: only then do orphans stay below it.
    """
    for attempt in range(_ROUNDS):
        left = descendants(ancestor)
        _reap()
        if not left:
            return True
        kill_all(left)
        if attempt > 3:
            time.sleep(_PAUSE_S)
    return False


def kill_all(pids: set[int]) -> None:
    """Stop all of these, so that none forks while its neighbours die, then kill them."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def measure(ancestor: int) -> Measure:
    """Measure a process and all that descends from it.

    Memory is the proportional set size, where it may be read (proc_pid_smaps(5), Linux 4.14), and
    what is kept in files without a name (memfd_create(2)), which no set size shows.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    ticks = os.sysconf("SC_CLK_TCK")
    processes = _all()
    memory = shared = cpu = counted = 0
    unnamed: dict[tuple[int, int], int] = {}
    for pid in {ancestor} | _below(ancestor, processes):
        fields = processes.get(pid)
        if fields is None:
            continue
        counted += max(int(fields[17]), 1)  # num_threads
        # utime, stime, and those of the children that it has waited for: fields 14 to 17.
        cpu += sum(int(field) for field in fields[11:15])
        sizes = _set_sizes(pid)
        memory += sizes.get(b"Pss:", int(fields[21]) * page) - sizes.get(b"Pss_Shmem:", 0)
        shared += sizes.get(b"Pss_Shmem:", 0)
        unnamed.update(_unnamed_files(pid))
    memory += max(shared, sum(unnamed.values()))
    return Measure(memory_bytes=memory, cpu_s=cpu / ticks, processes=counted)


def _set_sizes(pid: int) -> dict[bytes, int]:
    """Give the proportional set sizes of a process in bytes, or none where that is refused."""
    found = {}
    with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup", "rb") as file:
        for line in file:
            if line.startswith(b"Pss"):
                name, size = line.split()[:2]
                found[name] = int(size) * 1024
    return found


def _unnamed_files(pid: int) -> dict[tuple[int, int], int]:
    """Give the size of each open file that has no name and no mapping shows, by its inode."""
    found = {}
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{name}"
            with contextlib.suppress(OSError):
                if os.readlink(path).startswith("/memfd:"):
                    status = os.stat(path)
                    found[status.st_dev, status.st_ino] = status.st_blocks * 512
    except OSError:
        pass
    return found


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue


def _all() -> dict[int, list[bytes]]:
    """Give the state, parent and further fields of every process, zombies included."""
    found = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit():
            fields = _stat(int(name))
            if fields is not None:
                found[int(name)] = fields
    return found


def _stat(pid: int) -> list[bytes] | None:
    """Give the fields of proc_pid_stat(5) from the third on; the second may hold spaces."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return None
