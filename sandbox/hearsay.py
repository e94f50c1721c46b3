"""Read what somebody hostile may have written: small files that name other places.

A workspace and what lies around it may have been written by an earlier run. Such a file may be a
FIFO that blocks whoever opens it, a device, a file without an end, or no text at all.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

_MAX_BYTES = 65_536
_MAX_PATH = 4096


def text_of(path: str) -> str:
    """Read the beginning of a regular file, or nothing where it is none or not text.

    Looked at before it is opened, since to open a device may do something; looked at again
    afterwards, and opened without waiting, since it may have been replaced in between.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return ""
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            is_regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
            content = os.read(descriptor, _MAX_BYTES) if is_regular else b""
        finally:
            os.close(descriptor)
        text = content.decode()
    except (OSError, ValueError):
        return ""
    return "" if "\0" in text else text


def path_in(path: str) -> str:
    """Read a file whose one line is a path, or nothing: gitrepository-layout(5)."""
    line = text_of(path).strip()
    return line if len(line) < _MAX_PATH and "\n" not in line else ""


def settings(path: str) -> Iterator[tuple[str, str]]:
    """Read lines of the form `key = value`, with keys in lower case; too long ones are no paths."""
    for line in text_of(path).splitlines():
        key, separator, value = line.partition("=")
        if separator and len(line) < _MAX_PATH:
            yield key.strip().lower(), value.strip()


def is_inside(path: str, directory: str) -> bool:
    """Say whether a path is a directory or lies in it, going by their names."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")
