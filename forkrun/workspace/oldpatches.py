"""Remove old patches and other old files of runs; apart from the rest, since every run does it."""

from __future__ import annotations

import contextlib
import math
import os
import time


def sweep_patches(state_dir: str, *, keep_days: float) -> int:
    """Remove the patches that are older, and return how many there were."""
    return sweep_old(os.path.join(state_dir, "patches"), keep_days=keep_days)


def sweep_old(directory: str, *, keep_days: float) -> int:
    """Remove the files of a directory that are older, and return how many there were."""
    oldest = time.time() - keep_days * 86_400
    removed = 0
    try:
        with os.scandir(directory) as found:
            entries = list(found)
    except FileNotFoundError:
        return 0
    for entry in entries:
        if entry.is_file(follow_symlinks=False) and _mtime(entry) < oldest:
            with contextlib.suppress(FileNotFoundError):  # another run sweeps, too
                os.unlink(entry.path)
                removed += 1
    return removed


def _mtime(entry: os.DirEntry[str]) -> float:
    try:
        return entry.stat(follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return math.inf
