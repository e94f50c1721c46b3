"""Confine the calling process for good. For the child alone: nothing here can be undone.

    caller ─ fork ─▶ PID 1 ─ fork ─▶ PID 2          tier "full"
    stays,           builds the      drops every right,
    mirrors the end  view, reaps     returns from `enter`

Two user namespaces, one in the other. The outer one (made by an ordinary user; a process that is
privileged already does without) owns the mount, pid, net, ipc, uts and cgroup namespaces, and PID 1
lives in it. The worker lives in the inner one, so that even a capability regained there would be
worth nothing over the mounts. The order is fixed by what each step still needs:

 1. a descriptor of the parent, before anything can make it unfindable
 2. namespaces, then PID 1, because a pid namespace begins with the next child
 3. the view, which needs the old root and all capabilities
 4. PID 2, its own user namespace, whose id maps PID 1 writes: setuid has made PID 2 undumpable,
    and then its own map files are not its own
 5. PID 1 gives up everything, and only then lets PID 2 go on
 6. PID 2: session, keyring, rlimits, capabilities, descriptors, Landlock, seccomp, a trial
"""

from __future__ import annotations

import gc
import os
import select
import sys
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from . import confine, guard, init, kernel
from .canary import try_forbidden
from .confine import Identity
from .fault import SandboxFault
from .spec import Missing, Report, Spec

_NAMESPACES = {
    "mount": kernel.CLONE_NEWNS,
    "net": kernel.CLONE_NEWNET,
    "ipc": kernel.CLONE_NEWIPC,
    "uts": kernel.CLONE_NEWUTS,
    "cgroup": kernel.CLONE_NEWCGROUP,
}
_GO = b"g"
_NO_RIGHTS_OF_ROOT = 0b11  # SECBIT_NOROOT and its lock: capabilities(7)


def prepare() -> None:
    """Import ahead of time what `enter` needs, where one has to wait anyhow."""
    from . import view  # noqa: F401


def prepare_for_many() -> None:
    """Work out ahead of time what is the same for all forks of this process: for a zygote, which
    has imported everything that its forks will need."""
    prepare()
    init.load()
    confine.own_paths(is_in_foreign_root=False)
    usual = Spec(tier="full", workspace="/", workspace_mode="overlay")
    for gid in (0, 1):
        confine.call_filter(usual, Identity(gid, gid))


def enter(
    spec: Spec,
    *,
    keep_fds: tuple[int, ...] = (),
    parent_pidfd: int | None = None,
    upper_socket: int = -1,
    meanwhile: Callable[[], object] = lambda: None,
    is_init: bool = False,
) -> Report:
    """Confine this process as `spec` says and give what is in force; return in the worker alone.

    The caller must be single-threaded and have a parent that is to be outlived by nothing;
    `parent_pidfd` is a descriptor of that parent, inherited from it: without one a parent that dies
    before this call is not missed, and in tier "bwrap" the wrong one is watched. Descriptors
    0, 1, 2 and `keep_fds` survive, no other. Over `upper_socket` goes, for an overlay, one
    descriptor of the directory that writes land in (SCM_RIGHTS, one byte of data). `meanwhile` is
    called once in the worker-to-be, not yet confined, while another process builds its view: the
    place for imports, and for nothing that touches what is not ours.

    The process that called stays behind and ends as the worker ends: by the same status or signal.
    With `is_init` (tier "full") it is PID 1 of a process namespace already, as `guard.fork_init`
    makes it, and ends by a status that `guard.wait_status_of_init` reads.
    Raises SandboxFault, possibly in a process forked here; whoever catches it must report it and
    end with os._exit.
    """
    confine.join_groups(spec.groups)
    # What exists now is never collected: children do not copy pages to count references in them.
    gc.freeze()
    if sys.platform != "linux":
        return _enter_elsewhere(spec, meanwhile)
    parent = guard.watch_parent() if parent_pidfd is None else parent_pidfd
    sys.stdout.flush()
    sys.stderr.flush()
    if spec.tier == "full":
        return _enter_full(
            spec,
            keep_fds=keep_fds,
            parent=parent,
            upper_socket=upper_socket,
            meanwhile=meanwhile,
            is_init=is_init,
        )
    meanwhile()
    if spec.tier not in ("bwrap", "lsm", "none"):
        raise SandboxFault("spec", f"no such tier: {spec.tier}")
    missing = _unavailable(spec)
    if spec.tier == "bwrap" and parent_pidfd is None:
        reason = "no descriptor of it: in here the parent is bubblewrap, whose end is watched"
        missing.append(Missing(layer="parent", reason=reason))
    return _enter_lesser(spec, keep_fds=keep_fds, parent=parent, missing=missing)


