"""What the kernel is told, and what it really did: plain data, for both sides of the border."""

from __future__ import annotations

from typing import Any, NamedTuple

HOME = "/home/agent"


class Limits(NamedTuple):
    """Bounds on everything in one sandbox together, None for no bound. Bytes and seconds.

    The kernel holds `cpu_s`, `open_files` and `file_bytes` for each process on its own; the sum of
    CPU time is what `launch` can read. `tmp_bytes` is the size of `/tmp`, of `/dev/shm` and of
    HOME each; `disk_bytes` that of an empty or overlaid workspace that is kept in memory.
    """

    memory_bytes: int | None = None
    processes: int | None = None
    cpu_s: int | None = None
    open_files: int | None = None
    file_bytes: int | None = None
    disk_bytes: int | None = None
    tmp_bytes: int | None = None


class Spec(NamedTuple):
    """One sandbox: absolute paths of the host, numbers and flags.

    `tier` is "full", "bwrap", "lsm" or "none", as chosen by a probe. `workspace` is the directory
    to work in, by its real path, and `workspace_mode` how it appears inside, under the same path:
    "write" (the directory itself), "read" (read-only), "empty" (a private directory that is gone
    afterwards) or "overlay" (a private copy-on-write view: what is written lands in `upper`/upper,
    where `upper` is an empty directory on the host, or without one in memory, of `disk_bytes`).
    With `workspace_source` it is that directory which appears there, a copy for instance.
    `writable` are files and directories, also inside a read-only workspace, that are written in
    place; `masked` are files and directories that can be neither read nor replaced. `root` is a
    root file system to use instead of the host's. `network` is "none", "loopback" or "host".
    `home` is where the private empty home directory appears; in the lesser tiers, which have no
    view of their own, it and `scratch` (for temporary files) are directories of the host.
    `groups` are directories of control groups that the child joins before anything else.
    `best_effort` lets tier "full" do without Landlock and tier "none" put in force what can be had.
    """

    tier: str
    workspace: str
    workspace_mode: str = "write"
    workspace_source: str | None = None
    upper: str | None = None
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    masked: tuple[str, ...] = ()
    root: str | None = None
    network: str = "loopback"
    home: str = HOME
    scratch: str | None = None
    limits: Limits = Limits()
    best_effort: bool = False
    groups: tuple[str, ...] = ()


class Shape(NamedTuple):
    """What can be known of a sandbox of the tier "full" before its workspace is.

    `uid` and `gid` are who works in it; the rest is as in `Spec` and `Limits`.
    """

    uid: int
    gid: int
    network: str
    home: str
    tmp_bytes: int | None


def pack(spec: Spec) -> tuple[Any, ...]:
    """Give a spec as a tuple of nothing but what marshal takes."""
    return (*(tuple(each) if isinstance(each, Limits) else each for each in spec),)


def unpack(packed: tuple[Any, ...]) -> Spec:
    """Give the spec of which this is what `pack` gave."""
    spec = Spec(*packed)
    return spec._replace(limits=Limits(*spec.limits))


class Missing(NamedTuple):
    """A layer that is not in force, and why."""

    layer: str
    reason: str


class Report(NamedTuple):
    """The confinement that is in force: the names of the layers, and what is missing."""

    tier: str
    enforced: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()
