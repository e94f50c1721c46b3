"""What of the workspace rules let be written and withhold from reading, for sandbox and commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from forkrun.catalog import WRITERS
from forkrun.policy.paths import PathPattern
from forkrun.policy.rules import Rule

_Rules = Sequence[Rule]


class WritableScope(msgspec.Struct, frozen=True):
    """What may be written, all paths relative to the workspace.

    `everything` is true where no allow rule narrows it. Otherwise `literals` are single files (or
    directories, where one is of that name), `subtrees` directories with all beneath ("" for the
    workspace) and `patterns` what only a walk can expand. `excepted` are the patterns that deny
    rules take away again. `may_write` decides for one path and is what a commit asks. What is
    mounted writable in a live workspace is worked out from these and may be coarser.
    """

    everything: bool
    literals: tuple[str, ...]
    subtrees: tuple[str, ...]
    patterns: tuple[str, ...]
    excepted: tuple[str, ...]
    may_write: Callable[[str], bool]

    @property
    def nothing(self) -> bool:
        """Whether no path at all can be written."""
        return not (self.everything or self.literals or self.subtrees or self.patterns)


class Unreadable(msgspec.Struct, frozen=True):
    """What deny rules withhold: `literals` are paths relative to the workspace, `patterns` what
    only a walk can expand; a directory that is covered is covered with all beneath."""

    literals: tuple[str, ...]
    patterns: tuple[str, ...]
    compiled: tuple[PathPattern, ...]

    def covers(self, path: str) -> bool:
        """Say whether this path, relative to the workspace, is withheld."""
        return any(pattern.matches(path) for pattern in self.compiled)


def unreadable_of(denials: Iterable[Rule]) -> Unreadable:
    """Collect what rules that deny `read_file` on paths withhold."""
    compiled = tuple(r.path for r in denials if r.path is not None and r.concerns("read_file"))
    return Unreadable(
        literals=tuple(p.literal for p in compiled if p.literal is not None),
        patterns=tuple(p.text for p in compiled if p.literal is None),
        compiled=compiled,
    )


def writable_of(
    layers: Sequence[tuple[_Rules, _Rules]], *, may_write: Callable[[str], bool]
) -> WritableScope:
    """Derive the scope from (allow, deny) of each layer: from write and edit rules alone."""
    grants = [_Grants.of(allow, deny) for allow, deny in layers]
    usable = [] if any(grant.nothing for grant in grants) else grants
    patterns = [path for grant in usable for path in grant.paths]
    literals = {p.literal for p in patterns if p.literal is not None and may_write(p.literal)}
    subtrees = {p.subtree for p in patterns if p.subtree is not None}
    return WritableScope(
        everything=all(grant.everything for grant in grants),
        literals=tuple(sorted(literals)),
        subtrees=tuple(sorted(s for s in subtrees if all(g.holds_tree(s) for g in grants))),
        patterns=tuple(
            sorted({p.text for p in patterns if p.literal is None and p.subtree is None})
        ),
        excepted=tuple(
            rule.path.text
            for _, denials in layers
            for rule in denials
            if rule.path is not None and not WRITERS.isdisjoint(rule.tools or ())
        ),
        may_write=may_write,
    )


class _Grants(msgspec.Struct, frozen=True):
    """What one layer lets be written: everything, or what these patterns cover."""

    everything: bool
    paths: tuple[PathPattern, ...] = ()

    @classmethod
    def of(cls, allow: _Rules, denials: _Rules) -> _Grants:
        blanket = [rule for rule in denials if not rule.has_pattern]
        left = [tool for tool in WRITERS if not any(rule.concerns(tool) for rule in blanket)]
        granting = [rule for rule in allow if any(rule.concerns(tool) for tool in left)]
        everything = bool(left) and (not allow or any(not rule.has_pattern for rule in granting))
        paths = tuple(rule.path for rule in granting if rule.path is not None)
        return cls(everything=everything, paths=() if everything else paths)

    @property
    def nothing(self) -> bool:
        return not self.everything and not self.paths

    def holds_tree(self, directory: str) -> bool:
        """Say whether all beneath a directory is granted by one literal or subtree."""
        tops = [p.literal if p.subtree is None else p.subtree for p in self.paths]
        return self.everything or any(
            top is not None and (top == "" or f"{directory}/".startswith(f"{top}/")) for top in tops
        )
