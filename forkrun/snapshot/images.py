"""Images and documents as the API wants them: what they say they are, decodable, not too much.

What cannot be sent becomes a text block that names its type and the reason, so that the model knows
that something stood there.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from forkrun.errors import InputError
from forkrun.snapshot.notes import Notes
from forkrun.snapshot.shape import Block, Message, text_block

_MEDIA = frozenset({"image", "document"})

Change = tuple[Block, str]
"""What stands in the place of a block, and what is said of it."""


def mend_media(messages: list[Message], notes: Notes) -> None:
    """Correct the type of images that are another kind, replace what cannot be decoded."""

    def mend(block: Block) -> Change | None:
        source = block.value("source")
        if not isinstance(source, dict) or source.get("type") != "base64":
            return None
        declared = str(source.get("media_type"))
        found = _kind(source.get("data"))
        if found == declared:
            return None
        if block.type == "image" and found.startswith("image/"):
            source["media_type"] = found
            said = f"the type of an image was corrected: {found}, not {declared}"
            return block.with_fields(source=_json(source)), said
        if block.type == "document" and not found.startswith("!") and declared != "application/pdf":
            return None
        reason = found[1:] if found.startswith("!") else "the data is something else"
        return _placeholder(block, reason)

    for message in messages:
        _replace_media(message, mend, notes)


def _kind(data: Any) -> str:
    """Give the media type that the data has, or "!" and the reason why it has none."""
    if not isinstance(data, str) or not data:
        return "!there is no data"
    if data.startswith("data:"):
        return "!the data is a data: address, not base64"
    try:
        plain = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return "!the data is not base64"
    for magic, media_type in _MAGIC.items():
        if plain.startswith(magic):
            return media_type
    if plain.startswith(b"RIFF") and plain[8:12] == b"WEBP":
        return "image/webp"
    return "application/pdf" if b"%PDF-" in plain[:1024] else "unknown"


_MAGIC = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}


def shed_media(
    messages: list[Message], notes: Notes, *, max_bytes: int, room_bytes: int, other_bytes: int
) -> int:
    """Replace the oldest images and documents until the request fits; give its size in bytes.

    `room_bytes` are left free where media can make way for it. Raises `InputError` where it does
    not fit without them either.
    """
    total = other_bytes + sum(len(message.to_json()) + 1 for message in messages)
    goal = max_bytes - room_bytes

    def shed(block: Block) -> Change | None:
        nonlocal total
        smaller, said = _placeholder(block, "the request was too large")
        if total <= goal or len(block.raw) <= len(smaller.raw):
            return None
        total -= len(block.raw) - len(smaller.raw)
        return smaller, said

    for message in messages:
        if total > goal:
            _replace_media(message, shed, notes)
    if total > max_bytes:
        raise InputError(
            f"snapshot: the request would be larger than {max_bytes} bytes: {total}",
            hint="compact the conversation, or fork from an earlier point",
        )
    return total


def media_of(message: Message) -> Iterator[Block]:
    """Give the images and documents of a message, those in results of tools included."""
    for block in message.blocks:
        if block.type in _MEDIA:
            yield block
        elif block.is_result and _holds_media(block):
            yield from (inner for inner in _inner(block) if inner.type in _MEDIA)


def _replace_media(
    message: Message, change: Callable[[Block], Change | None], notes: Notes
) -> None:
    for position, block in enumerate(message.blocks):
        changed, said = _changed(block, change)
        if changed is not None:
            message.blocks[position] = changed
            message.touch()
        for each in said:
            notes.add(each, message=message, block=block)


def _changed(
    block: Block, change: Callable[[Block], Change | None]
) -> tuple[Block | None, list[str]]:
    """Give a block with its media changed, or None where none was, and what was done to each."""
    if block.type in _MEDIA:
        new, said = change(block) or (None, "")
        return new, [said] if new else []
    if not block.is_result or not _holds_media(block):
        return None, []
    inner = _inner(block)
    changes = [change(each) if each.type in _MEDIA else None for each in inner]
    said_of_all = [done[1] for done in changes if done]
    if not said_of_all:
        return None, []
    pairs = zip(inner, changes, strict=True)
    content = b",".join((done[0] if done else old).raw for old, done in pairs)
    return block.with_fields(content=b"[" + content + b"]"), said_of_all


def _holds_media(block: Block) -> bool:
    return b'"source"' in block.raw


def _inner(block: Block) -> list[Block]:
    return [Block(raw) for raw in block.inner()]


def _placeholder(block: Block, reason: str) -> Change:
    source = block.value("source")
    media_type = source.get("media_type") if isinstance(source, dict) else None
    said = f"{media_type or block.type} left out: {reason}"
    replaced = Block(text_block(f"[{said}]"), index=block.index)
    mark = block.fields().get("cache_control")
    return (replaced if mark is None else replaced.with_fields(cache_control=bytes(mark))), said


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value)
