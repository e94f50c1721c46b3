"""The child: moves its streams aside, enters the sandbox, runs the loop, writes one summary, ends.

    python -I -S -c '<bootstrap>' … CHANNEL_FD,UPPER_FD        a fresh interpreter, or
    be_worker(…)                                               a fork of the zygote

fd 0 is /dev/null. fd 1, the real stdout, is moved to another number before anything else happens,
and 1 becomes stderr: whatever a library, a tool or C code prints is noise on stderr and can become
neither protocol nor summary. The worker imports as little as it can, and ends by `os._exit`.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from forkrun.channel import Channel, decoder_of, encode
from forkrun.errors import ChannelError
from forkrun.loop import run_loop
from forkrun.protocol import Done, Fault, Listed, Ready, Rules, Start, ToChild, ToolLimits
from forkrun_sandbox.enter import Begun, enter, prepare
from forkrun_sandbox.fault import SandboxFault
from forkrun_sandbox.spec import Missing, Report

PARENT_GONE = 113
SANDBOX_REFUSED = 125


def main() -> NoReturn:
    """Be a fresh worker: its descriptors are the last argument (see `starting.worker_argv`)."""
    summary_fd = os.dup(1)
    channel_fd, upper_fd, *parent = map(int, sys.argv[-1].split(","))
    be_worker(
        channel_fd=channel_fd,
        upper_fd=upper_fd,
        summary_fd=summary_fd,
        parent_pidfd=parent[0] if parent else None,
    )


def be_worker(
    *,
    channel_fd: int,
    upper_fd: int,
    summary_fd: int,
    parent_pidfd: int | None = None,
    begun: Begun | None = None,
) -> NoReturn:
    """Be the child, to its end. `parent_pidfd` is that of the process to be outlived by nothing,
    where that is not the parent of this one; `begun` is what has been done of its sandbox."""
    os.dup2(2, 1)
    channel: Channel[ToChild] = Channel(socket.socket(fileno=channel_fd), ToChild)
    try:
        start = _told(channel)
        report = enter(
            start.sandbox,
            keep_fds=(channel.fileno(), summary_fd),
            parent_pidfd=parent_pidfd,
            upper_socket=upper_fd,
            meanwhile=prepare_tools,
            begun=begun,
        )
        channel.send(Ready(report=report))
        _write_all(summary_fd, _work(start, channel).encode())
        channel.send(Done())
    except SandboxFault as error:
        channel.send(Fault(kind="sandbox", message=str(error), layer=error.layer))
        os._exit(SANDBOX_REFUSED)
    except ChannelError as error:
        _end(f"forkrun worker: {error}", PARENT_GONE)
    except Exception as error:  # noqa: BLE001 - the last frame says what happened, whatever it was
        channel.send(Fault(kind="internal", message=f"{type(error).__name__}: {error}"))
        _end(_traceback(), 1)
    os._exit(0)


def prepare_tools() -> None:
    """Import what the work needs, in time that would be spent waiting."""
    import forkrun.tools.toolbox  # noqa: F401

    decoder_of(ToChild)


def rehearse() -> None:
    """Do once what every worker does, so that what is made at the first time is there: for a
    process whose forks will be workers."""
    from forkrun.tools.toolbox import Toolbox

    with Toolbox("/", tools=(), env={}, limits=ToolLimits(tool_timeout_s=1.0)):
        encode(Ready(report=Report(tier="none", enforced=("",), missing=(Missing("", ""),))))


def _told(channel: Channel[ToChild]) -> Start:
    """Wait for the first message; what has to be imported is imported meanwhile."""
    if not channel.has_message():
        prepare()
        prepare_tools()
    start = channel.receive()
    if not isinstance(start, Start):
        raise ChannelError(f"the first message is no Start but a {type(start).__name__}")
    return start


def _work(start: Start, channel: Channel[ToChild]) -> str:
    from forkrun.tools.toolbox import Toolbox

    gc.enable()
    with Toolbox(
        start.workspace,
        tools=start.tools,
        env=start.env,
        limits=start.limits,
        **_rules(start.rules),
        alive=channel.alive,
    ) as tools:
        if start.servers:
            channel.send(Listed(servers=tools.open_servers(start.servers)))
        return run_loop(channel, tools)


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
