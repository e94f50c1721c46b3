"""Confine the calling process for good. For the child alone: nothing here can be undone.

caller ─ fork ─▶ PID 1 ─ fork ─▶ PID 2          tier "full": see `full`
stays,           builds the      drops every right,
mirrors the end  view, reaps     returns from `enter`

caller ─ fork ─▶ worker                         tiers "bwrap", "lsm" and "none"
ends all that    drops what it can,
descends from it returns from `enter`
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable

from . import confine, guard, init, kernel
from .begun import Begun
from .canary import try_forbidden
from .fault import SandboxFault
from .full import begin, end_with, enter_full, plan_of
from .identity import Identity, identity_of
from .spec import Missing, Report, Spec

__all__ = ["Begun", "begin", "enter", "prepare", "prepare_for_many"]


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
    begun: Begun | None = None,
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
    With `begun` (tier "full"), what `begin` has given it, it is the worker itself that calls; its
    PID 1 ends by a status that `guard.wait_status_of_init` reads.
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
        plan = plan_of(
            spec,
            watched=(parent,),
            upper_socket=upper_socket,
            keep_fds=keep_fds,
            meanwhile=meanwhile,
        )
        return enter_full(plan, begun)
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


def _enter_lesser(
    spec: Spec, *, keep_fds: tuple[int, ...], parent: int, missing: list[Missing]
) -> Report:
    """Confine without namespaces of our own, behind a guardian that ends all descendants."""
    identity = identity_of(spec.workspace)
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
    end_with((me, parent))
    os.chdir(spec.workspace)
    enforced = ["user", "mount", "pid", "ipc", "uts", "cgroup"] if spec.tier == "bwrap" else []
    enforced += ["net"] if spec.tier == "bwrap" and spec.network != "host" else []
    enforced += confine.give_up_early(spec, missing=missing)
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
