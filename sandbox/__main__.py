"""The sandbox alone: `python -m forkrun_sandbox [OPTIONS] -- COMMAND`.

Runs a command confined and exits as a shell would: with its status, 128+n when signal n ended it,
127 when there is no such command, 126 when it cannot be run, 125 when the confinement asked for
cannot be had, and then nothing was run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from typing import Any

from . import bwrap, launch, probe
from .fault import SandboxFault
from .spec import HOME, Limits, Missing, Spec
from .start import interpreter

_KEPT = ("PATH", "TERM", "TZ", "LANG", "LANGUAGE", "COLORTERM", "NO_COLOR")
_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
_GRACE_S = 5.0
_REFUSED = 125


def main(arguments: list[str] | None = None) -> int:
    """Run the command that the arguments name, and give the exit status."""
    options = _parser().parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        _parser().error("no command")
    spec = _spec(options)
    environment = _environment(options.env)
    # First the best tier without asking; only when it is refused, find out what can be had.
    tier = "none" if options.sandbox == "none" else "full"
    try:
        return _run(spec._replace(tier=tier), command, environment, is_verbose=options.verbose)
    except SandboxFault as fault:
        _say(f"tier {tier} refused: {fault}")
    choice = probe.choose(options.sandbox)
    for missing in choice.missing:
        _say(f"missing: {missing.layer}: {missing.reason}")
    if choice.tier is None:
        _say(f"the confinement asked for cannot be had here: --sandbox {options.sandbox}")
        return _REFUSED
    spec = spec._replace(tier=choice.tier, best_effort=options.sandbox == "best-effort")
    try:
        return _run(spec, command, environment, is_verbose=options.verbose)
    except SandboxFault as fault:
        _say(f"tier {choice.tier} refused: {fault}")
        return _REFUSED


def program() -> None:
    """Be the command itself."""
    sys.exit(main())


def child() -> None:
    """Be the child: read the spec from a descriptor, enter, run the command."""
    from .enter import enter

    channel, parent = int(sys.argv[1]), int(sys.argv[2])
    with open(channel, "rb", closefd=False) as file:
        length = int.from_bytes(file.read(4), "big")
        order = json.loads(file.read(length))
    told: dict[str, Any] = {}
    try:
        report = enter(
            _decode(order["spec"]),
            keep_fds=(channel,),
            parent_pidfd=parent if parent >= 0 else None,
        )
        told["report"] = report._asdict()
    except SandboxFault as fault:
        told["fault"] = str(fault)
    except OSError as refusal:
        told["fault"] = f"{refusal.filename}: {refusal.strerror}"
    os.write(channel, json.dumps(told).encode())
    if "fault" in told:
        os._exit(_REFUSED)
    os.close(channel)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    _execute(order["command"], order["environment"])


def _execute(command: list[str], environment: dict[str, str]) -> None:
    try:
        os.execvpe(command[0], command, environment)
    except OSError as refusal:
        os.write(2, f"{command[0]}: {refusal.strerror}\n".encode())
        os._exit(127 if isinstance(refusal, FileNotFoundError) else 126)


def _run(spec: Spec, command: list[str], environment: dict[str, str], *, is_verbose: bool) -> int:
    """Run the command in one tier; raise SandboxFault where that was refused and nothing run."""
    import socket

    with contextlib.ExitStack() as stack:
        spec, environment = _with_places(spec, environment, stack)
        ours, theirs = socket.socketpair()
        stack.enter_context(ours)
        own_pidfd = -1
        if sys.platform == "linux":
            own_pidfd = os.pidfd_open(os.getpid())
            stack.callback(os.close, own_pidfd)
        argv = interpreter("__main__", "child", str(theirs.fileno()), str(own_pidfd))
        identity: dict[str, Any] = {}
        if spec.tier == "bwrap":
            identity = bwrap.popen_ids(spec)
            argv = bwrap.bwrap_argv(spec, argv, own=_own_paths())
        with theirs:
            child = subprocess.Popen(
                argv,
                pass_fds=(theirs.fileno(), *((own_pidfd,) if own_pidfd >= 0 else ())),
                start_new_session=True,
                env=_CHILD_ENVIRONMENT,
                **identity,
            )
        held = stack.enter_context(launch.hold(child.pid, spec=spec))
        order = {"spec": _encoded(spec), "command": command, "environment": environment}
        return _follow(child, held, ours, json.dumps(order).encode(), is_verbose=is_verbose)


_CHILD_ENVIRONMENT = {"LC_ALL": "C.UTF-8"}


def _follow(
    child: subprocess.Popen[bytes],
    held: launch.Held,
    channel: Any,
    order: bytes,
    *,
    is_verbose: bool,
) -> int:
    """Tell the child what to do, wait for its end, pass on what interrupts us."""
    stopped_by: list[int] = []

    def stop(number: int, frame: object) -> None:
        stopped_by.append(number)
        held.kill()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    with contextlib.suppress(BrokenPipeError):
        channel.sendall(len(order).to_bytes(4, "big") + order)
    told = json.loads(_read_all(channel) or b"{}")
    if "fault" in told or not told:
        status = child.wait()
        if stopped_by:
            return 128 + stopped_by[0]
        reason = f"the child ended before it was confined, status {status}"
        raise SandboxFault("enter", told.get("fault", reason))
    if is_verbose:
        _say(_describe(told["report"], held))
    status = child.wait()
    if not held.is_empty(timeout_s=_GRACE_S):
        _say("processes of the sandbox may be left")
    for limit in held.limits_hit():
        _say(f"a limit was met: {limit}")
    if stopped_by:
        return 128 + stopped_by[0]
    return status if status >= 0 else 128 - status


def _read_all(channel: Any) -> bytes:
    """Read until the child has no more to say: it closes the channel before it runs the command."""
    read = b""
    while chunk := channel.recv(65536):
        read += chunk
    return read


def _describe(report: dict[str, Any], held: launch.Held) -> str:
    enforced = ", ".join([*report["enforced"], *held.bounded])
    missing = [Missing(*m) for m in report["missing"]] + list(held.missing)
    lines = [f"tier {report['tier']}: {enforced}"]
    return "\n".join([*lines, *(f"missing: {m.layer}: {m.reason}" for m in missing)])


def _with_places(
    spec: Spec, environment: dict[str, str], stack: contextlib.ExitStack
) -> tuple[Spec, dict[str, str]]:
    """Give the lesser tiers, which have no view of their own, a home and a scratch directory."""
    if spec.tier in ("full", "bwrap"):
        return spec, {"HOME": spec.home, "TMPDIR": "/tmp"} | environment
    place = tempfile.mkdtemp(prefix="forkrun-")
    stack.callback(shutil.rmtree, place, ignore_errors=True)
    spec = spec._replace(home=f"{place}/home", scratch=f"{place}/tmp")
    if spec.workspace_mode == "empty":
        spec = spec._replace(workspace=f"{place}/workspace", workspace_mode="write")
        os.mkdir(spec.workspace)
    for path in (spec.home, f"{place}/tmp"):
        os.mkdir(path, 0o700)
    if os.geteuid() == 0:
        found = os.stat(spec.workspace)
        for path in (place, spec.home, f"{place}/tmp"):
            os.chown(path, found.st_uid, found.st_gid)
    return spec, {"HOME": spec.home, "TMPDIR": f"{place}/tmp"} | environment


def _own_paths() -> tuple[str, ...]:
    from .confine import own_paths

    return (*own_paths(), os.path.dirname(os.path.abspath(__file__)))


def _encoded(spec: Spec) -> dict[str, Any]:
    return {**spec._asdict(), "limits": spec.limits._asdict()}


def _decode(raw: dict[str, Any]) -> Spec:
    raw["limits"] = Limits(**raw["limits"])
    for name in ("readable", "writable", "masked"):
        raw[name] = tuple(raw[name])
    return Spec(**raw)


def _spec(options: argparse.Namespace) -> Spec:
    return Spec(
        tier="full",
        workspace=os.path.realpath(options.workspace),
        workspace_mode=options.workspace_mode,
        readable=tuple(os.path.abspath(path) for path in options.readable),
        writable=tuple(os.path.realpath(path) for path in options.writable),
        masked=tuple(os.path.realpath(path) for path in options.masked),
        root=os.path.realpath(options.root) if options.root else None,
        network=options.network,
        home=HOME,
        limits=Limits(
            memory_bytes=options.memory,
            processes=options.processes,
            cpu_s=options.cpu,
            open_files=options.open_files,
            file_bytes=options.file_size,
            disk_bytes=options.disk,
            tmp_bytes=options.tmp,
        ),
    )


def _environment(extra: list[str]) -> dict[str, str]:
    """Build the command's environment: a few harmless variables, and what is asked for by name."""
    kept = {
        name: value for name, value in os.environ.items() if name in _KEPT or name.startswith("LC_")
    }
    for entry in extra:
        name, is_set, value = entry.partition("=")
        if is_set:
            kept[name] = value
        elif name in os.environ:
            kept[name] = os.environ[name]
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "SHELL": "/bin/sh"} | kept


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m forkrun_sandbox",
        description="Run a command in a sandbox of its own.",
        usage="%(prog)s [options] -- COMMAND",
    )
    add = parser.add_argument
    add("--workspace", default=".", metavar="DIR", help="the directory to work in (default: .)")
    modes = ("write", "read", "empty", "overlay")
    add("--workspace-mode", choices=modes, default="write", help="how it appears (default: write)")
    add("--readable", action="append", default=[], metavar="PATH", help="readable, read-only")
    add("--writable", action="append", default=[], metavar="PATH", help="writable in place")
    add("--masked", action="append", default=[], metavar="PATH", help="hidden")
    add("--root", metavar="DIR", help="a root file system to use instead of this one")
    add("--network", choices=("none", "loopback", "host"), default="loopback")
    add("--sandbox", choices=probe.LEVELS, default="required", help="the least to accept")
    add("--env", action="append", default=[], metavar="NAME[=VALUE]", help="a variable to set")
    add("--memory", type=_size, metavar="SIZE", default=4 * 1024**3)
    add("--processes", type=int, metavar="N", default=512)
    add("--cpu", type=int, metavar="SECONDS", help="of each process")
    add("--open-files", type=int, metavar="N")
    add("--file-size", type=_size, metavar="SIZE")
    add("--disk", type=_size, metavar="SIZE", help="of a workspace in memory")
    add("--tmp", type=_size, metavar="SIZE", default=512 * 1024**2, help="of /tmp")
    add("-v", "--verbose", action="store_true", help="say on stderr what is in force")
    add("command", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    return parser


def _size(text: str) -> int:
    digits = text.rstrip("KMGTkmgt")
    unit = text[len(digits) :].upper()
    if not digits.isdigit() or unit not in _UNITS:
        raise argparse.ArgumentTypeError(f"not a size such as 512M: {text}")
    return int(digits) * _UNITS[unit]


def _say(text: str) -> None:
    for line in text.splitlines():
        print(f"forkrun_sandbox: {line}", file=sys.stderr)


if __name__ == "__main__":
    program()
