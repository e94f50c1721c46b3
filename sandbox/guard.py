"""Who watches over the worker: nothing of a run outlives its worker or its parent.

    parent ── intermediate ── PID 1 ── PID 2, the worker ── what it starts
                 (stay)        (run_init)

- The intermediate is the process that the parent started. It waits, ends as the worker ended, and
  takes the sandbox with it when it is killed.
- PID 1 of the process namespace reaps, as a small program of its own (`init`). When it ends, the
  kernel kills everything in the namespace before its descriptor reports the end:
  pid_namespaces(7).
- Without a process namespace (`guard_descendants`) one process does both: it adopts every orphan
  (prctl PR_SET_CHILD_SUBREAPER) and kills in a loop until it has no descendant left.

The death of the parent is seen through a pidfd, which belongs to the process and not to the thread
that started the run, and which no other holder can keep open: pidfd_open(2).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
from typing import NoReturn

from . import init, kernel
from .fault import SandboxFault

_BY_SIGNAL = 128
_CAP_SETGID, _CAP_SETUID, _CAP_SYS_ADMIN = 1 << 6, 1 << 7, 1 << 21
_NEEDED_TO_BUILD = _CAP_SETGID | _CAP_SETUID | _CAP_SYS_ADMIN


def reset_signals() -> None:
    """Give every signal its default action and unblock all."""
    kernel.default_signals()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def watch_parent() -> int:
    """Give a pidfd of the parent; end here if it died before it could be watched."""
    parent = os.getppid()
    try:
        descriptor = os.pidfd_open(parent)
    except OSError as refusal:
        raise SandboxFault("pidfd", f"the parent: {refusal.strerror}") from refusal
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    return descriptor


def is_privileged() -> bool:
    """Say whether this process may make namespaces and take on ids without a user namespace."""
    return kernel.capabilities() & _NEEDED_TO_BUILD == _NEEDED_TO_BUILD


def own_process_namespace() -> int:
    """Give a descriptor of the process namespace that this process is in."""
    return os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)


def fork_init(own_namespace: int) -> int:
    """Fork a child that is PID 1 of a new process namespace, as os.fork(); needs privileges.

    The next children are in our own namespace again: of it, `own_namespace` is a descriptor.
    Raises OSError.
    """
    kernel.unshare(kernel.CLONE_NEWPID)
    pid = -1
    try:
        pid = os.fork()
    finally:
        if pid != 0:
            kernel.call("setns", own_namespace, kernel.CLONE_NEWPID)
    return pid


def wait_status_of_init(wait_status: int) -> int:
    """Give the wait status of the worker, read from that of its PID 1."""
    if os.WIFEXITED(wait_status):
        number = os.WEXITSTATUS(wait_status) - _BY_SIGNAL
        if 0 < number < signal.NSIG:
            return number
    return wait_status


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends: prctl(2), a subreaper."""
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)


def kill_strays(keep: set[int]) -> None:
    """Kill and reap the children that are not in `keep`: what ended parents have left to us.

    One that takes its time to end is reaped at a later call.
    """
    from .survivors import children

    for pid in children(os.getpid()):
        if pid not in keep:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def stay(init: int, *, status: int) -> NoReturn:
    """Be the intermediate: wait for PID 1 and end as the worker ended. `status` is a pipe."""
    _let_go()
    kernel.close_all_but((0, 1, 2, status))
    told = os.read(status, 4)
    _, ended = os.waitpid(init, 0)
    end_like(struct.unpack("=i", told)[0] if len(told) == 4 else ended)


def end_like(wait_status: int) -> NoReturn:
    """End this process as another one ended: the same exit status, or the same signal."""
    if os.WIFSIGNALED(wait_status):
        number = os.WTERMSIG(wait_status)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (number,))
        os._exit(128 + number)
    os._exit(os.waitstatus_to_exitcode(wait_status))


def run_init(worker: int, *, watched: tuple[int, ...], status: int) -> NoReturn:
    """Be PID 1: reap until the worker ends or one of the pidfds in `watched` does; then end.

    How the worker ended is written to the pipe `status`, where it is not -1; our own exit status
    says it too. `watched` are one or two.
    """
    told = _signal_descriptor(signal.SIGCHLD)
    init.load()
    _let_go()
    _arrange(told, watched[0], watched[-1], status)
    if worker == init.WORKER:
        init.run()
    # It could not be run: the same in Python.
    ended = _wait_for(worker, watched=init.WATCHED, told=init.TOLD)
    if ended is None:
        os._exit(_BY_SIGNAL + signal.SIGKILL)
    os.write(init.STATUS, struct.pack("=i", ended))
    # No signal that it sends itself ends a PID 1: pid_namespaces(7).
    code = os.waitstatus_to_exitcode(ended)
    os._exit(code if code >= 0 else _BY_SIGNAL - code)


def _arrange(*descriptors: int) -> None:
    """Give these descriptors the numbers from 3 on, -1 for /dev/null, and close all others."""
    found = [init.aside(0 if descriptor < 0 else descriptor) for descriptor in descriptors]
    for number, descriptor in enumerate(found, init.TOLD):
        os.dup2(descriptor, number)
    kernel.close_all_but((0, 1, 2, *range(init.TOLD, init.TOLD + len(found)), *init.loaded()))


def guard_descendants(worker: int, *, watched: tuple[int, ...]) -> NoReturn:
    """Be the guardian of a tier without a process namespace; end as the worker ended.

    SIGTERM asks it to end everything now.
    """
    from .survivors import kill_descendants

    told = _signal_descriptor(signal.SIGCHLD, signal.SIGTERM)
    _let_go()
    kernel.close_all_but((0, 1, 2, *watched, told))
    ended = _wait_for(worker, watched=watched, told=told)
    kill_descendants(os.getpid())
    if ended is None:
        os._exit(128 + signal.SIGKILL)
    end_like(ended)


def _let_go() -> None:
    """Read and write nothing of anybody, so that an end of file means what it should."""
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)


def _signal_descriptor(*numbers: signal.Signals) -> int:
    """Block these signals and give a descriptor that they can be read from; signalfd(2)."""
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    mask = struct.pack("=Q", sum(1 << (number - 1) for number in numbers))
    return kernel.call("signalfd4", -1, mask, 8, os.O_CLOEXEC | os.O_NONBLOCK)


def _wait_for(worker: int, *, watched: tuple[int, ...], told: int) -> int | None:
    """Reap until the worker ends and give its wait status; None when all is to end now.

    That is when a watched process ends, or a signal other than SIGCHLD comes through `told`.
    """
    poll = select.poll()
    for descriptor in (*watched, told):
        poll.register(descriptor, select.POLLIN)
    while True:
        # First look, then wait: the worker may have ended before SIGCHLD was blocked. However many
        # orphans there are to reap, those who are watched are looked at after each.
        try:
            pid, ended = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if pid == worker:
            return ended
        ready = {descriptor for descriptor, _ in poll.poll(0 if pid else None)}
        if ready.intersection(watched):
            return None
        if told in ready:
            # struct signalfd_siginfo, 128 bytes: the number of the signal comes first.
            (number,) = struct.unpack_from("=I", os.read(told, 128))
            if number != signal.SIGCHLD:
                return None
