"""The folder of what outlives a run: patches, journals, locks, long summaries."""

from __future__ import annotations

import os
from collections.abc import Mapping

from forkrun.errors import ConfigurationError


def state_folder(environ: Mapping[str, str]) -> str:
    """Give `$XDG_STATE_HOME/forkrun` (XDG Base Directory), which may not exist yet."""
    base = environ.get("XDG_STATE_HOME") or ""
    if not base.startswith("/"):
        base = os.path.join(environ.get("HOME") or "/", ".local", "state")
    return os.path.join(base, "forkrun")


def made_state_folder(environ: Mapping[str, str]) -> str:
    """Give that folder, made. Raises ConfigurationError where it cannot be."""
    folder = state_folder(environ)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"the state directory cannot be made ({error.strerror}): {folder}",
            hint="name another one in XDG_STATE_HOME",
        ) from error
    return folder


def keep_summary(text: str, *, run_id: str, environ: Mapping[str, str]) -> str:
    """Write a summary that is too long for a result into a file of its own; give its path."""
    folder = os.path.join(made_state_folder(environ), "summaries")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    path = os.path.join(folder, f"{run_id}.txt")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text)
    return path
