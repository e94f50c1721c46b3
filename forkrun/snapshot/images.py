"""Images and documents as the API wants them: what they say they are, decodable, not too much.

What cannot be sent becomes a text block that names its type and the reason, so that the model knows
that something stood there.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from ..errors import InputError
from .notes import Notes
from .shape import Block, Message, text_block

_MEDIA = frozenset({"image", "document"})
_ROOM_BYTES = 1_000_000
"""What is left free when media are shed, so that the turns that follow fit as well."""


def mend_media(messages: list[Message], notes: Notes) -> None:
    """Correct the type of images that are another kind, replace what cannot be decoded."""

    def mend(block: Block) -> Block | None:
        source = block.value("source")
        if not isinstance(source, dict) or source.get("type") != "base64":
            return None
        declared = str(source.get("media_type"))
        found = _kind(source.get("data"))
        if found == declared:
            return None
        if block.type == "image" and found.startswith("image/"):
            source["media_type"] = found
            return block.with_fields(source=_json(source))
        if block.type == "document" and not found.startswith("!") and declared != "application/pdf":
            return None
        reason = found[1:] if found.startswith("!") else "the data is something else"
        return _placeholder(block, reason)

    for message in messages:
        _replace_media(message, mend, notes, "media that are not what they say were mended")


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
    messages: list[Message], notes: Notes, *, max_bytes: int, other_bytes: int = 0
) -> None:
    """Replace the oldest images and documents until the request fits; raise `InputError` else."""
    total = other_bytes + sum(len(message.to_json()) + 1 for message in messages)
    if total <= max_bytes:
        return
    goal = max(max_bytes - _ROOM_BYTES, max_bytes // 2)

    def shed(block: Block) -> Block | None:
        nonlocal total
        smaller = _placeholder(block, "the request was too large")
        if total <= goal or len(block.raw) <= len(smaller.raw):
            return None
        total -= len(block.raw) - len(smaller.raw)
        return smaller

    for message in messages:
        if total > goal:
            _replace_media(message, shed, notes, "media were left out to make the request fit")
    if total > max_bytes:
        raise InputError(
            f"snapshot: the request would be larger than {max_bytes} bytes: {total}",
            hint="compact the conversation, or fork from an earlier point",
        )


def media_of(message: Message) -> Iterator[Block]:
    """Give the images and documents of a message, those in results of tools included."""
    for block in message.blocks:
        if block.type in _MEDIA:
            yield block
        elif block.is_result and _holds_media(block):
            yield from (inner for inner in _inner(block) if inner.type in _MEDIA)


def _replace_media(
    message: Message, change: Callable[[Block], Block | None], notes: Notes, said: str
) -> None:
    for position, block in enumerate(message.blocks):
        changed = _changed(block, change)
        if changed is not None:
            message.blocks[position] = changed
            message.touch()
            notes.add(said, message=message, block=block)


def _changed(block: Block, change: Callable[[Block], Block | None]) -> Block | None:
    if block.type in _MEDIA:
        return change(block)
    if not block.is_result or not _holds_media(block):
        return None
    inner = _inner(block)
    changed = [change(each) if each.type in _MEDIA else None for each in inner]
    if not any(changed):
        return None
    content = b",".join((new or old).raw for old, new in zip(inner, changed, strict=True))
    return block.with_fields(content=b"[" + content + b"]")


def _holds_media(block: Block) -> bool:
    return b'"source"' in block.raw and bytes(block.fields()["content"]).startswith(b"[")


def _inner(block: Block) -> list[Block]:
    content = block.fields()["content"]
    return [Block(bytes(raw)) for raw in msgspec.json.decode(content, type=list[msgspec.Raw])]


def _placeholder(block: Block, reason: str) -> Block:
    source = block.value("source")
    media_type = source.get("media_type") if isinstance(source, dict) else None
    text = f"[{media_type or block.type} left out: {reason}]"
    replaced = Block(text_block(text), index=block.index)
    mark = block.fields().get("cache_control")
    return replaced if mark is None else replaced.with_fields(cache_control=bytes(mark))


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
