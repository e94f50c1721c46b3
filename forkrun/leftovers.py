"""What killed and old runs leave behind: control groups, and old files in STATE.

    STATE/groups/DIGEST    a link to a directory in which runs of this user make control groups
    STATE/patches, STATE/summaries

Apart from the rest, and with few imports, since every run begins with it.
"""

from __future__ import annotations

import contextlib
import os
import zlib

from forkrun.workspace.oldpatches import sweep_old
from forkrun_sandbox.launch import group_parents, sweep


def sweep_groups(state: str, *, remember: bool) -> None:
    """Remove the control groups of killed runs; with `remember`, note down where ours will be.

    A group lies below that of the process which made it: another session's or service's, maybe.
    """
    own, folder = group_parents(), os.path.join(state, "groups")
    known = _known(folder)
    sweep(tuple(known.values()))
    for name, directory in known.items():
        if not os.path.isdir(directory):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))
    # Where the state cannot be written, a group left by a kill is found from the same place only.
    with contextlib.suppress(OSError):
        for directory in set(own) - set(known.values()) if remember else ():
            os.makedirs(folder, mode=0o700, exist_ok=True)
            os.symlink(directory, os.path.join(folder, f"{zlib.crc32(directory.encode()):08x}"))


def sweep_files(state: str, *, keep_days: float) -> None:
    """Remove the patches and the long summaries that are older."""
    for name in ("patches", "summaries"):
        sweep_old(os.path.join(state, name), keep_days=keep_days)


def _known(folder: str) -> dict[str, str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return {}
    found = {}
    for name in names:
        with contextlib.suppress(OSError):
            found[name] = os.readlink(os.path.join(folder, name))
    return found
