"""A server outside of the sandbox as a transport of the SDK: its process, and bounded lines.

The SDK's own reads a line of any length into memory and waits seconds for a process that does not
end. Here a line is bounded, and the process gets a moment after the end of its input, then SIGKILL
for its whole group. It stays unreaped until then, so its number means nobody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from forkrun.supervisor import Drain, Tail

MAX_LINE_BYTES = 8 * 1024 * 1024
GRACE_S = 0.5
KILL_S = 5.0
_POLL_S = 0.01


@contextlib.asynccontextmanager
async def piped(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: str, stderr: Tail
) -> AsyncIterator[tuple[Any, Any]]:
    """Start a program and give the two streams of messages that the SDK wants.

    What it writes to stderr goes to that tail. Raises OSError where it cannot be started.
    """
    import anyio

    process = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(env),
        cwd=cwd,
        start_new_session=True,
    )
    assert process.stderr
    drain = Drain(os.dup(process.stderr.fileno()), stderr)
    process.stderr.close()
    received, reading = anyio.create_memory_object_stream[Any](0)
    writing, to_send = anyio.create_memory_object_stream[Any](0)
    tasks: list[asyncio.Task[None]] = []
    closing: list[asyncio.BaseTransport] = []
    try:
        lines, out = await _opened(process, closing)
        tasks += [
            asyncio.ensure_future(_receive(lines, received, stderr)),
            asyncio.ensure_future(_send(to_send, out)),
        ]
        yield reading, writing
    finally:
        with anyio.CancelScope(shield=True):
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for stream in (received, reading, writing, to_send):
                stream.close()
            for transport in closing:
                transport.close()
            await _end(process)
            drain.close()


async def _opened(
    process: subprocess.Popen[bytes], closing: list[asyncio.BaseTransport]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    reading, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), process.stdout
    )
    closing.append(reading)
    flow = asyncio.streams.FlowControlMixin()
    writing, protocol = await loop.connect_write_pipe(lambda: flow, process.stdin)
    closing.append(writing)
    return lines, asyncio.StreamWriter(writing, protocol, None, loop)


async def _receive(lines: asyncio.StreamReader, received: Any, stderr: Tail) -> None:
    """Pass on each line that is a message; the session ends with the output, or at a giant line."""
    from mcp.shared.message import SessionMessage
    from mcp.types import jsonrpc_message_adapter

    with contextlib.suppress(OSError):
        while True:
            try:
                line = await lines.readuntil(b"\n")
            except asyncio.IncompleteReadError:
                break
            except asyncio.LimitOverrunError:
                stderr.add(b" [a line of more than %d bytes on stdout]" % MAX_LINE_BYTES)
                break
            try:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValueError:
                continue
            await received.send(SessionMessage(message))
    received.close()


async def _send(to_send: Any, out: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        async for each in to_send:
            text = each.message.model_dump_json(by_alias=True, exclude_unset=True)
            out.write(text.encode() + b"\n")
            await out.drain()
    to_send.close()


async def _end(process: subprocess.Popen[bytes]) -> None:
    """Give it a moment after the end of its input, kill its group, reap it."""
    until = time.monotonic() + GRACE_S
    while not _has_ended(process.pid) and time.monotonic() < until:
        await asyncio.sleep(_POLL_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    until = time.monotonic() + KILL_S
    while process.poll() is None and time.monotonic() < until:
        await asyncio.sleep(_POLL_S)


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
