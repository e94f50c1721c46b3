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
from typing import NamedTuple, NoReturn

import msgspec

from forkrun.protocol import Fork, Forked, FromZygote, Reap, Reaped, ToZygote
from forkrun.worker import be_worker, prepare_tools
from forkrun_sandbox.enter import prepare_for_many
from forkrun_sandbox.guard import (
    adopt_orphans,
    fork_init,
    is_privileged,
    kill_strays,
    own_process_namespace,
    wait_status_of_init,
)

MAX_MESSAGE_BYTES = 4096
SWEEP_MS = 50
SWEEPS = 40
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
    prepare_for_many()
    gc.collect()
    gc.freeze()  # so that forks do not copy the pages of what exists, to mark it as still in use
    namespace = own_process_namespace() if is_privileged() else -1
    _serve(_Zygote(control, owner, namespace, be, set(), set()))


class _Zygote(NamedTuple):
    """What the zygote holds. `namespace` is that of its own process ids, -1 where it may make none;
    `inits` are the workers that are PID 1 of one."""

    control: socket.socket
    owner: int
    namespace: int
    be: Callable[..., NoReturn]
    workers: set[int]
    inits: set[int]


def _serve(zygote: _Zygote) -> NoReturn:
    control, owner = zygote.control, zygote.owner
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
            kill_strays(keep=zygote.workers)
            sweeps -= 1
            continue
        message, descriptors, _, _ = socket.recv_fds(control, MAX_MESSAGE_BYTES, 4)
        if not message:
            break
        answer: FromZygote
        match decoder.decode(message):
            case Fork() as asked:
                answer = _fork(zygote, asked, descriptors)
            case Reap() as asked:
                answer, was_killed = _reap(zygote, asked)
                # What a killed worker leaves behind may come to us a little later.
                sweeps = SWEEPS if was_killed else sweeps
                kill_strays(keep=zygote.workers)
        control.send(msgspec.msgpack.encode(answer))
    os._exit(0)


def _fork(zygote: _Zygote, asked: Fork, descriptors: list[int]) -> Forked:
    is_init = asked.is_init and zygote.namespace >= 0
    refusal = None
    try:
        pid = fork_init(zygote.namespace) if is_init else os.fork()
    except OSError as error:
        pid, refusal = 0, error.strerror
    else:
        if pid == 0:
            zygote.control.close()
            _be_fork(zygote, descriptors, is_init=is_init)
        zygote.workers.add(pid)
        if is_init:
            zygote.inits.add(pid)
    for descriptor in descriptors:
        os.close(descriptor)
    return Forked(number=asked.number, pid=pid, refusal=refusal)


def _be_fork(zygote: _Zygote, descriptors: list[int], *, is_init: bool) -> NoReturn:
    """Be the worker: as a fresh one is when its `main` begins."""
    channel, upper, out, err = descriptors
    os.setsid()
    os.dup2(err, 2)
    os.close(err)
    zygote.be(
        channel_fd=channel,
        upper_fd=upper,
        summary_fd=out,
        parent_pidfd=zygote.owner,
        is_init=is_init,
    )


def _reap(zygote: _Zygote, asked: Reap) -> tuple[Reaped, bool]:
    """Reap a worker that has ended, and say whether it was killed itself."""
    _, status, used = os.wait4(asked.pid, 0)
    zygote.workers.discard(asked.pid)
    was_killed = os.WIFSIGNALED(status)
    if asked.pid in zygote.inits:
        zygote.inits.discard(asked.pid)
        status = wait_status_of_init(status)
    reaped = Reaped(
        number=asked.number,
        wait_status=status,
        cpu_s=used.ru_utime + used.ru_stime,
        max_rss=used.ru_maxrss,
    )
    return reaped, was_killed
