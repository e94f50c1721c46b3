"""Run one command in a session of its own, and leave nothing of it alive.

The command has no input and no terminal, inherits no descriptor but 0, 1 and 2, and starts with
default signals. While it runs its output is read and kept in bounds. It is over when its first
process is over: what is then still there gets a moment to end by itself, is asked to, and is
killed. The same happens at the time limit, but for the first moment.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from forkrun.tools import processes

SETTLE_S = 0.2  # how long what the command left may take to end by itself
ASKED_S = 0.5  # how long between SIGTERM and SIGKILL
KILL_S = 5.0  # how long the kernel may take to end what was killed
_TICK_S = 0.01
_CHUNK_BYTES = 64 * 1024
_MOST_IN_PIPE_BYTES = 1024 * 1024  # /proc/sys/fs/pipe-max-size, unless root raised it


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended. `code` is its exit code, or minus the number of a signal.

    `left` names the processes that had to be ended with it, `alive` those that could not be.
    """

    code: int
    timed_out: bool
    duration_s: float
    left: tuple[str, ...] = ()
    alive: tuple[str, ...] = ()


def run_command(
    argv: list[str],
    sink: Sink,
    *,
    directory: int,
    env: Mapping[str, str],
    timeout_s: float,
    heard: Callable[[], None] = lambda: None,
) -> Ended:
    """Run a program (an absolute path and its arguments) in the directory of a descriptor.

    What it writes to stdout and stderr goes to `sink`, and `heard` is called for each piece.
    Raises OSError where it cannot be started.
    """
    known = processes.children()
    started = time.monotonic()
    output, writing = os.pipe()
    try:
        try:
            standard = (None, writing, writing)
            pid = processes.start(argv, standard, directory=directory, env=env)
        finally:
            os.close(writing)
        os.set_blocking(output, False)
        command = _Command(pid, known, output, sink, heard)
        try:
            in_time = command.follow(until=started + timeout_s, done=command.has_ended)
            left, alive = command.finish(may_settle=in_time)
        except BaseException:
            command.discard()
            command.finish(may_settle=False)
            raise
    finally:
        os.close(output)
    return Ended(
        code=command.code,
        timed_out=not in_time,
        duration_s=time.monotonic() - started,
        left=left,
        alive=alive,
    )


class Sink(Protocol):
    """What takes output; an exception from it ends the command and is passed on."""

    def add(self, chunk: bytes) -> None:
        """Take the next bytes."""
        ...


class _Command:
    """A command that runs: its first process, its output, and which children are not its own."""

    def __init__(
        self,
        pid: int,
        known: frozenset[int],
        output: int,
        sink: Sink | None,
        heard: Callable[[], None],
    ) -> None:
        self.code = -signal.SIGKILL  # until it is known better, it is no success
        self._pid = pid
        self._known = known
        self._output = output
        self._sink = sink
        self._heard = heard
        self._is_reaped = False
        self._is_open = True

    def follow(self, *, until: float, done: Callable[[], bool]) -> bool:
        """Read output until something is done (True) or an instant has come (False)."""
        watch = select.poll()
        if self._is_open:
            watch.register(self._output, select.POLLIN)
        handle = _pidfd(self._pid) if not self._is_reaped else None
        if handle is not None:
            watch.register(handle, select.POLLIN)
        try:
            while not done():
                left_s = until - time.monotonic()
                if left_s <= 0:
                    return False
                watches_all = handle is not None and not self._is_reaped
                wait_s = left_s if watches_all else min(left_s, _TICK_S)
                for descriptor, _ in watch.poll(wait_s * 1000):
                    if descriptor == self._output:
                        self._read()
                        if not self._is_open:
                            watch.unregister(self._output)
            return True
        finally:
            if handle is not None:
                os.close(handle)

    def discard(self) -> None:
        """Drop what is printed from now on: whoever took it has failed."""
        self._sink = None

    def has_ended(self) -> bool:
        """Say whether the first process is over, and take its exit code."""
        if not self._is_reaped:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._is_reaped = True
                self.code = os.waitstatus_to_exitcode(status)
        return self._is_reaped

    def finish(self, *, may_settle: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """End all that is left; return the names of what was left, and of what still lives."""
        if may_settle:
            self.follow(until=time.monotonic() + SETTLE_S, done=self._is_alone)
        if not processes.can_be_listed():  # their group has to do
            self._signal_group(signal.SIGKILL)
        left = self._alive()
        if left or not self.has_ended():
            self._signal(left, signal.SIGTERM)
            self.follow(until=time.monotonic() + ASKED_S, done=self._is_alone)
            end = time.monotonic() + KILL_S
            while not self._is_alone() and time.monotonic() < end:
                self._signal(self._alive(), signal.SIGKILL)
                self.follow(until=time.monotonic() + _TICK_S, done=self._is_alone)
        for _ in range(_MOST_IN_PIPE_BYTES // _CHUNK_BYTES):
            if not self._read():
                break
        return _names(left), _names(self._alive())

    def _is_alone(self) -> bool:
        self.has_ended()
        processes.reap(known=self._known | {self._pid})
        return self._is_reaped and not self._alive()

    def _alive(self) -> list[processes.Process]:
        return processes.descendants(known=self._known)

    def _signal(self, to: list[processes.Process], number: int) -> None:
        processes.send(number, to=to)
        if not self._is_reaped:  # then its id is still its own, and so is its group's
            self._signal_group(number)

    def _signal_group(self, number: int) -> None:
        try:
            os.killpg(self._pid, number)
        except ProcessLookupError:
            return

    def _read(self) -> bool:
        """Take one piece of output; False when there is none now or none will come."""
        try:
            piece = os.read(self._output, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not piece:
            self._is_open = False
            return False
        if self._sink is not None:
            self._sink.add(piece)
            self._heard()
        return True


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _names(found: list[processes.Process]) -> tuple[str, ...]:
    return tuple(process.name for process in found)
