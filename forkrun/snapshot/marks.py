"""Cache marks: at most four in a request (Messages API), those in results of tools included."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from forkrun.snapshot.notes import Notes
from forkrun.snapshot.shape import Block, Message

MAX_MARKS = 4
LOOKBACK_BLOCKS = 20
"""A mark finds an older cache entry at most this many blocks before it (Messages API)."""

_KEY = b'"cache_control"'


class _Mark(NamedTuple):
    message: Message
    position: int
    inner: int | None  # of the block in a result's content
    blocks_after: int


def unmark_thinking(messages: list[Message], notes: Notes) -> None:
    """Take marks off thinking blocks, which cannot carry one."""
    for message in messages:
        for position, block in enumerate(message.blocks):
            if block.is_thinking and _KEY in block.raw and "cache_control" in block.fields():
                message.blocks[position] = block.with_fields(cache_control=None)
                message.touch()
                notes.add("a cache mark on thinking was taken off", message=message, block=block)


def make_room(
    params: dict[str, bytes], messages: list[Message], notes: Notes
) -> tuple[dict[str, bytes], int]:
    """Take marks off until one more fits at the end; give the parameters and the number that fit.

    Marks of tools and system stay, unless they alone are too many. In the messages the oldest goes
    first; the last one, where the parent's cache ends, goes only where a mark at the end finds
    the cache without it, or where there would be five.
    """
    # The top-level parameter marks the end of each request by itself, and takes one of the four.
    automatic = msgspec.json.decode(params.get("cache_control", b"null")) is not None
    limit = MAX_MARKS - automatic
    params, fixed = _limit_fixed(params, limit)
    marks = _marks(messages)
    while marks and fixed + len(marks) > limit:
        _take_off(marks.pop(0), notes)
    if automatic:
        return params, 0
    if marks and fixed + len(marks) == MAX_MARKS:
        reachable = len(marks) > 1 or marks[0].blocks_after < LOOKBACK_BLOCKS - 1
        if reachable:
            _take_off(marks.pop(0), notes)
    return params, MAX_MARKS - fixed - len(marks)


def _take_off(mark: _Mark, notes: Notes) -> None:
    message, position, inner, _ = mark
    block = message.blocks[position]
    if inner is None:
        changed = block.with_fields(cache_control=None)
    else:
        content = [Block(raw) for raw in block.inner()]
        content[inner] = content[inner].with_fields(cache_control=None)
        changed = block.with_fields(content=b"[" + b",".join(b.raw for b in content) + b"]")
    message.blocks[position] = changed
    message.touch()
    notes.add("a cache mark gave way to newer ones", message=message, block=block)


def _marks(messages: list[Message]) -> list[_Mark]:
    """Find the marks in messages, oldest first."""
    found = []
    after = sum(len(message.blocks) for message in messages)
    for message in messages:
        for position, block in enumerate(message.blocks):
            after -= 1
            if _KEY not in block.raw:
                continue
            inner = _inner_marks(block)
            found += [_Mark(message, position, index, after) for index in inner]
            if _is_marked(block):
                found.append(_Mark(message, position, None, after))
    return found


def _is_marked(block: Block) -> bool:
    return _KEY in block.raw and block.value("cache_control") is not None


def _inner_marks(block: Block) -> list[int]:
    inner = block.inner() if block.is_result else []
    return [index for index, raw in enumerate(inner) if _is_marked(Block(raw))]


def _limit_fixed(params: dict[str, bytes], limit: int) -> tuple[dict[str, bytes], int]:
    """Count the marks of tools and system; of more than fit, take the first ones off."""
    lists = {name: msgspec.json.decode(params.get(name, b"null")) for name in ("tools", "system")}
    marked: list[tuple[str, dict[str, Any]]] = [
        (name, item)
        for name, items in lists.items()
        if isinstance(items, list)
        for item in items
        if isinstance(item, dict) and item.get("cache_control") is not None
    ]
    excess = marked[: max(0, len(marked) - limit)]
    for _, item in excess:
        del item["cache_control"]
    changed = {name: _json(lists[name]) for name in {name for name, _ in excess}}
    return params | changed, len(marked) - len(excess)


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value)
