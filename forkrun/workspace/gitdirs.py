"""Directories that git takes for a repository whatever they are called.

Git looks at every directory on the way up from where it is run, and takes one with `HEAD`,
`objects` and `refs` (or `HEAD` and `commondir`: a worktree's) for a bare repository; then it does
what that one's `config` says, which can be to run commands (setup.c, is_git_directory;
git-config(1), core.fsmonitor, safe.bareRepository). Links count as what they may point to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from forkrun.workspace.changes import join

_MARKS = (("HEAD", "objects", "refs"), ("HEAD", "commondir"))
_AT_THE_TOP = frozenset(
    {
        *("head", "objects", "refs", "commondir", "config", "config.worktree", "hooks", "info"),
        *("index", "packed-refs", "logs", "modules", "worktrees", "gitdir", "shallow"),
    }
)


class GitDirectories:
    """Finds them among what stands in a workspace (`stands`) and the new paths together.

    Together, so that one cannot be made in two runs, nor be made of one that is there.
    """

    def __init__(self, new_paths: Iterable[str], *, stands: Callable[[str], bool]) -> None:
        self._new = {path.casefold() for path in new_paths}
        self._stands = stands
        self._found: dict[str, str | None] = {}

    def part(self, path: str) -> str | None:
        """Return the path down to the topmost such directory, or None.

        Where the workspace itself is one, only what git reads in it counts: "config".
        """
        top, _, _ = path.partition("/")
        if self._above("") == "" and top.casefold() in _AT_THE_TOP:
            return top
        return self._above(path.rpartition("/")[0]) or self._own(path)

    def _own(self, path: str) -> str | None:
        return path if self._is_one(path) else None

    def _above(self, directory: str) -> str | None:
        pending = []
        while directory not in self._found and directory:
            pending.append(directory)
            directory = directory.rpartition("/")[0]
        if directory not in self._found:
            self._found[""] = "" if self._is_one("") else None
        part = self._found[directory]
        for each in reversed(pending):
            part = self._found[each] = part or self._own(each)
        return part

    def _is_one(self, directory: str) -> bool:
        return any(all(self._has(join(directory, name)) for name in marks) for marks in _MARKS)

    def _has(self, path: str) -> bool:
        return path.casefold() in self._new or self._stands(path)
