"""The tier "full": PID 1 builds the view and watches, PID 2 drops every right and works.

Two user namespaces, one in the other. The outer one (made by an ordinary user; a process that is
privileged already does without) owns the mount, pid, net, ipc, uts and cgroup namespaces, and PID 1
lives in it. The worker lives in the inner one, so that even a capability regained there would be
worth nothing over the mounts. The order is fixed by what each step still needs:

 1. namespaces, then PID 1, because a pid namespace begins with the next child
 2. the view, which needs the old root and all capabilities
 3. PID 2, its own user namespace, whose id maps PID 1 writes: setuid has made PID 2 undumpable,
    and then its own map files are not its own
 4. PID 1 gives up everything, and only then lets PID 2 go on
 5. PID 2: session, keyring, rlimits, capabilities, descriptors, Landlock, seccomp, a trial

What does not depend on the workspace can be done ahead of time (`begin`): PID 1 waits for the spec
then, which the worker-to-be tells it by a socket.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from . import confine, guard, init, kernel
from .begun import FAULT, MAX_FAULT_BYTES, Begun, packed_fault, tell, told, unpacked_fault
from .canary import try_forbidden
from .fault import SandboxFault
from .identity import Identity, identity_of, shape_of
from .spec import Missing, Report, Shape, Spec

if TYPE_CHECKING:
    import socket

    from .system import Base

_NAMESPACES = {
    "mount": kernel.CLONE_NEWNS,
    "net": kernel.CLONE_NEWNET,
    "ipc": kernel.CLONE_NEWIPC,
    "uts": kernel.CLONE_NEWUTS,
}
_GO = b"g"
_NO_RIGHTS_OF_ROOT = 0b11  # SECBIT_NOROOT and its lock: capabilities(7)


class Plan(NamedTuple):
    """What the processes of one sandbox have in common. `watched` are pidfds, `status` a pipe."""

    spec: Spec
    identity: Identity
    own: tuple[str, ...]
    keep_fds: tuple[int, ...]
    watched: tuple[int, ...]
    status: int
    upper_socket: int
    meanwhile: Callable[[], object]


def plan_of(
    spec: Spec,
    *,
    watched: tuple[int, ...],
    upper_socket: int,
    keep_fds: tuple[int, ...] = (),
    meanwhile: Callable[[], object] = lambda: None,
) -> Plan:
    """Give the plan of a sandbox of this spec, with no pipe for the status. Raises SandboxFault."""
    return Plan(
        spec=spec,
        identity=identity_of(spec.workspace),
        own=confine.own_paths(is_in_foreign_root=spec.root is not None),
        keep_fds=keep_fds,
        watched=watched,
        status=-1,
        upper_socket=upper_socket,
        meanwhile=meanwhile,
    )


def begin(shape: Shape, *, parent_pidfd: int) -> Begun:
    """As PID 1 of a process namespace, do what can be done before the workspace is known.

    Returns in a child, the worker-to-be, which `enter` goes on with; this process becomes its
    PID 1. Raises nothing: what went wrong is `enter`'s to say.
    """
    import socket

    os.setsid()
    try:
        _leave(network_is_own=shape.network != "host", watched=(parent_pidfd,))
    except SandboxFault as fault:
        return Begun(shape, None, fault)
    try:
        ours, theirs = socket.socketpair()
        worker = os.fork()
    except OSError as refusal:
        return Begun(shape, None, SandboxFault("pid", f"fork: {refusal.strerror}"))
    if worker == 0:
        ours.close()
        return Begun(shape, theirs)
    # Nothing of the run's is ours: neither its channel nor what it will write to.
    kernel.close_all_but((0, 1, 2, ours.fileno(), parent_pidfd, *init.loaded()))
    theirs.detach()
    return _be_init_of(worker, shape, ours, watched=(parent_pidfd,))


def _be_init_of(
    worker: int, shape: Shape, link: socket.socket, *, watched: tuple[int, ...]
) -> NoReturn:
    """Be PID 1 of a worker that will tell its spec; where it ends before, end as it did."""
    from . import system

    own = confine.own_paths(is_in_foreign_root=False)
    try:
        base = system.begin(shape, own, keeps_watch=True)
        if (found := told(link)) is not None:
            spec, upper_socket = found
            confine.join_groups(spec.groups)
            plan = plan_of(spec, watched=watched, upper_socket=upper_socket)
            fits = spec.root is None and base.is_current(shape_of(spec), own)
            at = link.fileno()
            _build_and_reap(plan, worker, base if fits else None, ready=at, go=at)
    except (SandboxFault, OSError) as error:
        if isinstance(error, SandboxFault):
            fault = error
        else:
            reason = f"PID 1: {error.filename}: {error.strerror}"
            fault = SandboxFault("pid", reason, errno=error.errno)
        with contextlib.suppress(OSError):
            link.sendall(FAULT + packed_fault(fault))
    guard.run_init(worker, watched=watched, status=-1)


def enter_full(plan: Plan, begun: Begun | None = None) -> Report:
    """Confine this process, or a child of it; return in the worker alone: see `enter.enter`."""
    if begun is not None:
        return _enter_begun(plan, begun)
    is_privileged = guard.is_privileged()
    if not is_privileged:
        confine.become(plan.identity)
    status_read, status_write = os.pipe()
    watched = (*plan.watched, os.pidfd_open(os.getpid()))
    plan = plan._replace(watched=watched, status=status_write)
    if is_privileged:
        _unshare("pid", kernel.CLONE_NEWPID)
    else:
        _unshare("user", kernel.CLONE_NEWUSER | kernel.CLONE_NEWPID)
        _map_self(plan.identity)
    init_pid = os.fork()
    if init_pid != 0:
        os.close(status_write)
        guard.reset_signals()
        guard.stay(init_pid, status=status_read)
    return _be_init(plan)


def _enter_begun(plan: Plan, begun: Begun) -> Report:
    """Be the worker of a sandbox that was begun."""
    if begun.fault is not None or begun.link is None:
        raise begun.fault or SandboxFault("pid", "the sandbox was not begun")
    if (begun.shape.network == "host") != (plan.spec.network == "host"):
        raise SandboxFault("net", "the sandbox was begun with another network")
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # PID 1 may be gone: then its fault is read
    tell(begun.link, plan.spec, upper_socket=plan.upper_socket)
    return _be_worker(plan, ready=begun.link.fileno(), go=begun.link.fileno())


def _unshare(layer: str, flags: int) -> None:
    try:
        kernel.unshare(flags)
    except OSError as refusal:
        raise SandboxFault(layer, f"unshare: {refusal.strerror}", errno=refusal.errno) from refusal


def _map_self(identity: Identity) -> None:
    """Map this process's own ids and no other into the user namespace that it has just made."""
    try:
        _write_maps(identity, directory=os.open("/proc/self", os.O_PATH | os.O_DIRECTORY))
    except OSError as refusal:
        raise SandboxFault("user", f"id map: {refusal.strerror}", errno=refusal.errno) from refusal


