"""What can be enforced on this machine, found out by doing it.

    choose("required")   the tier to use, or what is missing for it
    examine()            every layer, for `forkrun doctor`

Each costs one or two throwaway processes, some 50 ms and more. So a run does not begin with it: it
tries tier "full" at once, and asks here only when `enter` has refused.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass

from . import bwrap, cgroups
from .fault import SandboxFault
from .spec import Limits, Missing, Spec
from .start import interpreter

LEVELS = ("required", "lsm", "best-effort", "none")
_TIME_S = 30

# name, what is done to find out, what to do about it
_LAYERS: tuple[tuple[str, str, str], ...] = (
    (
        "user",
        "unshare(CLONE_NEWUSER) and an id map",
        "allow user namespaces: sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone",
    ),
    (
        "mount",
        "a read-only tmpfs mounted by the calls of Linux 5.12",
        "Linux 5.12, and no AppArmor restriction on user namespaces, or install bubblewrap",
    ),
    (
        "pid",
        "PID 1 of a new namespace with a proc of its own",
        "in a container: an unmasked /proc (--security-opt systempaths=unconfined)",
    ),
    ("net", "unshare(CLONE_NEWNET)", "as for the user namespace"),
    ("ipc", "unshare(CLONE_NEWIPC)", "as for the user namespace"),
    ("uts", "unshare(CLONE_NEWUTS)", "as for the user namespace"),
    ("cgroup", "unshare(CLONE_NEWCGROUP)", "as for the user namespace"),
    (
        "keyring",
        "a fresh session keyring joined",
        "allow keyctl in the container's seccomp profile",
    ),
    (
        "landlock",
        "a rule set without rules, and a write refused",
        "Linux 5.19 with landlock among the active LSMs (lsm= on the kernel command line)",
    ),
    (
        "seccomp",
        "the filter loaded, and a call refused",
        "a kernel with seccomp, x86_64 or aarch64",
    ),
    (
        "overlay",
        "a write through an overlay with its upper layer in memory",
        "Linux 5.11 and the overlay module; without it workspaces are copied",
    ),
    (
        "pids",
        "a control group with pids.max, else kernel.pid_max of the namespace",
        "delegate a control group (systemd: Delegate=yes), or Linux 6.14",
    ),
    (
        "memory",
        "a control group with a memory bound",
        "delegate a control group (systemd: Delegate=yes); without it a watchdog ends the run",
    ),
    ("bwrap", "bubblewrap started, and a write outside refused", "install bubblewrap"),
)
_NEEDED = ("user", "mount", "pid", "net", "ipc", "uts", "cgroup", "landlock", "seccomp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer as it was found. `remedy` is what usually helps where it does not work."""

    name: str
    works: bool
    version: str
    probed_by: str
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The tier that may be used, or None with what is missing; with a weaker tier, both."""

    tier: str | None
    missing: tuple[Missing, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """Everything that `forkrun doctor` tells. `tier` is the best that works here."""

    tier: str
    required_works: bool
    system: str
    layers: tuple[Layer, ...]


def choose(level: str) -> Choice:
    """Find the best tier that `level` allows here: "required", "lsm", "best-effort" or "none".

    "required" allows full and bwrap, "lsm" that tier too, "best-effort" anything, "none" asks for
    none. The tier is None where nothing that is allowed works; nothing may be run then.
    """
    if level not in LEVELS:
        raise ValueError(f"no such level: {level}")
    if level == "none":
        return Choice(tier="none")
    if sys.platform != "linux":
        reason = f"no confinement on this system: {sys.platform}"
        missing = (Missing(layer="linux", reason=reason),)
        return Choice(tier="none" if level == "best-effort" else None, missing=missing)
    tried = _try("tier:full")
    if tried["tier:full"]["works"]:
        return Choice(tier="full")
    missing = _missing(tried)
    if not _try_bwrap():
        return Choice(tier="bwrap", missing=missing)
    if level == "required":
        return Choice(tier=None, missing=missing)
    if level == "best-effort" and _try("tier:full-")["tier:full-"]["works"]:
        # Namespaces without Landlock: the spec must say `best_effort`, the report does.
        return Choice(tier="full", missing=missing)
    if _try("tier:lsm")["tier:lsm"]["works"]:
        return Choice(tier="lsm", missing=missing)
    return Choice(tier="none" if level == "best-effort" else None, missing=missing)


def examine() -> Examination:
    """Try every layer and every tier."""
    system = " ".join((os.uname().sysname, os.uname().release, os.uname().machine))
    if sys.platform != "linux":
        layer = _layer(_LAYERS[0], {"works": False, "reason": "Linux alone has these layers"})
        return Examination(tier="none", required_works=False, system=system, layers=(layer,))
    names = [name for name, _, _ in _LAYERS if name not in ("memory", "bwrap")]
    found = _try(*names, "tier:full", "tier:lsm")
    found["memory"], grouped = _try_groups()
    if not found["pids"]["works"]:
        found["pids"] = grouped
    reason = _try_bwrap()
    found["bwrap"] = {"works": not reason, "reason": reason, "version": bwrap.find() or ""}
    tiers = ("full", found["tier:full"]), ("bwrap", found["bwrap"]), ("lsm", found["tier:lsm"])
    tier = next((name for name, result in tiers if result["works"]), "none")
    return Examination(
        tier=tier,
        required_works=tier in ("full", "bwrap"),
        system=system,
        layers=tuple(_layer(row, found[row[0]]) for row in _LAYERS),
    )


def as_text(examination: Examination) -> str:
    """Lay out an examination for people."""
    lines = [f"{examination.system}: tier {examination.tier}", ""]
    for layer in examination.layers:
        state = "ok" if layer.works else "missing"
        detail = layer.version if layer.works else layer.reason
        lines.append(f"  {layer.name:<10}{state:<9}{detail}".rstrip())
        if not layer.works:
            lines.append(f"  {'':<19}remedy: {layer.remedy}")
    works = "works" if examination.required_works else "does not work: runs would end with 125"
    return "\n".join([*lines, "", f"--sandbox required {works}", ""])


def _missing(tried: dict[str, dict[str, object]]) -> tuple[Missing, ...]:
    """Name what a refused tier lacks: the layers that fail by themselves, else its own words."""
    found = _try(*_NEEDED)
    remedies = {name: remedy for name, _, remedy in _LAYERS}
    missing = tuple(
        Missing(layer=name, reason=f"{found[name]['reason']}; remedy: {remedies[name]}")
        for name in _NEEDED
        if not found[name]["works"]
    )
    return missing or (Missing(layer="full", reason=str(tried["tier:full"]["reason"])),)


def _try(*names: str) -> dict[str, dict[str, object]]:
    """Run trials in a process of their own; one that cannot be run has failed."""
    ended = subprocess.run(
        interpreter("trial", "main", *names),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_TIME_S,
        check=False,
        env={},
    )
    try:
        told: dict[str, dict[str, object]] = json.loads(ended.stdout)
    except ValueError:
        tail = ended.stderr.decode(errors="replace").strip().splitlines()[-1:]
        reason = f"the trial did not run: {' '.join(tail) or ended.returncode}"
        told = {}
        return {name: {"works": False, "reason": reason} for name in names}
    return told


def _try_bwrap() -> str:
    """Run a trial in bubblewrap; give why it does not work, or nothing."""
    from .confine import own_paths

    with tempfile.TemporaryDirectory(prefix="forkrun-trial-") as made:
        place = os.path.realpath(made)
        workspace, victim = f"{place}/workspace", f"{place}/victim"
        os.mkdir(workspace)
        spec = Spec(tier="bwrap", workspace=workspace, limits=Limits(tmp_bytes=1 << 20))
        inside = interpreter("trial", "enter_and_write", "bwrap", workspace, "/usr/victim")
        own = (*own_paths(), os.path.dirname(os.path.abspath(__file__)))
        try:
            ended = subprocess.run(
                bwrap.bwrap_argv(spec, inside, own=own),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_TIME_S,
                check=False,
                env={},
            )
        except SandboxFault as fault:
            return fault.reason
        except (OSError, subprocess.SubprocessError) as refusal:
            return str(refusal)
        if os.path.exists(victim) or os.path.exists("/usr/victim"):
            return "a write outside the workspace succeeded"
        if ended.stdout.strip() != b"entered":
            tail = ended.stderr.decode(errors="replace").strip().splitlines()[-1:]
            return " ".join(tail) or f"status {ended.returncode}"
    return ""


def _try_groups() -> tuple[dict[str, object], dict[str, object]]:
    """Make a control group and remove it; give what came of memory and of pids."""
    group, missing = cgroups.create(Limits(memory_bytes=1 << 30, processes=64), number=os.getpid())
    reasons = {m.layer: m.reason for m in missing}
    version = "" if group is None else f"control groups, version {group.version}"
    if group is not None:
        cgroups.remove(group)
    memory, pids = (
        {"works": name not in reasons, "reason": reasons.get(name, ""), "version": version}
        for name in ("memory", "pids")
    )
    return memory, pids


def _layer(row: tuple[str, str, str], result: dict[str, object]) -> Layer:
    name, probed_by, remedy = row
    works = bool(result["works"])
    return Layer(
        name=name,
        works=works,
        version=str(result.get("version", "")),
        probed_by=probed_by,
        reason="" if works else str(result.get("reason", "")),
        remedy="" if works else remedy,
    )
