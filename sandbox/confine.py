"""What a process gives up, step by step; each step on its own is small. Used by `enter` alone."""

from __future__ import annotations

import functools
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable

from . import kernel, landlock, seccomp
from .fault import SandboxFault
from .identity import Identity
from .spec import Limits, Missing, Spec

_JOIN_SESSION_KEYRING = 1
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
_AF_INET, _SOCK_DGRAM_CLOEXEC = 2, 2 | os.O_CLOEXEC
_S_ISUID, _S_ISGID = 0o4000, 0o2000
# Process ids below this are not handed out again once they have run out: pid.c, RESERVED_PIDS.
_RESERVED_PIDS = 300
PID_MAX_IS_PER_NAMESPACE = (6, 14)

READABLE_SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix", "/gnu"),
    *("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d"),
    *("/etc/localtime", "/etc/nsswitch.conf", "/etc/passwd", "/etc/group", "/etc/hosts"),
    *("/etc/resolv.conf", "/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/ca-certificates"),
    *("/etc/pki/tls/certs", "/etc/pki/ca-trust", "/etc/mime.types", "/etc/services"),
    *("/etc/protocols", "/etc/os-release", "/etc/fonts", "/etc/perl", "/etc/terminfo"),
    *("/proc", "/sys/devices/system/cpu", "/dev/pts"),
)
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts")


def join_groups(directories: tuple[str, ...]) -> None:
    """Put this process into control groups of version 1, as the one thread that it has.

    A thread that moves itself waits for nobody. To move another process, the kernel first waits
    until none forks or ends anywhere, which takes some 10 ms: cgroup_threadgroup_rwsem. Where it
    cannot be done, the parent finds that out by looking: `launch.Held.bounded`.
    """
    for directory in directories:
        try:
            file = os.open(f"{directory}/tasks", os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            os.write(file, b"0")
        except OSError:
            return
        finally:
            os.close(file)


@functools.cache
def own_paths(*, is_in_foreign_root: bool = False) -> tuple[str, ...]:
    """Give what this interpreter needs to go on: its installation and the packages it has loaded.

    In a root that is not the host's, the standard library alone instead of the whole installation.
    """
    library = os.path.dirname(os.path.abspath(os.__file__))
    prefixes = {sys.base_prefix, sys.base_exec_prefix, sys.prefix, sys.exec_prefix}
    # Without `site` an interpreter does not know of the virtual environment that it is started by.
    environment = os.path.dirname(os.path.dirname(sys.executable))
    if os.path.exists(f"{environment}/pyvenv.cfg"):
        prefixes.add(environment)
    found = {library} if is_in_foreign_root else {p for p in prefixes if p not in ("", "/")}
    below = tuple(path.rstrip("/") + "/" for path in found)
    for name, module in tuple(sys.modules.items()):
        if "." in name or name == "__main__":
            continue
        where = getattr(module, "__path__", None) or [getattr(module, "__file__", None)]
        for path in where:
            if isinstance(path, str) and path.startswith("/") and not path.startswith(below):
                found.add(path)
    return tuple(sorted(found))


def place_in_foreign_root(number: int) -> str:
    """Give where the `number`-th of our own paths appears in a root that is not the host's.

    Not at its real place: that would hide the programs that the root has there itself.
    """
    return f"/run/forkrun/{number}"


def relocate_imports(own: tuple[str, ...]) -> None:
    """Look for modules that are not loaded yet where a foreign root has our paths."""
    places = {path: place_in_foreign_root(number) for number, path in enumerate(own)}

    def moved(path: str) -> str:
        for old, new in places.items():
            if path == old or path.startswith(old + "/"):
                return new + path[len(old) :]
        return path

    sys.path[:] = [moved(path) for path in sys.path]
    sys.path_importer_cache.clear()
    for module in tuple(sys.modules.values()):
        path = getattr(module, "__path__", None)
        if isinstance(path, list):
            path[:] = [moved(entry) for entry in path]


def become(identity: Identity) -> None:
    """Take on the ids of `identity`, for good; setresuid(2)."""
    try:
        if os.getresgid() != (identity.gid,) * 3:
            os.setresgid(identity.gid, identity.gid, identity.gid)
        if os.getresuid() != (identity.uid,) * 3:
            os.setresuid(identity.uid, identity.uid, identity.uid)
        # A change of ids makes a process undumpable, and with that its own /proc files root's.
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
    except OSError as refusal:
        raise SandboxFault("user", f"setresuid: {refusal.strerror}", errno=refusal.errno) from None


def bring_up_loopback() -> None:
    """Switch on `lo` of this network namespace; netdevice(7)."""
    try:
        sock = kernel.call("socket", _AF_INET, _SOCK_DGRAM_CLOEXEC, 0)
        request = struct.pack("16sH22x", b"lo", _IFF_UP)  # struct ifreq: 40 bytes
        kernel.call("ioctl", sock, _SIOCSIFFLAGS, request)
        os.close(sock)
    except OSError as refusal:
        raise SandboxFault("net", f"lo: {refusal.strerror}", errno=refusal.errno) from refusal


def cap_process_ids(proc: int, limits: Limits) -> bool:
    """Bound the process ids of this namespace, and say whether that could be done (Linux 6.14).

    Before, the setting is the whole system's and must not be touched.
    """
    if limits.processes is None or kernel_version() < PID_MAX_IS_PER_NAMESPACE:
        return False
    try:
        file = os.open("sys/kernel/pid_max", os.O_WRONLY, dir_fd=proc)
    except OSError:
        return False
    try:
        os.write(file, str(limits.processes + _RESERVED_PIDS).encode())
    except OSError:
        return False
    finally:
        os.close(file)
    return True


def kernel_version() -> tuple[int, int]:
    """Give major and minor version of the running kernel."""
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()) or 0)