def _write_maps(identity: Identity, *, directory: int) -> None:
    """Map `identity` onto itself. Without setgroups, a group map needs no privilege."""
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{identity.uid} {identity.uid} 1"),
        ("gid_map", f"{identity.gid} {identity.gid} 1"),
    ):
        file = os.open(name, os.O_WRONLY, dir_fd=directory)
        try:
            os.write(file, text.encode())
        finally:
            os.close(file)
    os.close(directory)


def _leave(*, network_is_own: bool, watched: tuple[int, ...]) -> None:
    """As PID 1, leave the host's namespaces, and never outlive whom we are for."""
    guard.reset_signals()
    kernel.prctl(kernel.PR_SET_PDEATHSIG, 9)
    end_with(watched)
    for layer, flag in _NAMESPACES.items():
        if layer != "net" or network_is_own:
            _unshare(layer, flag)
    kernel.call("sethostname", b"sandbox", 7)
    if network_is_own:
        confine.bring_up_loopback()


def _be_init(plan: Plan) -> Report:
    """Be PID 1: fork the worker, build the view, give up everything, reap. PID 2 returns.

    PID 2 is forked before the view is built and prepares itself meanwhile: pivot_root(2) moves the
    root of every process of the namespace that still had the old one.
    """
    _leave(network_is_own=plan.spec.network != "host", watched=plan.watched)
    ready_read, ready_write = os.pipe()
    go_read, go_write = os.pipe()
    worker = os.fork()
    if worker != 0:
        os.close(ready_write)
        _build_and_reap(plan, worker, None, ready=ready_read, go=go_write)
    os.close(go_write)
    return _be_worker(plan, ready=ready_write, go=go_read)


