"""How many more runs this machine has room for, said before it runs out of anything.

A run holds some descriptors of ours and some processes; each bound is read from where it is set.
What is left for others is a part of the room, too: the last twentieth is never given out.
"""

from __future__ import annotations

import os
import resource
import sys
from typing import NamedTuple

from forkrun.errors import ForkrunError

DESCRIPTORS_PER_RUN = 14
PROCESSES_PER_RUN = 4
MEMORY_PER_RUN_BYTES = 12 * 1024 * 1024
KEPT = 0.05
_GROUPS = (
    ("/sys/fs/cgroup/pids/pids.max", "/sys/fs/cgroup/pids/pids.current"),
    ("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids.current"),
)


class Room(NamedTuple):
    """How many more runs fit, and what bounds them ("open files", "processes", "memory")."""

    runs: int
    bounded_by: str


def room() -> Room:
    """Find how many more runs fit now."""
    if sys.platform != "linux":
        return Room(1_000_000, "nothing that is looked at here")
    return min(_descriptors(), _processes(), _memory())


def check_room(*, alive: int) -> int:
    """Give how many runs may be alive before it is worth looking again.

    Raises ForkrunError where there is no room for one more.
    """
    found = room()
    if found.runs < 1:
        raise ForkrunError(
            f"no room for another run: {found.bounded_by} would run out; {alive} are alive",
            hint=f"have at most {max(1, alive)} at once, or raise the limit of this process",
        )
    return alive + max(1, found.runs // 4)


def _descriptors() -> Room:
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    return _fitting(most - used, most, each=DESCRIPTORS_PER_RUN, name="open files (ulimit -n)")


def _processes() -> Room:
    rooms = [_fitting(1 << 22, 0, each=PROCESSES_PER_RUN, name="processes")]
    for limit, used in _GROUPS:
        most = _number(limit)
        if most is not None:
            free = most - (_number(used) or 0)
            name = "processes (pids of the control group)"
            rooms.append(_fitting(free, most, each=PROCESSES_PER_RUN, name=name))
    threads, running = _number("/proc/sys/kernel/pid_max"), _running()
    if threads is not None:
        name = "processes (kernel.pid_max)"
        rooms.append(_fitting(threads - running, threads, each=PROCESSES_PER_RUN, name=name))
    most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if os.geteuid() != 0 and most != resource.RLIM_INFINITY:  # it does not bind root: setrlimit(2)
        free = most - running
        name = "processes (ulimit -u)"
        rooms.append(_fitting(free, most, each=PROCESSES_PER_RUN, name=name))
    return min(rooms)


def _memory() -> Room:
    found = {}
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            name, _, rest = line.partition(":")
            found[name] = int(rest.split()[0]) * 1024
    free = found.get("MemAvailable", found["MemFree"])
    return _fitting(free, found["MemTotal"], each=MEMORY_PER_RUN_BYTES, name="memory")


def _running() -> int:
    """Give how many threads there are on this machine: proc_loadavg(5)."""
    with open("/proc/loadavg", encoding="ascii") as file:
        return int(file.read().split()[3].partition("/")[2])


def _fitting(free: int, whole: int, *, each: int, name: str) -> Room:
    return Room(max(0, int(free - whole * KEPT) // each), name)


def _number(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            text = file.read().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
