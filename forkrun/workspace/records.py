"""What the parts of the transaction hand to each other: plain records, and no behaviour.

Paths are relative to the workspace, with "/" between the parts and bytes that are not UTF-8 as
surrogates (PEP 383). The workspace itself never is an entry.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

Kind = Literal["added", "modified", "deleted", "mode", "symlink"]
NodeType = Literal["file", "directory", "symlink", "special"]


class Node(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What stands at a path. `mode` is the 12 permission bits, `target` where a link points.

    `inode`, `mtime_ns` and `ctime_ns` are those of the workspace's own entry, and 0 for a node
    that is only in the view. "special" is what is never written: FIFOs, sockets, devices.
    """

    type: NodeType
    mode: int
    size: int = 0
    target: str = ""
    inode: int = 0
    mtime_ns: int = 0
    ctime_ns: int = 0


class Change(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One difference between the workspace and the view; `before` or `after` is None for nothing.

    A path whose type changes from or to a directory has two: a deletion and an addition.
    `conflict` says what somebody else did to the path since the start ("changed", "created",
    "deleted"), or is None.
    """

    path: str
    kind: Kind
    before: Node | None = None
    after: Node | None = None
    conflict: str | None = None


class Withheld(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A path (and, where it ends in "/", all beneath it) that is not committed, and why."""

    path: str
    reason: str


class Source(Protocol):
    """Where the new contents come from."""

    def open_file(self, path: str) -> int:
        """Return a descriptor of the regular file at `path`, to be closed by the caller."""
        ...


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """All differences, sorted by path, and where their contents are.

    `source` holds the new contents and `workspace` the old ones; both are borrowed and end with
    the view. `withheld` are entries that cannot be committed at all.
    """

    workspace: str
    entries: tuple[Change, ...]
    source: Source
    old: Source
    withheld: tuple[Withheld, ...] = ()