def _build_and_reap(plan: Plan, worker: int, base: Base | None, *, ready: int, go: int) -> NoReturn:
    """Build the view, map the worker's ids, give up everything, let it go on, reap."""
    from . import system, view

    spec, identity, watched = plan.spec, plan.identity, plan.watched
    if base is None:
        base = system.begin(shape_of(spec), plan.own, root=spec.root)
    built = view.finish(base, spec, own=plan.own, upper_socket=plan.upper_socket)
    pid_max_set = confine.cap_process_ids(built.proc, spec.limits)
    # The worker prepares itself in the old root: it must be done before that is gone.
    if os.read(ready, 1) != _GO:
        guard.run_init(worker, watched=watched, status=plan.status)
    view.become_root(built)
    try:
        at = os.O_PATH | os.O_DIRECTORY
        _write_maps(identity, directory=os.open(str(worker), at, dir_fd=built.proc))
    except OSError as refusal:
        raise SandboxFault("user", f"id map: {refusal.strerror}", errno=refusal.errno) from refusal
    _forget_groups(identity)
    # Nobody gains a right by what PID 1 runs from here on, root twice over: this needs CAP_SETPCAP.
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    with contextlib.suppress(PermissionError):
        kernel.prctl(kernel.PR_SET_SECUREBITS, _NO_RIGHTS_OF_ROOT)
    confine.become(identity)
    kernel.drop_capabilities()
    # setuid has cleared the death signal and may have changed what may be read: prctl(2).
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, 9)
    end_with(watched)
    os.write(go, b"p" if pid_max_set else b"n")
    guard.run_init(worker, watched=watched, status=plan.status)


def _forget_groups(identity: Identity) -> None:
    """Leave root's further groups, where this is root and will be somebody else."""
    if os.geteuid() == 0 and identity.uid != 0:
        os.setgroups(())


def end_with(watched: tuple[int, ...]) -> None:
    """End here if a watched process has ended already: the death signal comes only once."""
    # Not select(2), which knows no descriptor above 1023: ours have the numbers of the parent's.
    poll = select.poll()
    for descriptor in watched:
        poll.register(descriptor, select.POLLIN)
    if poll.poll(0):
        os._exit(137)


def _be_worker(plan: Plan, *, ready: int, go: int) -> Report:
    """Be PID 2: prepare while the view is built, then give up every right, in the order that works.

    Between the new user namespace and the id map this process is nobody to the file system.
    """
    spec = plan.spec
    os.setsid()
    _unshare("cgroup", kernel.CLONE_NEWCGROUP)  # of the control groups that it has joined
    _forget_groups(plan.identity)
    plan.meanwhile()
    call_filter = confine.call_filter(spec, plan.identity)
    _unshare("user", kernel.CLONE_NEWUSER)
    confine.forbid_user_namespaces()
    missing: list[Missing] = []
    enforced = ["user", *(name for name in _NAMESPACES if name != "net"), "cgroup", "pid"]
    enforced += ["net"] if spec.network != "host" else []
    enforced += confine.give_up_early(spec, missing=missing)
    with contextlib.suppress(BrokenPipeError):
        os.write(ready, _GO)
    heard = os.read(go, 1)
    if heard == FAULT:
        raise unpacked_fault(os.read(go, MAX_FAULT_BYTES))
    if not heard:
        os._exit(137)
    if spec.root is not None:
        confine.relocate_imports(plan.own)
    confine.become(plan.identity)
    os.chdir(spec.workspace)
    enforced += confine.give_up(
        spec,
        identity=plan.identity,
        call_filter=call_filter,
        keep_fds=plan.keep_fds,
        pid_max_set=heard == b"p",
        missing=missing,
    )
    try_forbidden(spec)
    return Report(tier="full", enforced=tuple(enforced), missing=tuple(missing))
