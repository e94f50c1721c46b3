"""Confine the calling process for good. For the child alone."""

from __future__ import annotations

import os
import resource

from forkrun_sandbox.spec import Report, Spec


class EnterError(Exception):
    """The confinement could not be entered; the message names the step and the errno."""


def enter(spec: Spec, *, keep_fds: tuple[int, ...] = ()) -> Report:
    """Close what was inherited and set the resource limits."""
    keep = sorted({0, 1, 2, *keep_fds})
    for low, high in zip(keep, [*keep[1:], 1 << 20], strict=True):
        os.closerange(low + 1, high)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return Report(tier="none", enforced=("rlimits",), missing=())
