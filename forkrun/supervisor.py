"""Owns the life of a child: start, watch, terminate, kill, reap. Nothing of it outlives the block.

    async with Worker(...) as worker:      # started; descriptors are leases
        await worker.send(Start(...))
        message = await worker.receive()
    # here the whole tree is dead and reaped, every descriptor closed

How the child comes to be is the starter's matter: by exec (`forkrun.starting`), or as a fork of a
zygote (`forkrun.zygote`). Its exit is awaited through a pidfd, so neither a thread, nor a signal
handler, nor a child watcher of the host is touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, ClassVar

from forkrun.channel import HEADER_BYTES, Decoder, encode, frame_size
from forkrun.errors import ChannelError, ForkrunError
from forkrun.limits import MAX_SUMMARY_BYTES, Limits
from forkrun.protocol import Message, ToParent
from forkrun.result import LimitHit
from forkrun.starting import Child, Exit, close_ends
from forkrun_sandbox.launch import Usage, hold
from forkrun_sandbox.spec import Spec

STDERR_TAIL_BYTES = 16 * 1024
READ_BYTES = 64 * 1024
EOF_GRACE_S = 2.0
EMPTY_S = 10.0
LIMIT_POLL_S = 0.5
# To look takes up to 0.2 ms with a control group: a hundredth of one core, however many there are.
LIMIT_POLL_EACH_S = 0.02
FULL = 0.95
IS_LINUX = sys.platform == "linux"

Starter = Callable[[Spec], Awaitable[Child]]
"""Starts one worker, for a sandbox of this spec."""


class Worker:
    """One child process. An async context manager: leaving it ends and reaps the whole tree.

    `alive` is how many there are in this process.
    """

    alive: ClassVar[int] = 0

    def __init__(self, *, spec: Spec, start: Starter, grace_s: float) -> None:
        self._spec = spec
        self._start = start
        self._grace_s = grace_s
        self._decoder: Decoder[ToParent] | None = None
        self._child: Child
        self._exit: asyncio.Task[Exit]
        self.used: Usage | None = None
        self.stdout = Tail(keep_head=MAX_SUMMARY_BYTES + 1)
        self.stderr = Tail(keep_tail=STDERR_TAIL_BYTES)

    async def __aenter__(self) -> Worker:
        child = self._child = await self._start(self._spec)
        self._pidfd = None
        try:
            self._pidfd = os.pidfd_open(child.pid) if hasattr(os, "pidfd_open") else None
            self._held = hold(child.pid, spec=self._spec, joins=self._spec.tier != "bwrap")
        except BaseException:
            os.kill(child.pid, signal.SIGKILL)
            close_ends(child.channel, child.upper, child.stdout, child.stderr)
            await child.reap()
            if self._pidfd is not None:
                os.close(self._pidfd)
            raise
        Worker.alive += 1
        self._exit = asyncio.ensure_future(_ended(child, self._pidfd))
        self._drains = [Drain(child.stdout, self.stdout), Drain(child.stderr, self.stderr)]
        self._writer: asyncio.StreamWriter | None = None
        try:
            self._reader, self._writer = await asyncio.open_unix_connection(sock=child.channel)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        ending = asyncio.ensure_future(self._end())
        while not ending.done():
            # A second cancellation must not leave the tree behind: the end is bounded by itself.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(ending)
        ending.result()

    @property
    def exit(self) -> Exit | None:
        """How the child ended, once it has."""
        return self._exit.result() if self._exit.done() else None

    @property
    def pid(self) -> int:
        """The process id of the child."""
        return self._child.pid

    @property
    def spec(self) -> Spec:
        """What the child is to enter."""
        return self._spec._replace(groups=self._held.to_join)

    async def send(self, message: Message) -> None:
        """Send one message. Raises ChannelError when the child is gone."""
        assert self._writer is not None
        try:
            self._writer.write(encode(message))
            await self._writer.drain()
        except OSError as error:
            raise ChannelError(f"the child is gone: {error.strerror}") from error

    async def receive(self) -> ToParent:
        """Wait for one message. Raises ChannelError for hostile bytes and at end of file."""
        try:
            size = frame_size(await self._reader.readexactly(HEADER_BYTES))
            body = await self._reader.readexactly(size)
        except asyncio.IncompleteReadError as error:
            raise ChannelError("the child closed the channel") from error
        except OSError as error:
            raise ChannelError(f"the child is gone: {error.strerror}") from error
        if self._decoder is None:  # not before it is needed: the first takes half a millisecond
            self._decoder = Decoder(ToParent)
        return self._decoder.decode(body)

    async def wait(self) -> Exit:
        """Wait until the child has ended by itself and both of its streams are at their end."""
        result = await asyncio.shield(self._exit)
        for drain in self._drains:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(drain.at_end.wait(), EOF_GRACE_S)
        return result

    def receive_upper(self) -> int | None:
        """Give the descriptor of the view's upper directory, if the sandbox has handed one over.

        To be called when the child is ready: by then what could send one has been closed in it.
        """
        self._child.upper.setblocking(False)
        try:
            _, descriptors, _, _ = socket.recv_fds(self._child.upper, 1, 1)
        except BlockingIOError:
            return None
        return descriptors[0] if descriptors else None

    async def alive_while(self, task: asyncio.Future[Any]) -> None:
        """Wait for a task as long as the child lives; raise ChannelError when it ends before."""
        await asyncio.wait({task, self._exit}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ChannelError("the child ended while the model was answering")

    def confined(self) -> tuple[str, ...]:
        """Take note that the child is confined; give what its control group bounds."""
        self._held.find()
        return self._held.bounded

    def unbounded(self) -> tuple[tuple[str, str], ...]:
        """Give what has a limit that no control group holds, and why: (layer, reason)."""
        instead = f"measured every {LIMIT_POLL_S:g} s instead, and the run ended beyond the limit"
        return tuple((each.layer, f"{each.reason}; {instead}") for each in self._held.missing)

    async def until_limit(self, limits: Limits) -> LimitHit:
        """Return when the whole tree has met a bound that it cannot recover from."""
        while True:
            await asyncio.sleep(max(LIMIT_POLL_S, Worker.alive * LIMIT_POLL_EACH_S))
            if hit := self.limit_hit(limits):
                return hit

    def limit_hit(self, limits: Limits) -> LimitHit | None:
        """Say which bound of the whole tree is met now, if one is.

        Memory is the kernel's to hold where there is a control group, and ours where there is none.
        A refused fork ends a run only while the processes stay at their bound, as a fork bomb's do.
        """
        bounded = self._held.bounded
        if "memory" not in bounded or "processes" in self._held.limits_hit():
            used = self.usage()
            if limits.processes and used.processes_now >= limits.processes * FULL:
                value = limits.processes
                return LimitHit(kind="processes", value=value, used=used.processes_now)
            if limits.memory_bytes and (used.memory_bytes or 0) > limits.memory_bytes:
                return LimitHit(
                    kind="memory", value=limits.memory_bytes, used=used.memory_bytes or 0
                )
        return None

    def usage(self) -> Usage:
        """Read what the whole tree uses and has used."""
        if IS_LINUX:
            return self._held.usage()
        from forkrun.elsewhere import measure

        return measure(self.pid)

    def was_out_of_memory(self) -> bool:
        """Say whether the kernel has killed a process because the memory bound was met."""
        return "memory" in self._held.limits_hit()

    def kill(self) -> None:
        """Kill the tree at once; leaving the block reaps it."""
        if not self._exit.done():
            self._held.kill()

    async def _end(self) -> None:
        if not self._exit.done() and self._spec.tier != "full":
            # A guardian ends what it guards; in a namespace of its own, the kernel does.
            self._terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._exit), self._grace_s)
        self.used = self._held.used() if self._exit.done() else self.usage()
        if not IS_LINUX:
            from forkrun.elsewhere import end_descendants

            await asyncio.to_thread(end_descendants, self.pid)
        self.kill()
        if not await asyncio.to_thread(self._held.is_empty, timeout_s=EMPTY_S):
            raise ForkrunError(f"processes of this run could not be ended: {self.pid}")
        await self._exit
        Worker.alive -= 1
        self._held.close()
        for drain in self._drains:
            drain.close()
        self._child.upper.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
        if self._writer is None:
            self._child.channel.close()
            return
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def _terminate(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._pidfd is None:
                os.kill(self.pid, signal.SIGTERM)
            else:
                signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)


async def _ended(child: Child, pidfd: int | None) -> Exit:
    """Wait until a child has ended, then reap it: until then its process id is its own."""
    loop = asyncio.get_running_loop()
    if pidfd is None:
        await loop.run_in_executor(None, os.waitid, os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        return await child.reap()
    await readable(pidfd)
    return await child.reap()


async def readable(fd: int) -> None:
    """Wait until there is something to read from a descriptor; from a pidfd, until the end."""
    loop = asyncio.get_running_loop()
    heard = asyncio.Event()
    loop.add_reader(fd, heard.set)
    try:
        await heard.wait()
    finally:
        loop.remove_reader(fd)


class Tail:
    """What a stream said, bounded: its first `keep_head` bytes and its last `keep_tail` bytes."""

    def __init__(self, *, keep_head: int = 0, keep_tail: int = 0) -> None:
        self._keep_head = keep_head
        self._keep_tail = keep_tail
        self.head = b""
        self.tail = b""
        self.total_bytes = 0

    def add(self, chunk: bytes) -> None:
        """Take the next piece of the stream."""
        self.total_bytes += len(chunk)
        if room := self._keep_head - len(self.head):
            self.head += chunk[:room]
        if self._keep_tail:
            self.tail = (self.tail + chunk)[-self._keep_tail :]


class Drain:
    """Reads a pipe to its end, as fast as it fills, so that no child ever blocks on it."""

    def __init__(self, fd: int, tail: Tail) -> None:
        self._fd = fd
        self._tail = tail
        self.at_end = asyncio.Event()
        os.set_blocking(self._fd, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._read)

    def _read(self) -> None:
        try:
            chunk = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return
        if chunk:
            self._tail.add(chunk)
        else:
            self.close()

    def close(self) -> None:
        """Stop reading and close the pipe."""
        if not self.at_end.is_set():
            self.at_end.set()
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
