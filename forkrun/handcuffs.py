"""In a live workspace the kernel holds what the rules say: only what they name can be written.

The workspace appears read-only, and each file or directory that a write or edit rule names is bound
over it, writable, so that bash cannot write more than the file tools may. A mount needs something
to be mounted on: what a rule names and is not there is made, empty, and removed again if the run
leaves it as it was.

Left read-only, though a rule names it: what is reached through a link, and a file with several
names (hard links), since writing it would change a file that no rule names.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

from forkrun.errors import UsageError
from forkrun.policy import Policy

MOST_FILES = 200
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def open_writable(policy: Policy, workspace: str) -> Iterator[tuple[str, ...] | None]:
    """Give the absolute paths that may be written in place; None where rules narrow nothing.

    Of a pattern those files count that match when the run begins. Raises UsageError where there
    are too many of them.
    """
    scope = policy.writable()
    if scope.everything or "" in scope.subtrees:
        yield None
        return
    with contextlib.ExitStack() as stack:
        found = []
        for path, is_directory in (
            *((path, True) for path in scope.subtrees),
            *((path, False) for path in scope.literals),
            *((path, False) for path in _matching(policy, workspace) if scope.patterns),
        ):
            if _make_ready(stack, workspace, path, is_directory=is_directory):
                found.append(os.path.join(workspace, path))
        yield tuple(dict.fromkeys(found))


def _matching(policy: Policy, workspace: str) -> Iterator[str]:
    """Give the files of the workspace that may be written, without what lies below a link."""
    count = 0
    for folder, _, names in os.walk(workspace):
        for name in names:
            path = os.path.relpath(os.path.join(folder, name), workspace)
            if not policy.may_write(path):
                continue
            count += 1
            if count > MOST_FILES:
                raise UsageError(
                    f"the rules let more than {MOST_FILES} single files be written in place",
                    hint="name a directory, as in write(src/**), or leave --workspace live out",
                )
            yield path


def _make_ready(
    stack: contextlib.ExitStack, workspace: str, path: str, *, is_directory: bool
) -> bool:
    """Make what is missing of a path, for as long as the stack is open unless it gets used.

    Say whether it can be bound: no link stands on the way and the file has no other name.
    """
    owner = os.stat(workspace)
    directory = os.open(workspace, _DIRECTORY)
    stack.callback(os.close, directory)
    *above, name = path.split("/")
    for part in [*above, *([name] if is_directory else [])]:
        try:
            directory = _enter(stack, directory, part, owner=owner)
        except OSError:  # a link, no directory, or one that we may not write to
            return False
        stack.callback(os.close, directory)
    return is_directory or _is_single_file(stack, directory, name, owner=owner)


def _enter(stack: contextlib.ExitStack, directory: int, name: str, *, owner: os.stat_result) -> int:
    try:
        os.mkdir(name, dir_fd=directory)
    except FileExistsError:
        return os.open(name, _DIRECTORY, dir_fd=directory)
    stack.callback(_remove_if_empty, name, directory)
    made = os.open(name, _DIRECTORY, dir_fd=directory)
    _give(made, owner)
    return made


def _remove_if_empty(name: str, directory: int) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(name, dir_fd=directory)


def _is_single_file(
    stack: contextlib.ExitStack, directory: int, name: str, *, owner: os.stat_result
) -> bool:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        made = os.open(name, flags, 0o666, dir_fd=directory)
    except FileExistsError:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        return stat.S_ISDIR(found.st_mode) or (stat.S_ISREG(found.st_mode) and found.st_nlink == 1)
    except OSError:
        return False
    with contextlib.closing(os.fdopen(made, "wb", closefd=True)):
        _give(made, owner)
        stack.callback(_remove_if_untouched, name, directory, os.fstat(made))
    return True


def _remove_if_untouched(name: str, directory: int, before: os.stat_result) -> None:
    with contextlib.suppress(OSError):
        now = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if (now.st_ino, now.st_mtime_ns, now.st_size) == (before.st_ino, before.st_mtime_ns, 0):
            os.unlink(name, dir_fd=directory)


def _give(descriptor: int, owner: os.stat_result) -> None:
    """As root we work for the owner of the workspace: what we make there is theirs."""
    if os.geteuid() == 0:
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
