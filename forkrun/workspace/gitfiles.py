"""What git would say about a path, read from its files as data: git itself is never run.

Formats: gitignore(5), gitrepository-layout(5), and index-format.txt of git's documentation.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable

from forkrun.errors import WorkspaceError
from forkrun.ignoring import Rule, last_word, read_rules
from forkrun.workspace.dirs import MAX_PATH_BYTES, Tree

_MAX_RULES_BYTES = 1024 * 1024
_MAX_RULES_S = 15.0
_MAX_INDEX_BYTES = 64 * 1024 * 1024
_MAX_OFFSET_BYTES = 5
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class Repository:
    """The repository that a workspace lies in. `prefix` is the workspace's place in it ("a/b/").

    Keeps the index open as it is now; git puts a new file in its place when it changes it.
    """

    def __init__(self, *, root: str, git_directory: str, prefix: str) -> None:
        self.root = root
        self.prefix = prefix
        self.git_directory = git_directory
        self._index: int | None = _open_regular(os.path.join(git_directory, "index"))
        self._tracked: frozenset[str] | None = None

    def close(self) -> None:
        """Let go of the index."""
        if self._index is not None:
            os.close(self._index)
            self._index = None

    def tracks(self, path: str) -> bool:
        """Whether the index names the path (a file or link, relative to the workspace)."""
        if self._tracked is None:
            self._tracked = self._read_index()
        return self.prefix + path in self._tracked

    def excludes(self) -> bytes:
        """Return the rules of .git/info/exclude, which count for this repository alone."""
        common = _first_line(os.path.join(self.git_directory, "commondir"))
        at = os.path.join(self.git_directory, common) if common else self.git_directory
        return _read_small(os.path.join(at, "info", "exclude"))

    def _read_index(self) -> frozenset[str]:
        if self._index is None:
            return frozenset()
        size = os.fstat(self._index).st_size
        if size > _MAX_INDEX_BYTES:
            return frozenset()
        config = _read_small(os.path.join(self.git_directory, "config"))
        hash_bytes = 32 if b"sha256" in config.lower() else 20
        return parse_index(os.pread(self._index, size, 0), hash_bytes=hash_bytes)


def find_repository(workspace: str) -> Repository | None:
    """Look for the repository of a workspace, upwards; None where it lies in none."""
    at, prefix = workspace, ""
    while True:
        git_directory = _git_directory(at)
        if git_directory is not None:
            return Repository(root=at, git_directory=git_directory, prefix=prefix)
        above, name = os.path.split(at)
        if above == at:
            return None
        at, prefix = above, f"{name}/{prefix}"


def parse_index(content: bytes, *, hash_bytes: int = 20) -> frozenset[str]:
    """Return the paths that an index names; what is not understood ends the list there.

    Version 4 names a path by what it shares with the one before, so that a small index can name
    much: nothing at all is returned where the paths are longer than any, or together more than
    twice as long as the index.
    """
    version = int.from_bytes(content[4:8], "big")
    if content[:4] != b"DIRC" or version not in (2, 3, 4):
        return frozenset()
    paths: list[str] = []
    at, last, total = 12, b"", 0
    try:
        for _ in range(int.from_bytes(content[8:12], "big")):
            at, last = _index_entry(
                content, at, last=last, version=version, flags_at=40 + hash_bytes
            )
            total += len(last)
            if len(last) > MAX_PATH_BYTES or total > 2 * len(content):
                return frozenset()
            paths.append(os.fsdecode(last))
    except (ValueError, IndexError):
        pass  # cut short or damaged: the paths before it are still good
    return frozenset(paths)


def _index_entry(
    content: bytes, at: int, *, last: bytes, version: int, flags_at: int
) -> tuple[int, bytes]:
    """Read one entry: (where the next begins, its path)."""
    is_extended = content[at + flags_at] & 0x40 and version >= 3
    name_at = at + flags_at + (4 if is_extended else 2)
    if version < 4:
        end = content.index(b"\0", name_at)
        return at + (end - at + 8) // 8 * 8, content[name_at:end]
    strip, name_at = _offset_number(content, name_at)
    end = content.index(b"\0", name_at)
    return end + 1, last[: len(last) - strip] + content[name_at:end]


def _offset_number(content: bytes, at: int) -> tuple[int, int]:
    """Read a number in the encoding of offsets in packs: (the number, what follows it)."""
    start = at
    byte = content[at]
    number = byte & 0x7F
    while byte & 0x80:
        if at - start >= _MAX_OFFSET_BYTES:
            raise ValueError("no length of a path is that large")
        at += 1
        byte = content[at]
        number = ((number + 1) << 7) | (byte & 0x7F)
    return number, at + 1


def rules_of(tree: Tree) -> Callable[[str], bytes]:
    """Return a reader of the rule files of a tree; what is not there or no file is empty."""

    def read(path: str) -> bytes:
        try:
            fd = tree.open_file(path)
        except OSError:
            return b""
        with open(fd, "rb") as file:
            return file.read(_MAX_RULES_BYTES)

    return read


class Ignored:
    """Tell which paths git ignores, by the rules in force in every directory.

    `read_rules` returns the content of a .gitignore by its path in the workspace. A path that the
    index tracks is not ignored. Raises WorkspaceError when reading and matching the rules takes
    more than `max_s` of processor time: somebody may have written them for that.
    """

    def __init__(
        self,
        read_rules: Callable[[str], bytes],
        *,
        repository: Repository | None,
        max_s: float = _MAX_RULES_S,
    ) -> None:
        self._read_rules = read_rules
        self._max_s = max_s
        self._used_s = 0.0
        self._repository = repository
        self._prefix = repository.prefix if repository is not None else ""
        self._rules: dict[str, tuple[tuple[Rule, ...], ...]] = {}
        self._directories: dict[str, str | None] = {"": None}

    def __call__(self, path: str, *, is_directory: bool) -> str | None:
        """Return the topmost ignored path on the way ("build/"), or None where git would see it."""
        parent = path.rpartition("/")[0]
        above = self._directory(parent)
        if above is None and self._matches(path, is_directory=is_directory):
            above = path + "/" if is_directory else path
        if above is not None and not is_directory and self._tracks(path):
            return None
        return above

    def _directory(self, path: str) -> str | None:
        pending = []
        while path not in self._directories:
            pending.append(path)
            path = path.rpartition("/")[0]
        above = self._directories[path]
        for directory in reversed(pending):
            if above is None and self._matches(directory, is_directory=True):
                above = directory + "/"
            self._directories[directory] = above
        return above

    def _tracks(self, path: str) -> bool:
        return self._repository is not None and self._repository.tracks(path)

    def _matches(self, path: str, *, is_directory: bool) -> bool:
        """Judge one path alone: the deepest rule file that says something, and its last word."""
        began = time.thread_time()
        full = self._prefix + path + ("/" if is_directory else "")
        verdict = None
        for rules in self._rules_for((self._prefix + path).rpartition("/")[0]):
            verdict = last_word(full, rules)
            if verdict is not None:
                break
        self._used_s += time.thread_time() - began
        if self._used_s > self._max_s:
            raise WorkspaceError(
                f"the rules of .gitignore take too long: more than {self._max_s:g} s",
                hint="--commit-ignored does without them",
            )
        return bool(verdict)

    def _rules_for(self, directory: str) -> tuple[tuple[Rule, ...], ...]:
        """Return what the rule files say, from that of a directory up, named from the root."""
        pending = []
        while directory not in self._rules:
            pending.append(directory)
            if not directory:
                break
            directory = directory.rpartition("/")[0]
        for each in reversed(pending):
            above = self._rules[each.rpartition("/")[0]] if each else ()
            own = self._rules_of(each)
            self._rules[each] = (own, *above) if own else above
        return self._rules[pending[0] if pending else directory]

    def _rules_of(self, directory: str) -> tuple[Rule, ...]:
        base = f"{directory}/" if directory else ""
        found = read_rules(os.fsdecode(self._read(directory)), base=base)
        if not directory and self._repository is not None:
            excluded = os.fsdecode(self._repository.excludes())
            return read_rules(excluded, base="") + found
        return found

    def _read(self, directory: str) -> bytes:
        name = f"{directory}/.gitignore" if directory else ".gitignore"
        if name.startswith(self._prefix):
            return self._read_rules(name[len(self._prefix) :])
        assert self._repository is not None
        return _read_small(os.path.join(self._repository.root, name))


def _git_directory(at: str) -> str | None:
    path = os.path.join(at, ".git")
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return None
    if stat.S_ISDIR(mode):
        return path
    line = _first_line(path)
    return os.path.join(at, line[8:]) if line.startswith("gitdir: ") else None


def _first_line(path: str) -> str:
    lines = _read_small(path).splitlines()
    return os.fsdecode(lines[0]) if lines else ""


def _read_small(path: str) -> bytes:
    fd = _open_regular(path)
    if fd is None:
        return b""
    with open(fd, "rb") as file:
        return file.read(_MAX_RULES_BYTES)


def _open_regular(path: str) -> int | None:
    try:
        fd = os.open(path, _READ)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return None
