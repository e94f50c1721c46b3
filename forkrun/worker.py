"""The child: moves its streams aside, enters the sandbox, runs the loop, writes one summary, ends.

    python -I -S -c '<bootstrap>' … CHANNEL_FD,UPPER_FD        started by the supervisor

fd 0 is /dev/null. fd 1, the real stdout, is moved to another number before anything else happens,
and 1 becomes stderr: whatever a library, a tool or C code prints is noise on stderr and can become
neither protocol nor summary. The worker imports as little as it can, and ends by `os._exit`.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from forkrun.channel import Channel
from forkrun.errors import ChannelError
from forkrun.loop import run_loop
from forkrun.protocol import Done, Fault, Ready, Rules, Start, ToChild
from forkrun.tools.toolbox import Toolbox
from forkrun_sandbox.enter import enter
from forkrun_sandbox.fault import SandboxFault

PARENT_GONE = 113
SANDBOX_REFUSED = 125


def main() -> NoReturn:
    """Be the child: the descriptors of its two sockets are the last argument."""
    summary_fd = _move_stdout()
    channel_fd, upper_fd = map(int, sys.argv[-1].split(","))
    channel: Channel[ToChild] = Channel(socket.socket(fileno=channel_fd), ToChild)
    try:
        _serve(channel, summary_fd, upper_fd)
    except ChannelError as error:
        _end(f"forkrun worker: {error}", PARENT_GONE)
    except Exception as error:  # noqa: BLE001 - the last frame says what happened, whatever it was
        channel.send(Fault(kind="internal", message=f"{type(error).__name__}: {error}"))
        _end(_traceback(), 1)
    os._exit(0)


def _move_stdout() -> int:
    summary_fd = os.dup(1)
    os.dup2(2, 1)
    return summary_fd


def _serve(channel: Channel[ToChild], summary_fd: int, upper_fd: int) -> None:
    start = channel.receive()
    if not isinstance(start, Start):
        raise ChannelError(f"the first message is no Start but a {type(start).__name__}")
    try:
        report = enter(
            start.sandbox, keep_fds=(channel.fileno(), summary_fd), upper_socket=upper_fd
        )
    except SandboxFault as error:
        channel.send(Fault(kind="sandbox", message=str(error), layer=error.layer))
        os._exit(SANDBOX_REFUSED)
    channel.send(Ready(report=report))
    with Toolbox(
        start.workspace,
        tools=start.tools,
        env=start.env,
        limits=start.limits,
        **_rules(start.rules),
        alive=channel.alive,
    ) as tools:
        summary = run_loop(channel, tools)
    _write_all(summary_fd, summary.encode())
    channel.send(Done())


def _rules(layers: tuple[Rules, ...]) -> Mapping[str, Any]:
    """Give what a toolbox needs of the rules; without any, nothing is imported for them."""
    if not any(rules.allow or rules.deny or rules.ask for rules in layers):
        return {}
    from forkrun.policy import Policy

    policy = Policy.of(layers)
    policy.prepare()
    return {"judge": policy.judge, "environment_for": policy.environment_for}


def _write_all(fd: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


def _traceback() -> str:
    import traceback

    return traceback.format_exc()


def _end(message: str, status: int) -> NoReturn:
    _write_all(2, message.encode(errors="replace") + b"\n")
    os._exit(status)
