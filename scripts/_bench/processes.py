"""Processes as /proc shows them: who descends from whom, and what memory each has."""

from __future__ import annotations

import os


def tree(root: int) -> set[int]:
    """Give a process and everything below it."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    parent = int(file.read().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(name))
    found, new = {root}, [root]
    while new:
        new = [child for pid in new for child in children.get(pid, ())]
        found.update(new)
    return found


def pss_mib(pid: int) -> float:
    """Give the proportional set size of a process in MiB: proc_pid_smaps(5)."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) / 1024
    except OSError:
        pass
    return 0.0
