"""Paths of the workspace: what a path means, and opening exactly that and nothing else.

A path is used in three steps. `resolve` follows the links and gives the path without any, or
refuses one that leaves the workspace; that answer is what rules are matched against. Opening then
takes the resolved path from the workspace's descriptor and meets no link at all: where somebody
has put one there in the meantime, opening fails.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from forkrun.tools import kernel
from forkrun.tools.failures import ToolError

_MAX_LINKS = 40  # as the kernel, path_resolution(7)
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Workspace:
    """The directory worked in, held open for as long as the `with` lasts.

    `root` is its absolute path as it was given; it may lead through links.
    """

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self._prefixes = [_parts(self.root), _parts(os.path.realpath(self.root))]
        self.descriptor = os.open(self.root, _DIRECTORY)
        self._has_openat2 = True
        try:
            os.close(kernel.openat2(self.descriptor, ".", flags=_DIRECTORY))
        except OSError:
            self._has_openat2 = False

    def __enter__(self) -> Workspace:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self.descriptor)

    def resolve(self, path: str) -> str:
        """Give the path relative to the workspace that has no links in it; "." for the root.

        What does not exist yet resolves to where it would be made. Raises ToolError for what is
        no path and for what lies outside, whether by "..", by a link or by an absolute path.
        """
        pending = self._components(path)[::-1]
        done: list[str] = []
        links = 0
        while pending:
            part = pending.pop()
            if part == "..":
                if not done:
                    raise self._outside(path)
                done.pop()
                continue
            done.append(part)
            target = self._link("/".join(done))
            if target is None:
                continue
            links += 1
            if links > _MAX_LINKS:
                raise ToolError(f"{path}: too many levels of symbolic links")
            done.pop()
            if target.startswith("/"):
                done = []
                inside = self._below_root(target)
                if inside is None:
                    raise self._outside(path)
                pending.extend(inside[::-1])
            else:
                pending.extend(_parts(target)[::-1])
        return "/".join(done) or "."

    def open(self, resolved: str, *, flags: int) -> int:
        """Open a resolved path and return the descriptor; OSError ELOOP where a link stands."""
        flags |= os.O_CLOEXEC | os.O_NOFOLLOW
        if self._has_openat2:
            return kernel.openat2(self.descriptor, resolved, flags=flags)
        head, _, name = resolved.rpartition("/")
        directory = self._descend(head, make=False)
        try:
            return os.open(name, flags, dir_fd=directory)
        finally:
            os.close(directory)

    @contextmanager
    def parent(self, resolved: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Hold the directory of a resolved path: its descriptor, and the name in it.

        With `make`, directories that are missing are made.
        """
        head, _, name = resolved.rpartition("/")
        try:
            directory = self.open(head or ".", flags=_DIRECTORY)
        except FileNotFoundError:
            if not make:
                raise
            directory = self._descend(head, make=True)
        try:
            yield directory, name
        finally:
            os.close(directory)

    def _components(self, path: str) -> list[str]:
        if not path:
            raise ToolError("the path is empty")
        if "\0" in path:
            raise ToolError("the path contains a NUL character")
        try:
            path.encode()
        except UnicodeEncodeError:
            raise ToolError("the path is not valid text") from None
        if path.startswith("~"):
            raise ToolError(
                f"{path}: ~ is not expanded; give a path relative to the workspace "
                "(./~ for a name that begins with it)"
            )
        if not path.startswith("/"):
            return _parts(path)
        inside = self._below_root(path)
        if inside is None:
            raise self._outside(path)
        return inside

    def _below_root(self, absolute: str) -> list[str] | None:
        parts = _parts(absolute)
        for prefix in self._prefixes:
            if parts[: len(prefix)] == prefix:
                return parts[len(prefix) :]
        return None

    def _link(self, path: str) -> str | None:
        try:
            return os.readlink(path, dir_fd=self.descriptor)
        except OSError as error:
            if error.errno in {errno.EINVAL, errno.ENOENT, errno.ENOTDIR}:
                return None
            raise

    def _outside(self, path: str) -> ToolError:
        return ToolError(
            f"{path} is outside the workspace {self.root}; only paths within it can be used",
            denied=True,
        )

    def _descend(self, path: str, *, make: bool) -> int:
        """Open a directory component by component, each without following a link."""
        directory = os.open(".", _DIRECTORY, dir_fd=self.descriptor)
        for part in _parts(path):
            try:
                if make:
                    _make_directory(part, directory)
                below = os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
            finally:
                os.close(directory)
            directory = below
        return directory


def _make_directory(name: str, parent: int) -> None:
    try:
        os.mkdir(name, dir_fd=parent)
    except FileExistsError:
        return


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in {"", "."}]
