"""Choose what of the changes is to be committed, and say why the rest is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from forkrun.workspace.dirs import Tree
from forkrun.workspace.gitdirs import GitDirectories
from forkrun.workspace.gitfiles import Ignored, find_repository, rules_of
from forkrun.workspace.protected import PROTECTED, Protection
from forkrun.workspace.records import Change, Changes, Withheld
from forkrun.workspace.views import View

IGNORED = "ignored by git"


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """`changes` may be committed, `withheld` may not; `ignored` counts what git ignores."""

    changes: Changes
    withheld: tuple[Withheld, ...]
    ignored: int


def select_changes(
    view: View,
    changes: Changes,
    *,
    may_write: Callable[[str], bool],
    named: Callable[[str], bool] = lambda path: False,
    protected: Iterable[str] = PROTECTED,
    commit_ignored: bool = False,
) -> Selection:
    """Part the changes into what may be committed and what is withheld.

    `may_write` says whether the write and edit rules allow a path, `named` whether a rule names it
    literally, which lifts the protection of configuration. A directory is made where something in
    it is committed, and removed only where everything in it is.
    """
    chooser = _Chooser(
        may_write=may_write,
        named=named,
        protection=Protection(protected),
        git_directories=GitDirectories(
            (each.path for each in changes.entries if each.after is not None),
            stands=lambda path: _may_stand(view.tree, path),
        ),
    )
    ignored = None if commit_ignored else _ignored_by_git(view, changes, chooser)
    verdicts = [(each, chooser.verdict(each, ignored)) for each in changes.entries]
    blocked = _blocked(verdicts, changes.withheld)
    filled = _above(each.path for each in changes.entries if each.after is not None)
    filled |= _above(each.path for each in changes.withheld)
    chosen = _with_parents(
        [each for each, verdict in verdicts if verdict is None and not blocked(each)],
        changes.entries,
        filled=filled,
    )
    kept = {(each.path, each.after is None) for each in chosen}
    withheld = list(changes.withheld)
    for each, verdict in verdicts:
        if (each.path, each.after is None) in kept or verdict == _GROUPED:
            continue
        if verdict or not (_is_new_directory(each) and each.path in filled):
            reason = verdict or "it depends on a change that is withheld"
            withheld.append(Withheld(path=_shown(each), reason=reason))
    return Selection(
        changes=msgspec.structs.replace(changes, entries=tuple(chosen), withheld=()),
        withheld=tuple(sorted(withheld + chooser.groups(), key=lambda each: each.path)),
        ignored=chooser.ignored,
    )


_GROUPED = "grouped"


class _Chooser:
    """Judges paths one by one, and counts those that stand together under one name."""

    def __init__(
        self,
        *,
        may_write: Callable[[str], bool],
        named: Callable[[str], bool],
        protection: Protection,
        git_directories: GitDirectories,
    ) -> None:
        self._may_write = may_write
        self._named = named
        self._protection = protection
        self._git_directories = git_directories
        self.ignored = 0
        self._counts: dict[tuple[str, str], int] = {}

    def verdict(self, change: Change, ignored: Ignored | None) -> str | None:
        """Return None where the change may be committed, else the reason or `_GROUPED`."""
        part = self.protected_part(change.path)
        if part is not None:
            self._count(part, reason="protected: only a rule that names the path allows it")
            return _GROUPED
        if (part := self.git_directory(change.path)) is not None:
            self._count(part, reason="git takes it for a repository, and runs what its config says")
            return _GROUPED
        above = ignored(change.path, is_directory=_is_directory(change)) if ignored else None
        if above is not None:
            self.ignored += 1
            self._count(above, reason=IGNORED)
            return _GROUPED
        if not self._may_write(change.path):
            return "no rule allows writing it"
        return None

    def protected_part(self, path: str) -> str | None:
        """Return the protected part of a path that no rule names."""
        part = self._protection.part(path)
        return None if part is None or self._named(path) else part

    def git_directory(self, path: str) -> str | None:
        """Return the part of a path that is a repository, where no rule names the path."""
        part = self._git_directories.part(path)
        return None if part is None or self._named(path) else part

    def allows(self, path: str) -> bool:
        """Whether a path is neither protected nor outside the rules."""
        parts = (self.protected_part(path), self.git_directory(path))
        return parts == (None, None) and self._may_write(path)

    def groups(self) -> list[Withheld]:
        """Return one record for each name under which changes were withheld together."""
        return [
            Withheld(path=path, reason=reason if count == 1 else f"{reason} ({count} changes)")
            for (path, reason), count in self._counts.items()
        ]

    def _count(self, path: str, *, reason: str) -> None:
        self._counts[path, reason] = self._counts.get((path, reason), 0) + 1


def _may_stand(tree: Tree, path: str) -> bool:
    """Whether something is at a path; where that cannot be seen, it may be."""
    try:
        return tree.lstat(path) is not None
    except OSError:
        return True


def _ignored_by_git(view: View, changes: Changes, chooser: _Chooser) -> Ignored:
    """Judge by the rule files as the commit would leave them."""
    new = {
        each.path: each.after
        for each in changes.entries
        if each.path.rpartition("/")[2] == ".gitignore" and chooser.allows(each.path)
    }
    source = changes.source
    assert isinstance(source, Tree)
    old_rules, new_rules = rules_of(view.tree), rules_of(source)

    def read(path: str) -> bytes:
        if path not in new:
            return old_rules(path)
        return b"" if new[path] is None else new_rules(path)

    return Ignored(read, repository=view.repository or find_repository(view.workspace))


def _blocked(
    verdicts: list[tuple[Change, str | None]], unable: tuple[Withheld, ...]
) -> Callable[[Change], bool]:
    """Return what is impossible because of what stays: a directory's removal, what replaces it."""
    staying = {each.path for each, verdict in verdicts if verdict and each.before is not None}
    staying |= {each.path.rstrip("/") for each in unable}
    above = _above(staying)
    replaced = {
        each.path
        for each, verdict in verdicts
        if each.after is None and (verdict or each.path in above)
    }

    below: dict[str, bool] = {"": False}

    def is_replaced(directory: str) -> bool:
        pending = []
        while directory not in below:
            pending.append(directory)
            directory = directory.rpartition("/")[0]
        verdict = below[directory]
        for each in reversed(pending):
            verdict = below[each] = verdict or each in replaced
        return verdict

    def is_blocked(change: Change) -> bool:
        if change.after is None:
            return change.path in above
        return change.path in replaced or is_replaced(change.path.rpartition("/")[0])

    return is_blocked


def _with_parents(
    chosen: list[Change], entries: tuple[Change, ...], *, filled: set[str]
) -> list[Change]:
    """Add the new directories that what is chosen needs, and drop those left with nothing in them.

    A directory that is empty in the view as well stays.
    """
    kept = {id(each) for each in chosen if not (_is_new_directory(each) and each.path in filled)}
    needed = _above(each.path for each in chosen if each.after is not None and id(each) in kept)
    return [
        each
        for each in entries
        if id(each) in kept or (_is_new_directory(each) and each.path in needed)
    ]


def _above(paths: Iterable[str]) -> set[str]:
    """Collect the directories above paths; each is met once, however deep the tree is."""
    found: set[str] = set()
    for path in paths:
        parent = path.rpartition("/")[0]
        while parent and parent not in found:
            found.add(parent)
            parent = parent.rpartition("/")[0]
    return found


def _is_directory(change: Change) -> bool:
    node = change.after or change.before
    return node is not None and node.type == "directory"


def _is_new_directory(change: Change) -> bool:
    return change.before is None and _is_directory(change)


def _shown(change: Change) -> str:
    return change.path + "/" if _is_directory(change) else change.path
