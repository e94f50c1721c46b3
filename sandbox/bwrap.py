"""The second-best tier: the same view by the system's bubblewrap, which AppArmor may trust.

Where user namespaces are closed to programs without a profile, /usr/bin/bwrap often has one. It
makes the namespaces and the view; inside, `enter` does the rest (rlimits, Landlock, seccomp) and
puts a guardian in front that ends everything with the parent. `--die-with-parent` is not used: it
follows the thread that started bwrap, not the process.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

from .fault import SandboxFault
from .spec import Spec
from .system import ETC, SYSTEM

# Never by PATH, which a project may have changed.
_PLACES = "/usr/bin:/bin:/usr/local/bin"


def find() -> str | None:
    """Give the path of the system's bubblewrap, or None."""
    return shutil.which("bwrap", path=_PLACES)


def bwrap_argv(
    spec: Spec, argv: list[str], *, own: tuple[str, ...], program: str | None = None
) -> list[str]:
    """Give the command that runs `argv` in the view of `spec`; `own` is what argv[0] needs.

    Start it with `popen_ids`, and hand `enter` a pidfd of yours: in there its parent is bubblewrap.
    Raises SandboxFault for what bubblewrap cannot do.
    """
    program = program or find()
    if program is None:
        raise SandboxFault("bwrap", "no bubblewrap on this system")
    if spec.workspace_mode == "overlay" or spec.root is not None:
        raise SandboxFault("bwrap", "neither an overlay nor a root of its own in this tier")
    size = str(spec.limits.tmp_bytes or 512 * 1024**2)
    network = ["--share-net"] if spec.network == "host" else []
    return [
        *(program, "--unshare-all", "--unshare-user", *network, "--disable-userns"),
        *("--cap-drop", "ALL", "--hostname", "sandbox"),
        *_system(spec),
        *("--proc", "/proc", "--dev", "/dev"),
        *("--perms", "1777", "--size", size, "--tmpfs", "/tmp"),
        *("--perms", "0700", "--size", size, "--tmpfs", spec.home),
        *_pairs("--ro-bind", sorted({*own, *spec.readable}, key=_depth)),
        *_workspace(spec),
        *_pairs("--bind", sorted(spec.writable, key=_depth)),
        *_masks(spec),
        *("--remount-ro", "/", "--chdir", spec.workspace, "--", *argv),
    ]


def popen_ids(spec: Spec) -> dict[str, Any]:
    """Give the arguments of subprocess.Popen that start bubblewrap as the workspace's owner.

    Nothing for an ordinary user. For root bubblewrap maps one user and no other, so it has to be
    that one from the beginning.
    """
    found = os.stat(spec.workspace)
    if os.geteuid() != 0 or found.st_uid == 0:
        return {}
    return {"user": found.st_uid, "group": found.st_gid, "extra_groups": []}


def _depth(path: str) -> tuple[int, str]:
    return path.count("/"), path


def _system(spec: Spec) -> list[str]:
    argv: list[str] = []
    etc = [f"/etc/{name}" for name in (*ETC, "passwd", "group", "nsswitch.conf", "hosts")]
    etc += ["/etc/resolv.conf"] if spec.network == "host" else []
    for path in [*(f"/{name}" for name in SYSTEM), *etc]:
        if os.path.islink(path):
            argv += ["--symlink", os.readlink(path), path]
        elif os.path.exists(path):
            argv += ["--ro-bind", path, path]
    if os.path.exists("/sys/devices/system/cpu"):
        argv += ["--ro-bind", "/sys/devices/system/cpu", "/sys/devices/system/cpu"]
    return argv


def _workspace(spec: Spec) -> list[str]:
    if spec.workspace_mode == "empty":
        size = str(spec.limits.disk_bytes or 512 * 1024**2)
        return ["--size", size, "--tmpfs", spec.workspace]
    flag = "--ro-bind" if spec.workspace_mode == "read" else "--bind"
    return [flag, spec.workspace_source or spec.workspace, spec.workspace]


def _masks(spec: Spec) -> list[str]:
    argv: list[str] = []
    for path in spec.masked:
        if os.path.isdir(path):
            argv += ["--perms", "0000", "--tmpfs", path, "--remount-ro", path]
        elif os.path.exists(path):
            argv += ["--ro-bind", "/dev/null", path]
    return argv


def _pairs(flag: str, paths: list[str]) -> list[str]:
    return [word for path in paths for word in (flag, path, path)]
