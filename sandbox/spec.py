"""What the kernel is told, and what it really did: plain data, for both sides of the border."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on everything in one sandbox together, None for no bound. Bytes and seconds."""

    memory_bytes: int | None = None
    processes: int | None = None
    cpu_s: int | None = None
    open_files: int | None = None
    file_bytes: int | None = None
    disk_bytes: int | None = None
    tmp_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One sandbox: absolute paths of the host, numbers and flags.

    `tier` is "full", "bwrap", "lsm" or "none", as chosen by a probe. `workspace` is the directory
    to work in and `workspace_mode` how it appears inside: "write" (the directory itself), "read"
    (read-only), "empty" (a private empty directory). `network` is "none", "loopback" or "host".
    """

    tier: str
    workspace: str
    workspace_mode: str = "write"
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    root: str | None = None
    network: str = "loopback"
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A layer that is not in force, and why."""

    layer: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The confinement that is in force: the names of the layers, and what is missing."""

    tier: str
    enforced: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()
