"""How many more runs this machine has room for, said before it runs out of anything.

A run holds some descriptors of ours and some processes; each bound is read from where it is set.
What is left for others is a part of the room, too: the last twentieth is never given out. No limit
is raised here: it is that of the whole process, and whatever that starts would inherit it.
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
    """How many more runs fit, what bounds them ("open files", "processes", "memory"), and what one
    can do about that bound, if anything."""

    runs: int
    bounded_by: str
    remedy: str = ""


def room(*, alive: int = 0) -> Room:
    """Find how many more runs fit beside the `alive` ones, of which some may only be starting."""
    if sys.platform != "linux":
        return Room(1_000_000, "nothing that is looked at here")
    return min(_descriptors(alive), _processes(), _memory())


def check_room(*, alive: int) -> int:
    """Give how many runs may be alive before it is worth looking again.

    Raises ForkrunError where there is no room for one more.
    """
    found = room(alive=alive)
    if found.runs < 1:
        at_most = f"have at most {max(1, alive)} at once"
        raise ForkrunError(
            f"no room for another run: {found.bounded_by} would run out; {alive} are alive",
            hint=f"{at_most}, or {found.remedy}" if found.remedy else at_most,
        )
    return alive + max(1, found.runs // 4)


def _descriptors(alive: int) -> Room:
    most, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # What is starting has not opened all that it will hold.
    used = max(len(os.listdir("/proc/self/fd")), alive * DESCRIPTORS_PER_RUN)
    return _fitting(
        most - used,
        most,
        each=DESCRIPTORS_PER_RUN,
        name="open files (ulimit -n)",
        remedy=_raised("RLIMIT_NOFILE", "ulimit -n", soft=most, hard=hard),
    )


def _processes() -> Room:
    rooms = [_fitting(1 << 22, 0, each=PROCESSES_PER_RUN, name="processes")]
    for limit, used in _GROUPS:
        most = _number(limit)
        if most is not None:
            free = most - (_number(used) or 0)
            name = "processes (pids of the control group)"
            remedy = f"raise the bound of the control group, now {most}: pids.max"
            rooms.append(_fitting(free, most, each=PROCESSES_PER_RUN, name=name, remedy=remedy))
    threads, running = _number("/proc/sys/kernel/pid_max"), _running()
    if threads is not None:
        name = "processes (kernel.pid_max)"
        remedy = f"raise that sysctl, now {threads}"
        free = threads - running
        rooms.append(_fitting(free, threads, each=PROCESSES_PER_RUN, name=name, remedy=remedy))
    most, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    if os.geteuid() != 0 and most != resource.RLIM_INFINITY:  # it does not bind root: setrlimit(2)
        free = most - running
        name = "processes (ulimit -u)"
        remedy = _raised("RLIMIT_NPROC", "ulimit -u", soft=most, hard=hard)
        rooms.append(_fitting(free, most, each=PROCESSES_PER_RUN, name=name, remedy=remedy))
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


def _fitting(free: int, whole: int, *, each: int, name: str, remedy: str = "") -> Room:
    return Room(max(0, int(free - whole * KEPT) // each), name, remedy)


def _raised(limit: str, command: str, *, soft: int, hard: int) -> str:
    """Say how a limit of this process is raised: setrlimit(2)."""
    if soft == hard:
        return f"have the hard limit of this process raised, now {hard}: limits.conf(5)"
    most = "any number" if hard == resource.RLIM_INFINITY else str(hard)
    return (
        f"raise the soft limit of this process, now {soft}, to at most {most}: "
        f"`{command}` before its start, or resource.setrlimit(resource.{limit}, …) in it"
    )


def _number(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            text = file.read().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
