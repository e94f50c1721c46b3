"""The beginning of a fork: what each of its requests starts with, and what had to be changed."""

from __future__ import annotations

import msgspec

from forkrun.models.base import Layout

MAX_REQUEST_BYTES = 32_000_000
"""The Messages API refuses a larger body with status 413."""


class Repair(msgspec.Struct, frozen=True, kw_only=True):
    """What was done so that the model accepts the snapshot.

    `strategy` is how open calls at the end were closed: "placeholder", "cut", or "none" where no
    call was open. `tool_use_ids` are those calls. `notes` say in words what else was changed.
    """

    strategy: str = "none"
    tool_use_ids: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class ForkedStart(msgspec.Struct, frozen=True, kw_only=True):
    """What a forked conversation starts with.

    `params`: the parent's parameters but `messages`, as JSON. `prefix`: the JSON of each message
    that is sent as the parent sent it. `opening`: the JSON of the user message that follows; it
    ends with the brace of its last block and "]}". `size_bytes`: about how long the body of the
    first request is; `layout`: how it is written. `tail_marks`: how many cache marks the parent
    left free. `call_ids`: those of the parent's calls, which no later call may use again.
    `prefix_sha256` names what the parent and its forks have in common.
    """

    params: dict[str, msgspec.Raw]
    prefix: tuple[bytes, ...]
    opening: bytes
    size_bytes: int
    betas: tuple[str, ...] = ()
    tail_marks: int = 2
    layout: Layout | None = None
    call_ids: frozenset[str] = frozenset()
    prefix_sha256: str = ""
    repair: Repair = Repair()
