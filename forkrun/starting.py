"""How a worker process comes to be: by exec, as a fresh interpreter.

    Child ── pid, and our ends: channel, upper, stdout, stderr ──▶ Worker, which owns them

Imports next to nothing, so that a command line can start its child before it has read its flags.
The child is started by `subprocess.Popen` (no Python code runs between fork and exec), with a new
session, an environment of its own and exactly six descriptors: 0, 1, 2, two sockets, and one of
this process, by which the child sees it end whenever that is (pidfd_open(2)). The prompt never
stands in its argument list.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from importlib.machinery import PathFinder
from types import TracebackType
from typing import Any, NamedTuple

import forkrun_sandbox
from forkrun.errors import ForkrunError

_BOOTSTRAP = """\
import gc, sys
gc.disable()
sandbox = type(sys)("forkrun_sandbox")
sandbox.__path__ = [sys.argv[1]]
sys.modules["forkrun_sandbox"] = sandbox
sys.path[:0] = sys.argv[2:-1]
sys.modules["typing_extensions"] = None  # else msgspec imports it: 3 ms for nothing
import msgspec
del sys.modules["typing_extensions"]
from forkrun.{module} import main
main()
"""


class Exit(NamedTuple):
    """How a child ended: exit status or signal (the other is None), and what its tree used.

    Both are None where nobody can tell any more.
    """

    status: int | None
    signal: int | None
    cpu_s: float
    peak_memory_bytes: int

    @classmethod
    def of(cls, wait_status: int, *, cpu_s: float, max_rss: int) -> Exit:
        """Read a wait status; `max_rss` is in the unit of getrusage(2)."""
        code = os.waitstatus_to_exitcode(wait_status)
        return cls(
            status=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            cpu_s=cpu_s,
            peak_memory_bytes=max_rss * (1 if sys.platform == "darwin" else 1024),
        )


UNKNOWN = Exit(status=None, signal=None, cpu_s=0.0, peak_memory_bytes=0)


class Child(NamedTuple):
    """A worker that has been started, and our ends of what it holds; whoever has it closes them.

    `stdout` and `stderr` are descriptors of pipes. The process id is its own until `reap` has been
    awaited, which is to be done once, when it has ended.
    """

    pid: int
    channel: socket.socket
    upper: socket.socket
    stdout: int
    stderr: int
    reap: Callable[[], Coroutine[Any, Any, Exit]]


Argv = Callable[..., Sequence[str]]
"""Takes the descriptors of the child's two sockets; gives its command line."""


def worker_argv(*fds: int) -> list[str]:
    """Give the command line of a worker. Its last argument is the numbers of its descriptors: the
    channel; the socket over which trusted code hands back the directory that the writes of a
    private view land in; and the one of its parent."""
    return python_argv("worker", ",".join(map(str, fds)))


def python_argv(module: str, argument: str) -> list[str]:
    """Give what runs `main` of a module of ours: isolated, without site, with explicit entries.

    Raises ForkrunError when the running interpreter does not know its own path (embedded).
    """
    if not sys.executable:
        raise ForkrunError(
            "this Python does not know the path of its interpreter (sys.executable is empty)",
            hint="set sys.executable before the first run",
        )
    flags = ["-I", "-S", "-X", "utf8"]
    code = _BOOTSTRAP.format(module=module)
    return [sys.executable, *flags, "-c", code, *package_folders(), argument]


@functools.cache
def package_folders() -> tuple[str, ...]:
    """Give the folder of `forkrun_sandbox`, then those in which `forkrun` and `msgspec` lie."""
    found = PathFinder.find_spec("msgspec")
    if found is None or found.origin is None:
        raise ForkrunError("the package msgspec is not where this Python looks for packages")
    entries = (_folder(_folder(__file__)), _folder(_folder(found.origin)))
    return (os.path.abspath(forkrun_sandbox.__path__[0]), *dict.fromkeys(entries))


def _folder(path: str) -> str:
    return os.path.dirname(os.path.abspath(path))


def start_fresh(
    environ: Mapping[str, str], *, argv: Argv | None = None, ids: Mapping[str, Any] | None = None
) -> Child:
    """Start a worker as a fresh interpreter; `argv` and `ids` (arguments of Popen) are
    for one that is started by another program.

    Blocks for about a millisecond.
    """
    channel, its_channel = socket.socketpair()
    upper, its_upper = socket.socketpair()
    out, its_out = os.pipe()
    err, its_err = os.pipe()
    ourselves = os.pidfd_open(os.getpid()) if hasattr(os, "pidfd_open") else None
    fds = [its_channel.fileno(), its_upper.fileno(), *([] if ourselves is None else [ourselves])]
    try:
        process = subprocess.Popen(
            (argv or worker_argv)(*fds),
            stdin=subprocess.DEVNULL,
            stdout=its_out,
            stderr=its_err,
            pass_fds=fds,
            env=environ,
            cwd="/",
            start_new_session=True,
            **(ids or {}),
        )
    except BaseException:
        close_ends(channel, upper, out, err)
        raise
    finally:
        close_ends(its_channel, its_upper, its_out, its_err)
        if ourselves is not None:
            os.close(ourselves)

    async def reap() -> Exit:
        try:
            _, status, used = os.wait4(process.pid, 0)
        except ChildProcessError:  # a host that ignores SIGCHLD, or waits for whatever ends
            process.returncode = 0
            return UNKNOWN
        process.returncode = os.waitstatus_to_exitcode(status)
        return Exit.of(status, cpu_s=used.ru_utime + used.ru_stime, max_rss=used.ru_maxrss)

    return Child(process.pid, channel, upper, out, err, reap)


class Early:
    """A fresh worker that was started before it was known what for. Leaving the block ends it,
    unless it was taken."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._child: Child | None = start_fresh(environ)

    def take(self) -> Child | None:
        """Give the worker, once; it is the caller's from then on."""
        child, self._child = self._child, None
        return child

    def __enter__(self) -> Early:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if child := self.take():
            os.kill(child.pid, signal.SIGKILL)
            close_ends(child.channel, child.upper, child.stdout, child.stderr)
            with contextlib.suppress(StopIteration):
                child.reap().send(None)  # that of a fresh worker awaits nothing


def close_ends(channel: socket.socket, upper: socket.socket, out: int, err: int) -> None:
    """Close one side of what connects a worker with its owner."""
    channel.close()
    upper.close()
    os.close(out)
    os.close(err)
