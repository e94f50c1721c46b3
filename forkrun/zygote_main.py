"""The zygote: imports what every worker needs, then forks one for each request of its owner.

    python -I -S -c '<bootstrap>' … CONTROL_FD,OWNER_FD

It has one thread and never starts another; that is what makes a fork of it safe. It was started by
exec with an environment that was built for workers, so neither its memory nor `/proc` holds a
secret of its owner. It is the subreaper of its forks: what a killed worker leaves behind comes to
it and is killed. When its owner ends, or lets go of the control socket, it ends too.

Where it may make namespaces, a fork is PID 1 of one and begins its sandbox at once. When all is
quiet, one such fork is made ahead of time, of the shape that was asked for last: a spare.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple, NoReturn

import msgspec

from forkrun.protocol import Fork, Forked, FromZygote, Reap, Reaped, ToZygote
from forkrun.worker import be_worker, prepare_tools, rehearse
from forkrun_sandbox.enter import Begun, begin, prepare_for_many
from forkrun_sandbox.guard import (
    adopt_orphans,
    fork_init,
    is_privileged,
    kill_strays,
    own_process_namespace,
    wait_status_of_init,
)
from forkrun_sandbox.spec import Shape

MAX_MESSAGE_BYTES = 4096
SWEEP_MS = 50
SWEEPS = 40
# So late that it does not take its core from the run that has just begun.
SPARE_AFTER_MS = 5
WARM = ("bash", "reading", "writing", "replacing", "searching", "listing", "ripgrep", "processes")
"""The modules of `forkrun.tools` that a first call would import; the rest follows from them."""


def main(be: Callable[..., NoReturn] = be_worker) -> NoReturn:
    """Serve the owner until it is gone. The last argument names the control socket and it."""
    control_fd, owner = map(int, sys.argv[-1].split(","))
    control = socket.socket(fileno=control_fd)
    adopt_orphans()
    prepare_tools()
    for name in WARM:
        import_module(f"forkrun.tools.{name}")
    import_module("forkrun.policy")
    rehearse()
    prepare_for_many()
    gc.collect()
    gc.freeze()  # so that forks do not copy the pages of what exists, to mark it as still in use
    _Zygote(control, owner=owner, be=be).serve()
    os._exit(0)


class _Spare(NamedTuple):
    """A fork that has begun a sandbox before anybody has asked for it. Over `control` it is told
    the descriptors of its run; when that closes, it ends."""

    pid: int
    shape: Shape
    control: socket.socket


class _Zygote:
    """The zygote, and what it has forked."""

    def __init__(self, control: socket.socket, *, owner: int, be: Callable[..., NoReturn]) -> None:
        """`owner` is a pidfd; `be` is what its forks do."""
        self._control = control
        self._owner = owner
        self._be = be
        self._namespace = own_process_namespace() if is_privileged() else -1
        self._mounts = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        self._workers: set[int] = set()
        self._inits: set[int] = set()
        self._spare: _Spare | None = None
        self._wanted: Shape | None = None
        self._sweeps = 0

    def serve(self) -> None:
        """Do what the owner asks, until it is gone."""
        decoder = msgspec.msgpack.Decoder(ToZygote)
        poll = select.poll()
        for descriptor in (self._control, self._owner):
            poll.register(descriptor, select.POLLIN)
        # Readable in this way when something is mounted or unmounted: proc_pid_mounts(5).
        poll.register(self._mounts, select.POLLPRI)
        while True:
            ready = {fd for fd, _ in poll.poll(self._patience_ms())}
            if self._owner in ready:
                break
            if self._mounts in ready:
                self._drop_spare()
                self._wanted = None  # mounts may come and go all the time: not before the next run
            if self._control.fileno() in ready:
                message, descriptors, _, _ = socket.recv_fds(self._control, MAX_MESSAGE_BYTES, 4)
                if not message:
                    break
                answer = self._answer(decoder.decode(message), descriptors)
                self._control.send(msgspec.msgpack.encode(answer))
            elif not ready:
                self._use_the_quiet()
        self._drop_spare()

    def _patience_ms(self) -> int | None:
        if self._wanted is not None and self._spare is None:
            return SPARE_AFTER_MS
        return SWEEP_MS if self._sweeps else None

    def _use_the_quiet(self) -> None:
        if self._wanted is not None and self._spare is None:
            self._prepare_spare(self._wanted)
        elif self._sweeps:
            self._sweep()
            self._sweeps -= 1

    def _answer(self, asked: ToZygote, descriptors: list[int]) -> FromZygote:
        if isinstance(asked, Fork):
            try:
                pid = self._worker_of(asked.shape, descriptors)
            except OSError as refusal:
                return Forked(number=asked.number, pid=0, refusal=refusal.strerror)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
            self._workers.add(pid)
            return Forked(number=asked.number, pid=pid)
        # What ends with its process namespace leaves nothing behind.
        leaves_nothing = asked.pid in self._inits
        reaped, was_killed = self._reap(asked)
        if not leaves_nothing:
            # What a killed worker leaves behind may come to us a little later.
            self._sweeps = SWEEPS if was_killed else self._sweeps
            self._sweep()
        return reaped

    def _worker_of(self, shape: Shape | None, descriptors: list[int]) -> int:
        """Give a worker that holds these descriptors: the spare, or a new fork."""
        if shape is None or self._namespace < 0:
            return _fork(os.fork, lambda: self._be_worker(descriptors))
        self._wanted = shape
        spare, self._spare = self._spare, None
        if spare is not None:
            if spare.shape == shape and _handed_over(spare, descriptors):
                return spare.pid
            self._end(spare)
        return self._init_of(lambda: self._be_worker(descriptors, begun=self._begun(shape)))

    def _prepare_spare(self, shape: Shape) -> None:
        ours, theirs = socket.socketpair()

        def be_spare() -> None:
            ours.close()
            self._control.close()
            begun = self._begun(shape)
            _, descriptors, _, _ = socket.recv_fds(theirs, 1, 4)
            if len(descriptors) == 4:
                theirs.close()
                self._be_worker(descriptors, begun=begun)

        try:
            self._spare = _Spare(self._init_of(be_spare), shape, ours)
        except OSError:
            self._wanted = None  # there is no room for one that nobody has asked for
            ours.close()
        theirs.close()

    def _begun(self, shape: Shape) -> Begun:
        return begin(shape, parent_pidfd=self._owner)

    def _init_of(self, be: Callable[[], object]) -> int:
        """Fork PID 1 of a process namespace, and remember that it is one."""
        pid = _fork(lambda: fork_init(self._namespace), be)
        self._inits.add(pid)
        return pid

    def _be_worker(self, descriptors: list[int], begun: Begun | None = None) -> NoReturn:
        """Be the worker: as a fresh one is when its `main` begins."""
        self._control.close()
        channel, upper, out, err = descriptors
        if begun is None:
            os.setsid()
        os.dup2(err, 2)
        os.close(err)
        self._be(
            channel_fd=channel,
            upper_fd=upper,
            summary_fd=out,
            parent_pidfd=self._owner,
            begun=begun,
        )

    def _reap(self, asked: Reap) -> tuple[Reaped, bool]:
        """Reap a worker that has ended, and say whether it was killed itself."""
        _, status, used = os.wait4(asked.pid, 0)
        self._workers.discard(asked.pid)
        was_killed = os.WIFSIGNALED(status)
        if asked.pid in self._inits:
            self._inits.discard(asked.pid)
            status = wait_status_of_init(status)
        reaped = Reaped(
            number=asked.number,
            wait_status=status,
            cpu_s=used.ru_utime + used.ru_stime,
            max_rss=used.ru_maxrss,
        )
        return reaped, was_killed

    def _sweep(self) -> None:
        spare = {self._spare.pid} if self._spare is not None else set()
        kill_strays(keep=self._workers | spare)

    def _drop_spare(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            self._end(spare)

    def _end(self, spare: _Spare) -> None:
        spare.control.close()
        os.kill(spare.pid, signal.SIGKILL)
        os.waitpid(spare.pid, 0)
        self._inits.discard(spare.pid)


def _fork(fork: Callable[[], int], be: Callable[[], object]) -> int:
    """Fork, and be in the child what is asked for; nothing leads from there back to here."""
    pid = fork()
    if pid == 0:
        try:
            be()
        except BaseException:  # noqa: BLE001 - said, and the end of this process
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(1)
    return pid


def _handed_over(spare: _Spare, descriptors: list[int]) -> bool:
    """Give the descriptors of a run to a spare; say whether it has lived to take them."""
    if os.waitid(os.P_PID, spare.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
        return False
    try:
        socket.send_fds(spare.control, [b"d"], descriptors)
    except OSError:
        return False
    spare.control.close()
    return True
