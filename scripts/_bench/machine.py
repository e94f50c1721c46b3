"""Say on what machine a figure was taken, and how busy it was."""

from __future__ import annotations

import os
import platform


def described() -> str:
    """Give processor, cores, memory, kernel, Python and load in one line."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{_processor()}, {os.cpu_count()} cores, {memory_gib:.0f} GiB, "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}. {load()}"
    )


def load() -> str:
    """Give the load average of the last minute."""
    return f"Load average of the last minute: {os.getloadavg()[0]:.2f}."


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()
