"""What is done for a process tree where there is no Linux kernel to do it: measure it, and end it.

Only as good as a look at the process table is: what has left the tree by a double fork is not seen.
"""

from __future__ import annotations

import contextlib
from typing import Any

from forkrun_sandbox.launch import Usage


def measure(pid: int) -> Usage:
    """Read what a process and its descendants use now."""
    import psutil

    memory_bytes, cpu_s, processes = 0, 0.0, 0
    for process in _tree(pid):
        with contextlib.suppress(psutil.Error), process.oneshot():
            memory_bytes += process.memory_info().rss
            times = process.cpu_times()
            cpu_s += times.user + times.system
            processes += 1
    return Usage(
        memory_bytes=memory_bytes,
        peak_memory_bytes=memory_bytes,
        cpu_s=cpu_s,
        processes=processes,
        processes_now=processes,
    )


def end_descendants(pid: int) -> None:
    """Kill the descendants of a process, again until none is seen."""
    import psutil

    for _ in range(10):
        descendants = _tree(pid)[1:]
        if not descendants:
            return
        for process in descendants:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(descendants, timeout=0.5)


def _tree(pid: int) -> list[Any]:
    import psutil

    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
