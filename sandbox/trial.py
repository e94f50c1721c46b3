"""Try each layer for real, in a throwaway process: a present file or version proves nothing.

Runs as a program of its own (`start.interpreter`), because a trial cannot be undone; each one in a
fork. Prints one JSON object: {name: {"works": bool, "version": str, "reason": str, "errno": int}}.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable

from . import confine, kernel, landlock, seccomp
from .fault import SandboxFault
from .spec import HOME, Limits, Spec

_TIME_S = 20


def main() -> None:
    """Run the trials that sys.argv names."""
    import signal

    signal.alarm(_TIME_S)
    with tempfile.TemporaryDirectory(prefix="forkrun-trial-") as made:
        place = os.path.realpath(made)
        results = {name: _run(name, place) for name in sys.argv[1:]}
    json.dump(results, sys.stdout)
    sys.stdout.flush()


def enter_and_write() -> None:
    """Enter a sandbox by the spec on the command line and write into its workspace, not outside.

    Prints the word that says that it came so far; for trials of a tier in a process of its own.
    """
    from .enter import enter

    tier, workspace, victim = sys.argv[1:4]
    print(_enter(tier, workspace, victim=victim, enter=enter), flush=True)
    os._exit(0)


def _run(name: str, place: str) -> dict[str, object]:
    result = _in_fork(TRIALS[name], place)
    if os.path.exists(f"{place}/victim"):
        os.unlink(f"{place}/victim")
        return {"works": False, "reason": "a write outside the workspace succeeded", "errno": None}
    return result


def _in_fork(trial: Callable[[str], str], place: str) -> dict[str, object]:
    """Run one trial in a child and give what came of it."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        result: dict[str, object]
        try:
            result = {"works": True, "version": trial(place)}
        except SandboxFault as fault:
            result = {"works": False, "reason": str(fault), "errno": fault.errno}
        except OSError as refusal:
            reason = f"{refusal.filename or 'call'}: {refusal.strerror}"
            result = {"works": False, "reason": reason, "errno": refusal.errno}
        os.write(write, json.dumps(result).encode())
        os._exit(0)
    os.close(write)
    with open(read, "rb") as file:
        told = file.read()
    _, status = os.waitpid(pid, 0)
    if not told:
        return {"works": False, "reason": f"the trial ended early, status {status}", "errno": None}
    found: dict[str, object] = json.loads(told)
    return found


def _try_user(place: str) -> str:
    _own_user_namespace()
    return ""


def _own_user_namespace() -> None:
    uid, gid = os.geteuid(), os.getegid()
    kernel.unshare(kernel.CLONE_NEWUSER)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _with_rights() -> None:
    """Be able to make the other namespaces: as we are, or in a user namespace."""
    if not kernel.capabilities() & 1 << 21:  # CAP_SYS_ADMIN
        _own_user_namespace()


def _namespace(flag: int) -> Callable[[str], str]:
    def trial(place: str) -> str:
        _with_rights()
        kernel.unshare(flag)
        return ""

    return trial


def _try_mount(place: str) -> str:
    """Mount something, which AppArmor refuses after it has let the namespace be made."""
    _with_rights()
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.make_mounts_private()
    tree = kernel.new_filesystem("tmpfs", options={"mode": "755"})
    kernel.set_mount(tree, add=kernel.MOUNT_ATTR_RDONLY)
    kernel.attach(tree, os.open(place, os.O_PATH))
    try:
        os.mkdir(f"{place}/trial")
    except OSError:
        return os.uname().release
    raise SandboxFault("mount", "a read-only mount could be written to")


def _try_pid(place: str) -> str:
    """Become PID 1 with a proc of its own."""
    _with_rights()
    kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWPID)
    kernel.make_mounts_private()
    pid = os.fork()
    if pid == 0:
        try:
            tree = kernel.new_filesystem("proc", options={})
            kernel.attach(tree, os.open(place, os.O_PATH))
            os._exit(0 if os.getpid() == 1 and os.path.exists(f"{place}/1/stat") else 255)
        except OSError as refusal:
            os._exit(refusal.errno or 255)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status != 0:
        raise OSError(status, os.strerror(status), "proc")
    return ""


