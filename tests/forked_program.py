"""The sandbox alone, as `python -m forkrun_sandbox` is, but its child is forked by the real zygote.

Usage: forked_program.py FOLDERS [OPTIONS] -- COMMAND

    the program, an owner ── control ── zygote_main ── fork ── be_child ── enter, execute COMMAND

FOLDERS are those of `forkrun.starting.package_folders`, with a colon between each two.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
from functools import partial

folders = sys.argv.pop(1)
package = type(sys)("forkrun_sandbox")
package.__path__, entries = [folders.split(":")[0]], folders.split(":")[1:]
sys.modules["forkrun_sandbox"] = package
sys.path[:0] = entries

import msgspec  # noqa: E402

from forkrun.protocol import Fork, FromZygote, Reap  # noqa: E402
from forkrun_sandbox import __main__ as alone  # noqa: E402
from forkrun_sandbox import enter, launch  # noqa: E402
from forkrun_sandbox.fault import SandboxFault  # noqa: E402
from forkrun_sandbox.identity import shape_of  # noqa: E402
from forkrun_sandbox.spec import Shape  # noqa: E402

ZYGOTE = "--be-the-zygote"


def be_child(
    *,
    channel_fd: int,
    upper_fd: int,
    summary_fd: int,
    parent_pidfd: int,
    begun: enter.Begun | None,
) -> None:
    """Be the child of the sandbox alone, in the place of a worker."""
    os.dup2(summary_fd, 1)
    os.close(summary_fd)
    enter.enter = partial(enter.enter, begun=begun)
    sys.argv = ["child", str(channel_fd), str(parent_pidfd)]
    alone.child()


class Forked:
    """A child of a zygote of its own; `pid` and `wait` are those of a Popen."""

    def __init__(self, channel: socket.socket, *, shape: Shape | None) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        owner = os.pidfd_open(os.getpid())
        numbers = f"{theirs.fileno()},{owner}"
        with theirs:
            self._zygote = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, folders, ZYGOTE, numbers],
                pass_fds=(theirs.fileno(), owner),
                env={"LC_ALL": "C.UTF-8"},
                cwd="/",
                start_new_session=True,
            )
        os.close(owner)
        upper, its_upper = socket.socketpair()
        with upper, its_upper:
            forked = self._ask(
                Fork(number=0, shape=shape), channel.fileno(), its_upper.fileno(), 1, 2
            )
        if forked.refusal is not None:
            self.__exit__()
            raise SandboxFault("fork", forked.refusal)
        self.pid = forked.pid

    def __enter__(self) -> "Forked":
        return self

    def __exit__(self, *error: object) -> None:
        self._control.close()
        self._zygote.wait()

    def wait(self) -> int:
        """Have the child reaped when it has ended; give its exit status, or minus its signal."""
        return os.waitstatus_to_exitcode(self._ask(Reap(number=1, pid=self.pid)).wait_status)

    def _ask(self, message: Fork | Reap, *descriptors: int):
        socket.send_fds(self._control, [msgspec.msgpack.encode(message)], descriptors)
        return msgspec.msgpack.decode(self._control.recv(4096), type=FromZygote)


def run(spec, command, environment, *, is_verbose: bool) -> int:
    """Run the command in one tier, as `forkrun_sandbox.__main__` does and as forkrun does: the
    child joins its control groups by itself."""
    with contextlib.ExitStack() as stack:
        spec, environment = alone._with_places(spec, environment, stack)
        ours, theirs = socket.socketpair()
        stack.enter_context(ours)
        shape = shape_of(spec) if spec.tier == "full" and spec.root is None else None
        with theirs:
            child = stack.enter_context(Forked(theirs, shape=shape))
        held = stack.enter_context(launch.hold(child.pid, spec=spec, joins=True))
        spec = spec._replace(groups=held.to_join)
        order = {"spec": alone._encoded(spec), "command": command, "environment": environment}
        return alone._follow(child, held, ours, json.dumps(order).encode(), is_verbose=is_verbose)


if sys.argv[1] == ZYGOTE:
    from forkrun.zygote_main import main

    main(be_child)

alone._run = run
sys.exit(alone.main())
