"""Where a patch lands: by no symbolic link that a run may have put into the workspace.

Links outside of the workspace are the user's own and are followed; those within it are not, be it
the last part of the path or one before: they are an error, which names them.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from collections.abc import Iterator
from typing import BinaryIO, cast

from forkrun.errors import UsageError
from forkrun.text import sayable

_MAX_LINKS = 40  # as the kernel has it: path_resolution(7)
_DIRECTORY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def check_landing(path: str, *, workspace: str) -> None:
    """Raise UsageError where a file could not be written at a path, or a result not name it."""
    if sayable(path) != path:
        raise UsageError(f"the path of the patch is not UTF-8: {sayable(path)}")
    try:
        at = landing(path, workspace=workspace)
        if os.path.isdir(at):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if os.path.exists(path) and not os.path.isfile(path):
            at, rights = path, os.W_OK
        else:
            at, rights = os.path.dirname(at), os.W_OK | os.X_OK
            os.stat(at)
        if not os.access(at, rights):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise UsageError(f"the patch cannot be written there ({error.strerror}): {path}") from None


def landing(path: str, *, workspace: str) -> str:
    """Resolve a path, which need not exist. Raises OSError (ELOOP) for a link in the workspace."""
    workspace = os.path.realpath(workspace)
    pending = deque(os.path.abspath(path).split("/"))
    at, links = "/", 0
    while pending:
        name = pending.popleft()
        if name == "..":
            at = os.path.dirname(at)
        if name in ("", ".", ".."):
            continue
        here = os.path.join(at, name)
        try:
            target = os.readlink(here)
        except OSError:  # no link, or not there
            at = here
            continue
        links += 1
        if at == workspace or at.startswith(workspace.rstrip("/") + "/"):
            raise OSError(errno.ELOOP, f"links in the workspace are not followed: {here}")
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        at = "/" if target.startswith("/") else at
        pending.extendleft(reversed(target.split("/")))
    return at


@contextlib.contextmanager
def replacing(path: str, *, workspace: str) -> Iterator[BinaryIO]:
    """Give a new file that takes the place of what is at a path when the block is left well.

    From the root on, every directory is opened without following a link, so that none that is
    put there meanwhile counts.
    """
    directory, name = os.path.split(landing(path, workspace=workspace))
    at = _open_directory(directory)
    try:
        partial = f".{name[:200]}.{os.urandom(8).hex()}.partial"
        fd = os.open(partial, _CREATE, 0o600, dir_fd=at)
        try:
            with open(fd, "wb") as out:
                yield cast(BinaryIO, out)
                out.flush()
                os.fsync(fd)
            os.rename(partial, name, src_dir_fd=at, dst_dir_fd=at)
        except BaseException:
            os.unlink(partial, dir_fd=at)
            raise
    finally:
        os.close(at)


def _open_directory(path: str) -> int:
    at = os.open("/", _DIRECTORY)
    for name in filter(None, path.split("/")):
        try:
            below = os.open(name, _DIRECTORY, dir_fd=at)
        finally:
            os.close(at)
        at = below
    return at