def _try_overlay(place: str) -> str:
    """Write through an overlay over a directory, its upper layer in memory."""
    _with_rights()
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.make_mounts_private()
    os.makedirs(f"{place}/lower")
    os.makedirs(f"{place}/upper")
    upper = kernel.new_filesystem("tmpfs", options={"mode": "755"})
    kernel.attach(upper, os.open(f"{place}/upper", os.O_PATH))
    for name in ("u", "w"):
        os.mkdir(f"{place}/upper/{name}")
    options: dict[str, str | None] = {
        "lowerdir": f"{place}/lower",
        "upperdir": f"{place}/upper/u",
        "workdir": f"{place}/upper/w",
        "userxattr": None,
    }
    union = kernel.new_filesystem("overlay", options=options)
    os.mkdir("trial", dir_fd=union)
    os.rmdir("trial", dir_fd=union)
    return ""


def _try_keyring(place: str) -> str:
    kernel.call("keyctl", 1, None)
    return ""


def _try_landlock(place: str) -> str:
    """Forbid everything and see that a write fails."""
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    abi = landlock.restrict((), network_allowed=True)
    _must_be_refused(f"{place}/landlock", layer="landlock")
    return f"ABI {abi}"


def _try_seccomp(place: str) -> str:
    """Load the filter and see that a call is refused."""
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    seccomp.restrict(seccomp.assemble(network="none", set_bits=0o4000, host_is_writable=True))
    try:
        kernel.call("unshare", kernel.CLONE_NEWUSER)
    except OSError:
        return os.uname().machine
    raise SandboxFault("seccomp", "a forbidden call succeeded")


def _try_pid_max(place: str) -> str:
    if confine.kernel_version() < confine.PID_MAX_IS_PER_NAMESPACE:
        raise SandboxFault("pids", "kernel.pid_max is the whole system's before Linux 6.14")
    return os.uname().release


def _tier(tier: str) -> Callable[[str], str]:
    def trial(place: str) -> str:
        from .enter import enter

        workspace = f"{place}/{tier}"
        os.mkdir(workspace)
        return _enter(tier, workspace, victim=f"{place}/victim", enter=enter)

    return trial


def _enter(tier: str, workspace: str, *, victim: str, enter: Callable[..., object]) -> str:
    """Enter a sandbox, write inside and try to write outside, which whoever waits looks for."""
    spec = Spec(
        tier=tier.removesuffix("-"),
        best_effort=tier.endswith("-"),
        workspace=workspace,
        home=workspace if tier == "lsm" else HOME,
        limits=Limits(processes=256, tmp_bytes=1 << 20),
    )
    enter(spec, keep_fds=tuple(int(name) for name in os.listdir("/proc/self/fd")))
    for path in (f"{workspace}/written", victim):
        try:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        except OSError as refusal:
            if path != victim:
                raise SandboxFault(tier, f"workspace: {refusal.strerror}") from refusal
    return "entered"


def _must_be_refused(path: str, *, layer: str) -> None:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    except OSError:
        return
    raise SandboxFault(layer, f"a forbidden write succeeded: {path}")


TRIALS: dict[str, Callable[[str], str]] = {
    "user": _try_user,
    "mount": _try_mount,
    "pid": _try_pid,
    "net": _namespace(kernel.CLONE_NEWNET),
    "ipc": _namespace(kernel.CLONE_NEWIPC),
    "uts": _namespace(kernel.CLONE_NEWUTS),
    "cgroup": _namespace(kernel.CLONE_NEWCGROUP),
    "overlay": _try_overlay,
    "keyring": _try_keyring,
    "landlock": _try_landlock,
    "seccomp": _try_seccomp,
    "pids": _try_pid_max,
    "tier:full": _tier("full"),
    "tier:full-": _tier("full-"),
    "tier:lsm": _tier("lsm"),
}
