"""Who works in a sandbox: this user, or for root the owner of the workspace."""

from __future__ import annotations

import os
from typing import NamedTuple

from .fault import SandboxFault
from .spec import Shape, Spec


class Identity(NamedTuple):
    """The user and group that the worker is, inside and outside alike."""

    uid: int
    gid: int


def identity_of(workspace: str) -> Identity:
    """Give who the worker is to be: this user, or for root the owner of the workspace.

    Root without capabilities, in a view where all but the workspace is read-only, is what is left
    for a workspace that root owns. Raises SandboxFault where there is no such directory.
    """
    if os.geteuid() != 0:
        return Identity(os.geteuid(), os.getegid())
    try:
        found = os.stat(workspace)
    except OSError as refusal:
        raise SandboxFault("spec", f"workspace: {refusal.strerror}: {workspace}") from refusal
    return Identity(found.st_uid, found.st_gid)


def shape_of(spec: Spec) -> Shape:
    """Give what a sandbox can be begun with before it is told its spec. Raises SandboxFault."""
    who = identity_of(spec.workspace)
    return Shape(who.uid, who.gid, spec.network, spec.home, spec.limits.tmp_bytes)
