"""Find and kill what descends from a process, by /proc: for tiers without a process namespace.

It is a race against a tree that grows while it is walked, so everything found is first stopped and
the walk repeated until nothing new appears. A namespace's init or a control group is better.
"""

from __future__ import annotations

import os
import signal
import time

_ROUNDS = 400
_PAUSE_S = 0.005


def descendants(ancestor: int) -> set[int]:
    """Give the ids of all living processes below `ancestor`; without zombies."""
    parents = _parents()
    found: set[int] = set()
    new = {ancestor}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new} - found
        found |= new
    return found


def kill_descendants(ancestor: int) -> bool:
    """Kill all that descends from `ancestor`, and say whether nothing is left.

    To be called by the ancestor, which must be a subreaper: only then do orphans stay below it.
    """
    for attempt in range(_ROUNDS):
        left = descendants(ancestor)
        _reap()
        if not left:
            return True
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in left:
                _send(pid, number)
        if attempt > 3:
            time.sleep(_PAUSE_S)
    return False


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return


def _parents() -> dict[int, int]:
    """Give the parent of each living process; proc_pid_stat(5)."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if fields[0] not in (b"Z", b"X"):
            found[int(name)] = int(fields[1])
    return found
