"""What became of the changes of a run, as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from forkrun.result import Change, Failure, Flagged, LimitHit, Withheld
from forkrun.text import sayable

if TYPE_CHECKING:
    from forkrun.workspace.commit import Recovery

Act = Literal["commit", "keep", "discard"]
"""What becomes of the changes: `keep` keeps them as a patch."""


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the changes. `ignored` counts those that git ignores; `diffstat` is text for
    people; `limit` says that the view was full; `error` says why a commit that should have been
    could not be (`is_conflict`: because somebody else changed the same files); `recovered` is what
    had to be made good before it. Bytes of paths that are not UTF-8 stand as `\\xNN`."""

    changes: tuple[Change, ...] = ()
    withheld: tuple[Withheld, ...] = ()
    flagged: tuple[Flagged, ...] = ()
    ignored: int = 0
    committed: bool = False
    patch: str | None = None
    size_bytes: int | None = None
    diffstat: str = ""
    is_conflict: bool = False
    limit: LimitHit | None = None
    error: Failure | None = None
    recovered: tuple[Recovery, ...] = ()


def in_words(recovery: Recovery) -> Recovery:
    """Give it with paths that can be encoded."""
    return msgspec.structs.replace(recovery, paths=tuple(map(sayable, recovery.paths)))