def _enter_elsewhere(spec: Spec, meanwhile: Callable[[], object]) -> Report:
    """On a system that is not Linux, accept that there is no confinement, if that was asked for."""
    reason = f"no confinement on this system: {sys.platform}"
    if spec.tier != "none":
        raise SandboxFault("linux", reason)
    meanwhile()
    os.chdir(spec.workspace)
    return Report(tier="none", missing=(Missing(layer="linux", reason=reason),))


class _Plan(NamedTuple):
    """What the processes of the full tier have in common. `watched` are pidfds, `status` a pipe."""

    spec: Spec
    identity: Identity
    own: tuple[str, ...]
    keep_fds: tuple[int, ...]
    watched: tuple[int, ...]
    status: int
    upper_socket: int
    meanwhile: Callable[[], object]


def _enter_full(
    spec: Spec,
    *,
    keep_fds: tuple[int, ...],
    parent: int,
    upper_socket: int,
    meanwhile: Callable[[], object],
    is_init: bool,
) -> Report:
    """Be the caller: make the pid namespace, fork PID 1, stay behind; or be PID 1 already."""
    identity = confine.identity_of(spec.workspace)
    plan = _Plan(
        spec=spec,
        identity=identity,
        own=confine.own_paths(is_in_foreign_root=spec.root is not None),
        keep_fds=keep_fds,
        watched=(parent,),
        status=-1,
        upper_socket=upper_socket,
        meanwhile=meanwhile,
    )
    if is_init:
        return _be_init(plan)
    is_privileged = guard.is_privileged()
    if not is_privileged:
        confine.become(identity)
    status_read, status_write = os.pipe()
    plan = plan._replace(watched=(parent, os.pidfd_open(os.getpid())), status=status_write)
    if is_privileged:
        _unshare("pid", kernel.CLONE_NEWPID)
    else:
        _unshare("user", kernel.CLONE_NEWUSER | kernel.CLONE_NEWPID)
        _map_self(identity)
    init = os.fork()
    if init != 0:
        os.close(status_write)
        guard.reset_signals()
        guard.stay(init, status=status_read)
    return _be_init(plan)


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


def _be_init(plan: _Plan) -> Report:
    """Be PID 1: build the view, fork the worker, give up everything, reap. PID 2 returns.

    PID 2 is forked before the view is built and prepares itself meanwhile: pivot_root(2) moves the
    root of every process of the namespace that still had the old one.
    """
    spec, identity, watched = plan.spec, plan.identity, plan.watched
    guard.reset_signals()
    kernel.prctl(kernel.PR_SET_PDEATHSIG, 9)
    _end_with(watched)
    for layer, flag in _NAMESPACES.items():
        if layer != "net" or spec.network != "host":
            _unshare(layer, flag)
    if os.geteuid() == 0 and identity.uid != 0:
        os.setgroups(())
    ready_read, ready_write = os.pipe()
    go_read, go_write = os.pipe()
    worker = os.fork()
    if worker != 0:
        os.close(ready_write)
        _build_and_reap(plan, worker, ready=ready_read, go=go_write)
    os.close(go_write)
    return _be_worker(plan, ready=ready_write, go=go_read)


