"""Remove kept patches that are old; apart from the rest, since every run begins with it."""

from __future__ import annotations

import os
import time


def sweep_patches(state_dir: str, *, keep_days: float) -> int:
    """Remove the patches that are older, and return how many there were."""
    directory = os.path.join(state_dir, "patches")
    oldest = time.time() - keep_days * 86_400
    removed = 0
    try:
        with os.scandir(directory) as found:
            entries = list(found)
    except FileNotFoundError:
        return 0
    for entry in entries:
        if entry.is_file(follow_symlinks=False) and _mtime(entry) < oldest:
            os.unlink(entry.path)
            removed += 1
    return removed


def _mtime(entry: os.DirEntry[str]) -> float:
    return entry.stat(follow_symlinks=False).st_mtime
