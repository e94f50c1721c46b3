"""What the parent does around a child: bound it, find its namespace, read it, end it and know it.

    child = subprocess.Popen(…, start_new_session=True)
    with hold(child.pid, spec=spec) as held:         # before the child is told to enter
        …                                            # the child enters; then:
        held.find()
        loop.add_reader(held.end_fd, …)              # readable: everything inside is gone
        …
        held.kill()                                  # at once, never blocks
        assert held.is_empty(timeout_s=5)            # nothing is left, and we know it

Synchronous, without asyncio and without threads. The child itself stays the caller's to wait for.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import time
from types import TracebackType
from typing import NamedTuple

from . import cgroups, survivors
from .spec import Missing, Spec

_numbers = itertools.count()
# In place of a pidfd: on systems that have none, and after the end.
_NO_PIDFD, _CLOSED = -2, -1
_PAUSE_S = 0.005
_ROUNDS = 16
# How long a guardian without a process namespace may take to end what descends from it.
_GUARDIAN_S = 2.0


class Usage(NamedTuple):
    """What a sandbox uses and has used. Bytes and seconds; None where it cannot be read.

    `processes` is the most there were at once, `processes_now` how many there are.
    """

    memory_bytes: int | None
    peak_memory_bytes: int | None
    cpu_s: float
    processes: int
    processes_now: int


def hold(pid: int, *, spec: Spec, joins: bool = False) -> Held:
    """Take charge of a child that has not entered its sandbox yet.

    Makes the control groups for the limits of `spec` and puts the child into them. `Held.bounded`
    says what a group bounds, `Held.missing` what none does although a limit was given, and why.

    With `joins`, groups of version 1 are left for the child to join by itself: `Held.to_join` is
    to be the `groups` of the spec that it enters with. That saves some 10 ms: confine.join_groups.
    """
    group, missing = cgroups.create(spec.limits, number=next(_numbers))
    to_join = group.directories() if group is not None and joins and group.version == 1 else ()
    if group is not None and not to_join:
        try:
            _put_in(group, pid)
        except OSError as refusal:
            missing = (*missing, *_not_in(group, reason=str(refusal.strerror)))
            cgroups.remove(group)
            group = None
    return Held(pid, tier=spec.tier, group=group, missing=missing, to_join=to_join)


def group_parents() -> tuple[str, ...]:
    """Give the directories that the control groups of this process are made in, to be noted."""
    return cgroups.parents()


def sweep(further: tuple[str, ...] = ()) -> int:
    """Remove the control groups of parents that were killed; give how many.

    `further` are directories that others said they make theirs in: `group_parents`.
    """
    return cgroups.sweep(further)


class Held:
    """A child and what belongs to it; end it with `kill`, and leave with `close`."""

    def __init__(
        self,
        pid: int,
        *,
        tier: str,
        group: cgroups.Group | None,
        missing: tuple[Missing, ...],
        to_join: tuple[str, ...] = (),
    ) -> None:
        self._missing = missing
        self.to_join = to_join
        self._is_inside = False
        self._pid = pid
        self._tier = tier
        self._group = group
        self._outer = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else _NO_PIDFD
        self._init: int | None = None
        self._init_pid: int | None = None
        self._peak_memory_bytes = 0
        self._peak_processes = 0

    def __enter__(self) -> Held:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def bounded(self) -> tuple[str, ...]:
        """What a control group bounds: of "memory" and "pids"."""
        if self._group is None or not self._has_joined():
            return ()
        return self._group.bounds()

    @property
    def missing(self) -> tuple[Missing, ...]:
        """What has a limit and is bounded by no control group: of "memory" and "pids"."""
        if self._group is None or self._has_joined():
            return self._missing
        return (*self._missing, *_not_in(self._group, reason="the child could not join it"))

    @property
    def end_fd(self) -> int:
        """A descriptor that becomes readable when everything inside is gone.

        PID 1's where there is a namespace: the kernel lets it end last. Else the guardian's.
        """
        return self._outer if self._init is None else self._init

    def find(self) -> bool:
        """Find PID 1 of the child's process namespace, once it is confined; say if it is known.

        In tiers without one there is nothing to find.
        """
        if self._init is not None or self._tier not in ("full", "bwrap"):
            return self._init is not None
        for pid in (self._pid, *survivors.children(self._pid)):
            with contextlib.suppress(ProcessLookupError):
                descriptor = os.pidfd_open(pid)
                # Still our child's child: then the number cannot have been another's meanwhile.
                is_ours = pid == self._pid or pid in survivors.children(self._pid)
                if is_ours and survivors.is_namespace_init(pid):
                    self._init, self._init_pid = descriptor, pid
                    return True
                os.close(descriptor)
        return False

    def kill(self) -> None:
        """Kill everything inside. Returns at once; `end_fd` and `is_empty` tell when it is done."""
        if self._outer == _NO_PIDFD:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)
            return
        self.find()
        if self._group is not None:
            cgroups.kill(self._group)
        if self._init is not None:
            _signal(self._init, signal.SIGKILL)
        if self._tier in ("full", "bwrap"):
            # The intermediate too: PID 1 has it as death signal, if it was too young to be found.
            _signal(self._outer, signal.SIGKILL)
        else:
            # The guardian kills what descends from it; killed itself, it would orphan them.
            _signal(self._outer, signal.SIGTERM)
            _signal(self._outer, signal.SIGCONT)

    def is_empty(self, *, timeout_s: float) -> bool:
        """Wait until nothing is left inside, at most `timeout_s`, and say whether that is known."""
        deadline = time.monotonic() + timeout_s
        if self._outer == _NO_PIDFD:
            return _session_is_empty(self._pid, deadline=deadline)
        if self._tier in ("lsm", "none"):
            self._press(deadline=min(deadline, time.monotonic() + _GUARDIAN_S))
        for descriptor in (self._init, self._outer):
            if descriptor is not None and not _ended(descriptor, deadline=deadline):
                return False
        while self._group is not None and not self._group_is_dead():
            if time.monotonic() > deadline:
                return False
            cgroups.kill(self._group)
            time.sleep(_PAUSE_S)
        return True

    def usage(self) -> Usage:
        """Read what is used now; without a control group by /proc, in some milliseconds."""
        self.find()
        inside = survivors.measure(self._init_pid or self._pid)
        group = self._group
        now = cgroups.memory_now(group) if group else None
        peak = cgroups.memory_peak(group) if group else None
        memory = inside.memory_bytes if now is None else now
        self._peak_memory_bytes = max(self._peak_memory_bytes, memory, peak or 0)
        processes = max(inside.processes, (cgroups.processes_peak(group) or 0) if group else 0)
        self._peak_processes = max(self._peak_processes, processes)
        return Usage(
            memory_bytes=memory,
            peak_memory_bytes=self._peak_memory_bytes,
            cpu_s=inside.cpu_s,
            processes=self._peak_processes,
            processes_now=inside.processes,
        )

    def used(self) -> Usage:
        """Read what was used, when nothing is left inside: quicker than `usage`.

        CPU time is not in it: whoever has waited for the child knows that.
        """
        group = self._group
        peak = (cgroups.memory_peak(group) or 0) if group else 0
        most = (cgroups.processes_peak(group) or 0) if group else 0
        self._peak_memory_bytes = max(self._peak_memory_bytes, peak)
        self._peak_processes = max(self._peak_processes, most)
        return Usage(
            memory_bytes=0,
            peak_memory_bytes=self._peak_memory_bytes or None,
            cpu_s=0.0,
            processes=self._peak_processes,
            processes_now=0,
        )

    def limits_hit(self) -> tuple[str, ...]:
        """Give the bounds that the kernel has enforced so far: of "memory" and "processes".

        A bound that is met once refuses one fork or kills one process; the run may have gone on.
        """
        if self._group is None:
            return ()
        hit = ["memory"] if cgroups.memory_kills(self._group) else []
        return (*hit, "processes") if cgroups.forks_refused(self._group) else tuple(hit)

    def close(self) -> bool:
        """Close the descriptors and remove the groups; say whether nothing is left behind."""
        removed = cgroups.remove(self._group) if self._group is not None else True
        self._group = None
        for descriptor in (self._outer, self._init):
            if descriptor is not None and descriptor >= 0:
                os.close(descriptor)
        self._outer, self._init = _CLOSED, None
        return removed

    def _press(self, *, deadline: float) -> None:
        """Give the guardian its time; if it does not end, do its work from outside."""
        if _ended(self._outer, deadline=deadline):
            return
        _signal(self._outer, signal.SIGSTOP)
        for _ in range(100):
            left = survivors.descendants(self._pid)
            if not left:
                break
            survivors.kill_all(left)
        _signal(self._outer, signal.SIGKILL)

    def _has_joined(self) -> bool:
        """Say whether the child and all of its tree are, or were when last looked at, in its group.

        Looked at first when the child is confined, before anything that is not ours runs in it.
        """
        if self._group is not None and not self._is_inside:
            self._is_inside = not _outside(self._group, self._pid)
        return self._is_inside

    def _group_is_dead(self) -> bool:
        group = self._group
        return group is None or all(survivors.is_dead(pid) for pid in cgroups.members(group))


def _put_in(group: cgroups.Group, pid: int) -> None:
    """Put a process and its descendants into a group, until nobody is outside. Raises OSError.

    What is inside forks inside; but each move takes its time, in which those outside may fork.
    """
    for _ in range(_ROUNDS):
        outside = _outside(group, pid)
        if not outside:
            return
        for each in outside:
            try:
                cgroups.add(group, each)
            except ProcessLookupError:
                if each == pid:
                    raise


def _outside(group: cgroups.Group, pid: int) -> set[int]:
    """Give who of a process and its descendants is not in the group."""
    outside = survivors.tree(pid) - cgroups.bounded(group)
    return {each for each in outside if not survivors.is_dead(each)}


def _not_in(group: cgroups.Group, *, reason: str) -> tuple[Missing, ...]:
    return tuple(Missing(layer=name, reason=f"control group: {reason}") for name in group.bounds())


def _session_is_empty(pid: int, *, deadline: float) -> bool:
    """Wait until nobody is left in the process group of a child; a zombie of ours still counts."""
    while time.monotonic() < deadline:
        try:
            os.killpg(pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:  # what macOS answers for a group of zombies
            return True
        time.sleep(_PAUSE_S)
    return False


def _signal(descriptor: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(descriptor, number)


def _ended(descriptor: int, *, deadline: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