def _build_and_reap(plan: _Plan, worker: int, *, ready: int, go: int) -> NoReturn:
    """Build the view, map the worker's ids, give up everything, let it go on, reap."""
    from . import view

    spec, identity, watched = plan.spec, plan.identity, plan.watched
    kernel.call("sethostname", b"sandbox", 7)
    if spec.network == "loopback":
        confine.bring_up_loopback()
    built = view.build(
        spec,
        uid=identity.uid,
        gid=identity.gid,
        own=plan.own,
        upper_socket=plan.upper_socket,
    )
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
    # Not even root gains a right by what PID 1 runs from here on.
    kernel.prctl(kernel.PR_SET_SECUREBITS, _NO_RIGHTS_OF_ROOT)
    confine.become(identity)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.drop_capabilities()
    # setuid has cleared the death signal and may have changed what may be read: prctl(2).
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, 9)
    _end_with(watched)
    go_byte = b"p" if pid_max_set else b"n"
    guard.run_init(worker, watched=watched, status=plan.status, go=go, go_byte=go_byte)


def _end_with(watched: tuple[int, ...]) -> None:
    """End here if a watched process has ended already: the death signal comes only once."""
    # Not select(2), which knows no descriptor above 1023: ours have the numbers of the parent's.
    poll = select.poll()
    for descriptor in watched:
        poll.register(descriptor, select.POLLIN)
    if poll.poll(0):
        os._exit(137)


def _be_worker(plan: _Plan, *, ready: int, go: int) -> Report:
    """Be PID 2: prepare while the view is built, then give up every right, in the order that works.

    Between the new user namespace and the id map this process is nobody to the file system.
    """
    spec = plan.spec
    os.setsid()
    plan.meanwhile()
    call_filter = confine.call_filter(spec, plan.identity)
    _unshare("user", kernel.CLONE_NEWUSER)
    confine.forbid_user_namespaces()
    os.write(ready, _GO)
    told = os.read(go, 1)
    if not told:
        os._exit(137)
    if spec.root is not None:
        confine.relocate_imports(plan.own)
    confine.become(plan.identity)
    os.chdir(spec.workspace)
    missing: list[Missing] = []
    enforced = ["user", *(name for name in _NAMESPACES if name != "net"), "pid"]
    enforced += ["net"] if spec.network != "host" else []
    enforced += confine.give_up(
        spec,
        identity=plan.identity,
        call_filter=call_filter,
        keep_fds=plan.keep_fds,
        pid_max_set=told == b"p",
        missing=missing,
    )
    try_forbidden(spec)
    return Report(tier="full", enforced=tuple(enforced), missing=tuple(missing))


def _enter_lesser(
    spec: Spec, *, keep_fds: tuple[int, ...], parent: int, missing: list[Missing]
) -> Report:
    """Confine without namespaces of our own, behind a guardian that ends all descendants."""
    identity = confine.identity_of(spec.workspace)
    me = os.pidfd_open(os.getpid())
    guard.adopt_orphans()
    worker = os.fork()
    if worker:
        guard.reset_signals()
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        guard.guard_descendants(worker, watched=(parent,))
    guard.reset_signals()
    os.setsid()
    if os.geteuid() == 0 and identity.uid != 0:
        os.setgroups(())
    confine.become(identity)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, 9)
    _end_with((me, parent))
    os.chdir(spec.workspace)
    enforced = ["user", "mount", "pid", "ipc", "uts", "cgroup"] if spec.tier == "bwrap" else []
    enforced += ["net"] if spec.tier == "bwrap" and spec.network != "host" else []
    enforced += confine.give_up(
        spec,
        identity=identity,
        call_filter=confine.call_filter(spec, identity),
        keep_fds=keep_fds,
        pid_max_set=False,
        missing=missing,
    )
    try_forbidden(spec)
    return Report(tier=spec.tier, enforced=tuple(enforced), missing=tuple(missing))


def _unavailable(spec: Spec) -> list[Missing]:
    """Name what a lesser tier cannot do; refuse what it must not leave undone."""
    if spec.root is not None or spec.workspace_mode == "overlay":
        raise SandboxFault("mount", f"neither overlay nor another root in tier {spec.tier}")
    if spec.tier == "bwrap":
        return []
    missing = [
        Missing(layer=name, reason=f"tier {spec.tier} has no namespaces")
        for name in ("user", "mount", "pid", "net", "ipc", "uts", "cgroup")
    ]
    if spec.network == "loopback" and spec.tier == "lsm":
        missing.append(Missing(layer="loopback", reason="no network of its own: there is none"))
    if spec.masked:
        missing.append(Missing(layer="masked", reason="hiding files needs a view of its own"))
    return missing
