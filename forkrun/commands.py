"""Runs a command of the user's own, outside of any sandbox: for hooks.

It is waited for by its pidfd, so no thread, signal handler or child watcher of the host is touched;
what it says is kept up to a bound; and whatever it leaves in its session ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO

import msgspec

from forkrun.supervisor import Drain, Tail

MAX_OUTPUT_BYTES = 1024 * 1024
EOF_GRACE_S = 1.0


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended (`status` is negative for a signal), and what it said."""

    status: int
    stdout: str
    stderr: str


class TooMuch(ValueError):
    """A command that said more than is read."""


async def run_command(
    argv: Sequence[str], *, stdin: bytes, cwd: str, environ: Mapping[str, str]
) -> Answer:
    """Run a command to its end. Cancelling kills it and what it has started in its session.

    Raises OSError where it cannot be started, TooMuch.
    """
    import tempfile

    out, err = Tail(keep_head=MAX_OUTPUT_BYTES + 1), Tail(keep_head=MAX_OUTPUT_BYTES)
    with tempfile.TemporaryFile() as given:
        given.write(stdin)
        given.seek(0)
        process = subprocess.Popen(
            argv,
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=dict(environ),
            start_new_session=True,
        )
    drains = [_drained(process.stdout, out), _drained(process.stderr, err)]
    try:
        await _ended(process)
        # What is left of its session would hold the pipes open; its id is ours until it is reaped.
        _kill(process)
        for drain in drains:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(drain.at_end.wait(), EOF_GRACE_S)
    finally:
        _kill(process)
        process.wait()
        for drain in drains:
            drain.close()
    if out.total_bytes > MAX_OUTPUT_BYTES:
        raise TooMuch(f"it said more than {MAX_OUTPUT_BYTES} bytes")
    return Answer(
        status=process.returncode,
        stdout=out.head.decode(errors="replace"),
        stderr=err.head.decode(errors="replace"),
    )


async def _ended(process: subprocess.Popen[bytes]) -> None:
    """Wait until it has ended, and leave it unreaped."""
    loop = asyncio.get_running_loop()
    if not hasattr(os, "pidfd_open"):
        options = os.WEXITED | os.WNOWAIT
        await loop.run_in_executor(None, os.waitid, os.P_PID, process.pid, options)
        return
    pidfd = os.pidfd_open(process.pid)
    ended = asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _drained(pipe: IO[bytes] | None, tail: Tail) -> Drain:
    assert pipe is not None
    with pipe:
        return Drain(os.dup(pipe.fileno()), tail)
