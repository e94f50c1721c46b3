"""One commit at a time in a workspace, by a lock that dies with its holder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator

from forkrun.errors import WorkspaceError

_POLL_S = 0.01
_NOT_LOCKABLE = {errno.EBADF, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL}


@contextlib.contextmanager
def workspace_lock(directory: int, *, fallback: str, timeout_s: float) -> Iterator[None]:
    """Hold the only lock on a workspace, named by a descriptor of its directory (flock(2)).

    The directory itself is locked, so that no file is left and every name of it counts as one; on
    a filesystem that cannot (NFS locks only what is open for writing) the file `fallback` is.
    Raises WorkspaceError after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    # A descriptor of its own: a lock belongs to the open file, and closing that lets go of it.
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    try:
        try:
            _acquire(fd, deadline)
        except OSError as error:
            if error.errno not in _NOT_LOCKABLE:
                raise
            os.close(fd)
            os.makedirs(os.path.dirname(fallback), mode=0o700, exist_ok=True)
            fd = os.open(fallback, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            _acquire(fd, deadline)
        yield
    finally:
        os.close(fd)


def _acquire(fd: int, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise WorkspaceError(
                    "the workspace is locked by another commit", hint="Try again later."
                ) from None
            time.sleep(_POLL_S)
        else:
            return