def forbid_user_namespaces() -> None:
    """Allow no user namespace below this process's own; namespaces(7).

    Behind seccomp, which refuses them already: where /proc is read-only, it is left at that.
    """
    try:
        file = os.open("/proc/sys/user/max_user_namespaces", os.O_WRONLY)
    except OSError:
        return
    os.write(file, b"0")
    os.close(file)


def call_filter(spec: Spec, identity: Identity) -> bytes:
    """Assemble the seccomp filter of this sandbox."""
    # Without a network namespace there is no loopback of our own, and the host's is the host's.
    has_own = spec.tier in ("full", "bwrap")
    network = "none" if spec.network == "loopback" and not has_own else spec.network
    host_is_writable = spec.workspace_mode == "write" or bool(spec.writable)
    set_bits = _S_ISUID | (_S_ISGID if identity.gid == 0 else 0)
    return seccomp.assemble(network=network, set_bits=set_bits, host_is_writable=host_is_writable)


def give_up_early(spec: Spec, *, missing: list[Missing]) -> list[str]:
    """Give up what the worker needs for none of the next steps; give the layers now in force.

    What is missing is appended to `missing`.
    """
    # As Python leaves them: a broken pipe and a file too large are errors, not deaths.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    enforced = ["rlimits"]
    if spec.tier != "none":
        reason = _join_fresh_keyring()
        if reason:
            missing.append(Missing(layer="keyring", reason=reason))
        else:
            enforced.append("keyring")
    _set_rlimits(spec, missing=missing)
    if spec.tier != "none" or spec.best_effort:
        kernel.drop_bounding_set()
    return enforced


def give_up(
    spec: Spec,
    *,
    identity: Identity,
    call_filter: bytes,
    keep_fds: tuple[int, ...],
    pid_max_set: bool,
    missing: list[Missing],
) -> list[str]:
    """After `give_up_early`, give up the rest, seccomp last; give the layers now in force too.

    What may be missing in this tier is appended to `missing`; the rest raises SandboxFault.
    """
    enforced = []
    if spec.limits.processes is not None and spec.tier == "full":
        if pid_max_set or identity.uid != 0:
            enforced.append("pids")
        else:
            missing.append(Missing(layer="pids", reason="root is not counted; needs Linux 6.14"))
    if spec.tier == "none" and not spec.best_effort:
        kernel.close_all_but((0, 1, 2, *keep_fds))
        return enforced
    kernel.drop_capabilities()
    if os.geteuid() == 0 and identity.uid != 0:
        raise SandboxFault("user", "still root")
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.close_all_but((0, 1, 2, *keep_fds))
    enforced += ["capabilities", "no_new_privs"]
    steps: tuple[tuple[str, Callable[[], str]], ...] = (
        ("landlock", lambda: _restrict_files(spec)),
        ("seccomp", lambda: seccomp.restrict(call_filter)),
    )
    for name, step in steps:
        try:
            enforced.append(step())
        except SandboxFault as fault:
            may_be_missing = spec.tier == "none" or (name == "landlock" and spec.best_effort)
            if not may_be_missing:
                raise
            missing.append(Missing(layer=name, reason=fault.reason))
    return enforced


def _join_fresh_keyring() -> str:
    """Leave the session keyring of whoever started us: keyrings are not namespaced.

    Gives why it could not be left, or nothing. A container that denies keyctl(2) to us denies it to
    the worker too, as does our own filter: that costs the second lock and not the first.
    """
    try:
        kernel.call("keyctl", _JOIN_SESSION_KEYRING, None)
    except OSError as refusal:
        return f"keyctl: {refusal.strerror}"
    return ""


def _set_rlimits(spec: Spec, *, missing: list[Missing]) -> None:
    limits = spec.limits
    wanted = [
        # 1, not 0: a core_pattern that is a pipe ignores 0, and only 1 stops it too; core(5).
        ("core", resource.RLIMIT_CORE, 1),
        ("cpu", resource.RLIMIT_CPU, limits.cpu_s),
        ("open_files", resource.RLIMIT_NOFILE, limits.open_files),
        ("file_bytes", resource.RLIMIT_FSIZE, limits.file_bytes),
    ]
    if spec.tier == "full":
        # Counted per user namespace: here it counts this sandbox and nobody else.
        wanted.append(("pids", resource.RLIMIT_NPROC, limits.processes))
    for name, number, value in wanted:
        if value is None:
            continue
        _, hard = resource.getrlimit(number)
        # Of CPU time one second more: first SIGXCPU, which says what it is, then SIGKILL.
        most = value + 1 if number == resource.RLIMIT_CPU else value
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        try:
            resource.setrlimit(number, (min(value, most), most))
        except (OSError, ValueError) as refusal:
            missing.append(Missing(layer=f"rlimits:{name}", reason=str(refusal)))


def _restrict_files(spec: Spec) -> str:
    devices = [(f"/dev/{name}", landlock.DEVICE) for name in _DEVICES]
    writable = [spec.home, *spec.writable]
    if spec.tier in ("full", "bwrap"):
        readable: tuple[str, ...] = ("/",)
        writable += ["/tmp", "/var/tmp", "/dev/shm"]
    else:
        readable = (
            *READABLE_SYSTEM,
            *own_paths(is_in_foreign_root=False),
            *spec.readable,
            spec.workspace,
        )
        writable += [spec.scratch] if spec.scratch else []
    if spec.workspace_mode != "read":
        writable.append(spec.workspace)
    rules = [(path, landlock.READ) for path in readable]
    rules += [(path, landlock.WRITE) for path in writable]
    abi = landlock.restrict([*rules, *devices], network_allowed=spec.network != "none")
    return f"landlock:{abi}"
