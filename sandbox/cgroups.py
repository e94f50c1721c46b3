"""Control groups for one sandbox: bounds on memory and processes that root cannot pass either.

Made below the group that this process is in, or the nearest one above it that hands down the
controllers, so that bounds set from outside still hold; nothing of the machine's set-up is changed.
Version 2 where it is delegated, version 1 as root: cgroups(7). The name of a group says who made
it, so that a later start can remove what a killed process left behind.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import time
from typing import NamedTuple

from .spec import Limits, Missing

_PREFIX = "forkrun"
# The intermediate and PID 1 are counted too.
_OWN_PROCESSES = 2
_REMOVAL_S = 1.0
_PAUSE_S = 0.002
_LOOK_AGAIN_S = 5.0
# Process namespace, process and start of the maker, and the number of the group.
_MINE = rf"{_PREFIX}-(\d+)-(\d+)-(\d+)-\d+"


class Group(NamedTuple):
    """The directories of one group: `memory` and `pids`, the same one under version 2, or None."""

    memory: str | None
    pids: str | None
    version: int

    def directories(self) -> tuple[str, ...]:
        """Give the directories, each once."""
        return tuple(dict.fromkeys(d for d in (self.memory, self.pids) if d is not None))

    def bounds(self) -> tuple[str, ...]:
        """Give what the group bounds: of "memory" and "pids"."""
        held = {"memory": self.memory, "pids": self.pids}
        return tuple(name for name, directory in held.items() if directory is not None)


def create(limits: Limits, *, number: int) -> tuple[Group | None, tuple[Missing, ...]]:
    """Make a group with these limits; `number` tells the groups of one process apart.

    Gives None where no controller can be had, and what is missing.
    """
    parents = _parents(int(time.monotonic() / _LOOK_AGAIN_S))
    name = f"{_maker(os.getpid())}-{number}"
    made: dict[str, str] = {}
    missing = []
    for controller, bound in (("memory", limits.memory_bytes), ("pids", limits.processes)):
        if bound is None:
            continue
        try:
            made[controller] = _make(parents[controller], name)
            _bound(made[controller], controller, bound=bound)
        except (OSError, KeyError) as refusal:
            reason = getattr(refusal, "strerror", None) or "no such control group here"
            missing.append(Missing(layer=controller, reason=f"control group: {reason}"))
            directory = made.pop(controller, None)
            if directory is not None and directory not in made.values():
                _remove(directory)
    if not made:
        return None, tuple(missing)
    version = 2 if os.path.exists(f"{next(iter(made.values()))}/cgroup.controllers") else 1
    group = Group(memory=made.get("memory"), pids=made.get("pids"), version=version)
    return group, tuple(missing)


def add(group: Group, pid: int) -> None:
    """Put a process into the group; what it forks from now on is in it too. Raises OSError."""
    for directory in group.directories():
        _write(directory, "cgroup.procs", str(pid))


def kill(group: Group) -> None:
    """Send SIGKILL to everything in the group: at once (Linux 5.14), else one by one."""
    for directory in group.directories():
        try:
            _write(directory, "cgroup.kill", "1")
        except OSError:
            for pid in members(group):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)


def members(group: Group) -> tuple[int, ...]:
    """Give the processes in the group, zombies included."""
    found: set[int] = set()
    for directory in group.directories():
        found.update(int(pid) for pid in _read(directory, "cgroup.procs").split())
    return tuple(found)


def bounded(group: Group) -> set[int]:
    """Give the processes that are in the group under each of its controllers."""
    inside = [set(_read(each, "cgroup.procs").split()) for each in group.directories()]
    return set(map(int, set.intersection(*inside)))


def remove(group: Group) -> bool:
    """Remove the group and say whether it is gone; a group with processes stays."""
    gone = [_remove(directory) for directory in group.directories()]
    return all(gone)


def memory_now(group: Group) -> int | None:
    """Give the memory of the group in bytes, or None."""
    file = "memory.current" if group.version == 2 else "memory.usage_in_bytes"
    return _number(group.memory, file)


def memory_peak(group: Group) -> int | None:
    """Give the most memory that the group ever had, in bytes, or None (v2: Linux 5.19)."""
    file = "memory.peak" if group.version == 2 else "memory.max_usage_in_bytes"
    return _number(group.memory, file)


def processes_peak(group: Group) -> int | None:
    """Give the most processes that the group ever had, or None (Linux 6.1)."""
    return _number(group.pids, "pids.peak")


def memory_kills(group: Group) -> int:
    """Give how many processes the kernel has killed because the memory bound was met."""
    file = "memory.events" if group.version == 2 else "memory.oom_control"
    return _event(group.memory, file, key="oom_kill")


def forks_refused(group: Group) -> int:
    """Give how often a new process was refused because the bound on them was met."""
    return _event(group.pids, "pids.events", key="max")


def parents() -> tuple[str, ...]:
    """Give the directories in which this process makes its groups."""
    return tuple(sorted(set(_parents(int(time.monotonic() / _LOOK_AGAIN_S)).values())))


def sweep(further: tuple[str, ...] = ()) -> int:
    """Remove the groups of processes that are gone; give how many.

    Looked for where this process would make one, and in `further` directories: another process may
    have been in another group, and only who remembers them finds what it has left there.
    """
    removed = 0
    for parent in {*parents(), *further}:
        for name in _children(parent):
            if is_orphan(name):
                removed += _remove(os.path.join(parent, name))
    return removed


def is_orphan(name: str) -> bool:
    """Say whether this is the name of a group whose maker is gone.

    Of makers in another process namespace, whose numbers mean nothing here, that is not known.
    """
    maker = re.fullmatch(_MINE, name) if name.startswith(_PREFIX) else None
    if maker is None or int(maker[1]) != _process_namespace():
        return False
    return _started(int(maker[2])) != int(maker[3])


@functools.lru_cache(maxsize=1)
def _parents(period: int) -> dict[str, str]:
    """Give, for each controller that can be had, the directory to make a group in.

    Within one `period` that is not looked up again: it takes longer than to make a group.
    """
    own = {}
    for line in _lines("/proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), path))
    found = {}
    for line in _lines("/proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        root, mounted = before.split(" ")[3:5]
        kind, _, options = after.split(" ")[:3]
        if kind == "cgroup2" and "" in own:
            path = _below(mounted, root, own[""])
            found.update({c: d for c, d in _delegated(path, mounted).items() if c not in found})
        elif kind == "cgroup":
            for controller in {"memory", "pids"} & set(options.split(",")) & own.keys():
                directory = _below(mounted, root, own[controller])
                if os.access(directory, os.W_OK):
                    found[controller] = directory
    return found


def _below(mounted: str, root: str, path: str) -> str:
    inside = os.path.relpath(path, root)
    return mounted if inside.startswith("..") else os.path.normpath(os.path.join(mounted, inside))


def _delegated(path: str, mounted: str) -> dict[str, str]:
    """Go up from our own group to the first that we may write and that hands down controllers."""
    found: dict[str, str] = {}
    while path.startswith(mounted):
        handed_down = _read(path, "cgroup.subtree_control").split()
        if os.access(path, os.W_OK) and os.access(f"{path}/cgroup.procs", os.W_OK):
            found.update({c: path for c in handed_down if c not in found})
        path = os.path.dirname(path)
    return {c: d for c, d in found.items() if c in ("memory", "pids")}


def _make(parent: str, name: str) -> str:
    directory = os.path.join(parent, name)
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o755)
    return directory


def _bound(directory: str, controller: str, *, bound: int) -> None:
    if controller == "pids":
        _write(directory, "pids.max", str(bound + _OWN_PROCESSES))
    elif os.path.exists(f"{directory}/memory.max"):
        _write(directory, "memory.max", str(bound))
        with contextlib.suppress(OSError):  # a kernel without swap accounting
            _write(directory, "memory.swap.max", "0")
    else:
        _write(directory, "memory.limit_in_bytes", str(bound))
        with contextlib.suppress(OSError):
            _write(directory, "memory.memsw.limit_in_bytes", str(bound))


def _remove(directory: str) -> bool:
    """Remove a group; for a moment after its last process has gone, the kernel answers EBUSY."""
    deadline = time.monotonic() + _REMOVAL_S
    while True:
        try:
            os.rmdir(directory)
            return True
        except FileNotFoundError:
            return True
        except OSError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_PAUSE_S)


@functools.lru_cache(maxsize=1)
def _maker(pid: int) -> str:
    """Give the beginning of the names of this process's groups; it may have been forked."""
    return f"{_PREFIX}-{_process_namespace()}-{pid}-{_started(pid)}"


def _process_namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _started(pid: int) -> int:
    """Give when a process started, in clock ticks since boot, or -1: proc_pid_stat(5), field 22."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except OSError:
        return -1


def _children(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _write(directory: str, name: str, text: str) -> None:
    with open(f"{directory}/{name}", "w", encoding="utf-8") as file:
        file.write(text)


def _read(directory: str | None, name: str) -> str:
    if directory is None:
        return ""
    try:
        with open(f"{directory}/{name}", encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def _number(directory: str | None, name: str) -> int | None:
    text = _read(directory, name).strip()
    return int(text) if text.isdigit() else None


def _event(directory: str | None, name: str, *, key: str) -> int:
    for line in _read(directory, name).splitlines():
        found, _, value = line.partition(" ")
        if found == key:
            return int(value)
    return 0


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read().splitlines()
    except OSError:
        return []
