"""Workers as forks of a zygote: one process that has imported what each of them needs.

    parent ── control (SOCK_SEQPACKET) ── zygote ── fork ── worker
           ── Fork, with four descriptors ──▶  ◀── Forked: its process id
           ── Reap ──▶                         ◀── Reaped: how it ended, and what it used

The zygote (`forkrun.zygote_main`) is started by exec, isolated, with the environment of the
workers, and holds no secret. It reaps a worker only when it is told to, so that a process id stays
its worker's as long as anybody here may name it. It ends with its owner; where it has died, the
next start makes a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from typing import Any

import msgspec

from forkrun.errors import ForkrunError
from forkrun.protocol import Fork, Forked, FromZygote, Message, Reap, Reaped
from forkrun.starting import UNKNOWN, Child, Exit, close_ends, python_argv
from forkrun.supervisor import STDERR_TAIL_BYTES, Drain, Tail, readable
from forkrun.text import printable
from forkrun_sandbox.spec import Shape

MAX_FORKS = 4
MAX_REAPS = 64
MAX_MESSAGE_BYTES = 4096
END_S = 5.0


def zygote_argv(*fds: int) -> list[str]:
    """Give the command line of a zygote. Its last argument is the numbers of its descriptors: the
    control socket, and that of its owner, by which it sees the owner end whenever that is."""
    return python_argv("zygote_main", ",".join(map(str, fds)))


class Zygote:
    """One zygote, from its start to its end. Made inside the event loop that it is used on."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Start it, and do not wait until it is ready."""
        # The kernel keeps the borders of messages, so each comes whole: unix(7).
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.ExitStack() as always, contextlib.ExitStack() as on_failure:
            always.enter_context(theirs)
            on_failure.callback(self._control.close)
            ourselves = os.pidfd_open(os.getpid())
            always.callback(os.close, ourselves)
            fds = [theirs.fileno(), ourselves]
            self._process = subprocess.Popen(
                zygote_argv(*fds),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=fds,
                env=environ,
                cwd="/",
                start_new_session=True,
            )
            self._pidfd = os.pidfd_open(self._process.pid)
            on_failure.pop_all()
        # Read as it comes: whatever of ours dies with words must not wait for a reader.
        self._said = Tail(keep_tail=STDERR_TAIL_BYTES)
        assert self._process.stderr is not None
        self._drain = Drain(os.dup(self._process.stderr.fileno()), self._said)
        self._control.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._control, self._read)
        self._decoder = msgspec.msgpack.Decoder(FromZygote)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count()
        # Few forks at a time: what has begun goes before what has not, and reaping before both.
        self._forks = asyncio.Semaphore(MAX_FORKS)
        self._reaps = asyncio.Semaphore(MAX_REAPS)
        self.is_gone = False

    @property
    def pid(self) -> int:
        """The process id of the zygote."""
        return self._process.pid

    async def start(self, shape: Shape | None = None) -> Child:
        """Fork a worker, which begins a sandbox of this shape at once, where that can be had.

        Raises ZygoteGone, and ForkrunError where the kernel refuses to fork.
        """
        forking = asyncio.ensure_future(self._fork(shape))
        try:
            return await asyncio.shield(forking)
        except asyncio.CancelledError:
            forking.add_done_callback(_discard)
            raise

    async def close(self) -> None:
        """End the zygote; every worker must have been reaped."""
        self._lose()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(readable(self._pidfd), END_S)
        # By its descriptor: where a host waits for whatever ends, its number may be another's.
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
        self._process.returncode = 0  # waited for
        os.close(self._pidfd)
        self._drain.close()
        if self._process.stderr:
            self._process.stderr.close()

    async def _fork(self, shape: Shape | None) -> Child:
        channel, its_channel = socket.socketpair()
        upper, its_upper = socket.socketpair()
        out, its_out = os.pipe()
        err, its_err = os.pipe()
        try:
            sent = (its_channel.fileno(), its_upper.fileno(), its_out, its_err)
            forked = await self._ask(Fork(number=next(self._numbers), shape=shape), *sent)
        except BaseException:
            close_ends(channel, upper, out, err)
            raise
        finally:
            close_ends(its_channel, its_upper, its_out, its_err)
        pid: int = forked.pid

        async def reap() -> Exit:
            try:
                ended = await self._ask(Reap(number=next(self._numbers), pid=pid))
            except ZygoteGone:
                return UNKNOWN
            return Exit.of(ended.wait_status, cpu_s=ended.cpu_s, max_rss=ended.max_rss)

        return Child(pid, channel, upper, out, err, reap)

    async def _ask(self, message: Fork | Reap, *descriptors: int) -> Any:
        async with self._forks if isinstance(message, Fork) else self._reaps:
            if self.is_gone:
                raise ZygoteGone(self._last_words())
            answer = self._asked[message.number] = self._loop.create_future()
            try:
                socket.send_fds(self._control, [_encoded(message)], descriptors)
            except OSError:
                self._lose()
            return await answer

    def _read(self) -> None:
        """Take what has come; nothing at all means that the zygote has died."""
        while not self.is_gone:
            try:
                message = self._control.recv(MAX_MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                message = b""
            if not message:
                self._lose()
                return
            self._settle(self._decoder.decode(message))

    def _settle(self, answer: Forked | Reaped) -> None:
        asked = self._asked.pop(answer.number)
        if asked.done():
            return
        if isinstance(answer, Forked) and answer.refusal is not None:
            asked.set_exception(ForkrunError(f"no process can be started: {answer.refusal}"))
        else:
            asked.set_result(answer)

    def _lose(self) -> None:
        if self.is_gone:
            return
        self.is_gone = True
        self._loop.remove_reader(self._control)
        self._control.close()
        asked, self._asked = self._asked, {}
        for each in asked.values():
            if not each.done():
                each.set_exception(ZygoteGone(self._last_words()))

    def _last_words(self) -> str:
        words = self._said.tail
        if self._process.stderr and not self._process.stderr.closed:
            fd = self._process.stderr.fileno()
            os.set_blocking(fd, False)
            with contextlib.suppress(OSError):
                words += os.read(fd, 1 << 16)
        text = printable(words.decode(errors="replace")).strip()
        return "the zygote has died" + (f":\n{text}" if text else "")


class ZygoteGone(ForkrunError):
    """The zygote has died."""


def _encoded(message: Message) -> bytes:
    return msgspec.msgpack.encode(message)


def _discard(forking: asyncio.Future[Child]) -> None:
    """End a worker that nobody waits for any more."""
    if forking.cancelled() or forking.exception():
        return
    child = forking.result()
    os.kill(child.pid, signal.SIGKILL)
    close_ends(child.channel, child.upper, child.stdout, child.stderr)
    task = asyncio.ensure_future(child.reap())
    _reaping.add(task)
    task.add_done_callback(_reaping.discard)


_reaping: set[asyncio.Future[Exit]] = set()  # the event loop itself keeps no task alive
