"""The zygote: imports what every worker needs, then forks one for each request of its owner.

    python -I -S -c '<bootstrap>' … CONTROL_FD,OWNER_FD

It has one thread and never starts another; that is what makes a fork of it safe. It was started by
exec with an environment that was built for workers, so neither its memory nor `/proc` holds a
secret of its owner. It is the subreaper of its forks: what a killed worker leaves behind comes to
it and is killed. When its owner ends, or lets go of the control socket, it ends too.
"""

from __future__ import annotations

import gc
import os
import select
import socket
import sys
from collections.abc import Callable
from importlib import import_module
from typing import NoReturn

import msgspec

from forkrun.protocol import Fork, Forked, FromZygote, Reap, Reaped, ToZygote
from forkrun.worker import be_worker, prepare_tools
from forkrun_sandbox.enter import prepare_for_many
from forkrun_sandbox.guard import adopt_orphans, kill_strays

MAX_MESSAGE_BYTES = 4096
SWEEP_MS = 50
SWEEPS = 40
WARM = ("bash", "reading", "writing", "replacing", "searching", "listing", "ripgrep", "processes")
"""The modules of `forkrun.tools` that a first call would import; the rest follows from them."""


def main(be: Callable[..., NoReturn] = be_worker) -> NoReturn:
    """Serve the owner until it is gone. The last argument names the control socket and the owner."""
    control_fd, owner = map(int, sys.argv[-1].split(","))
    control = socket.socket(fileno=control_fd)
    adopt_orphans()
    prepare_tools()
    for name in WARM:
        import_module(f"forkrun.tools.{name}")
    import_module("forkrun.policy")
    prepare_for_many()
    gc.collect()
    gc.freeze()  # so that forks do not copy the pages of what exists, to mark it as still in use
    _serve(control, owner, be)


def _serve(control: socket.socket, owner: int, be: Callable[..., NoReturn]) -> NoReturn:
    workers: set[int] = set()
    decoder = msgspec.msgpack.Decoder(ToZygote)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(owner, select.POLLIN)
    sweeps = 0
    while True:
        ready = {fd for fd, _ in poll.poll(SWEEP_MS if sweeps else None)}
        if owner in ready:
            break
        if not ready:
            kill_strays(keep=workers)
            sweeps -= 1
            continue
        message, descriptors, _, _ = socket.recv_fds(control, MAX_MESSAGE_BYTES, 4)
        if not message:
            break
        answer: FromZygote
        match decoder.decode(message):
            case Fork(number=number):
                answer = forked = _fork(number, descriptors, control, owner, be)
                workers.add(forked.pid)
            case Reap(number=number, pid=pid):
                answer = reaped = _reap(number, pid)
                workers.discard(pid)
                # What a killed worker leaves behind may come to us a little later.
                sweeps = SWEEPS if os.WIFSIGNALED(reaped.wait_status) else sweeps
                kill_strays(keep=workers)
        control.send(msgspec.msgpack.encode(answer))
    os._exit(0)


def _fork(
    number: int,
    descriptors: list[int],
    control: socket.socket,
    owner: int,
    be: Callable[..., NoReturn],
) -> Forked:
    try:
        pid = os.fork()
    except OSError as refusal:
        pid, reason = 0, refusal.strerror
    else:
        reason = None
        if pid == 0:
            control.close()
            _be_fork(descriptors, owner, be)
    for descriptor in descriptors:
        os.close(descriptor)
    return Forked(number=number, pid=pid, refusal=reason)


def _be_fork(descriptors: list[int], owner: int, be: Callable[..., NoReturn]) -> NoReturn:
    """Be the worker: as a fresh one is when its `main` begins."""
    channel, upper, out, err = descriptors
    os.setsid()
    os.dup2(err, 2)
    os.close(err)
    be(channel_fd=channel, upper_fd=upper, summary_fd=out, parent_pidfd=owner)


def _reap(number: int, pid: int) -> Reaped:
    _, status, used = os.wait4(pid, 0)
    return Reaped(
        number=number,
        wait_status=status,
        cpu_s=used.ru_utime + used.ru_stime,
        max_rss=used.ru_maxrss,
    )
