"""Reads a reply of the model (text, calls, blocks for the history) and writes results as blocks.

A block goes on as the very bytes that came, with two exceptions, without which the next request
would be refused: an input that is no object becomes one, and an id used twice becomes unique.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import msgspec

from forkrun.models.base import Reply
from forkrun.prompts import NO_OUTPUT
from forkrun.protocol import Image, ToolCall, ToolResult
from forkrun.text import printable

NOTE_CHARS = 2_000
"""What a tool may say beside its output: what was cut, which processes were ended."""
DENIAL_CHARS = 2_000
MAX_IMAGES = 4
MAX_IMAGE_BYTES = 5 * 1024 * 1024
"""As the Messages API takes them."""
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What a reply says. `faults` names the calls whose input was no object, by id."""

    text: str
    calls: tuple[ToolCall, ...]
    blocks: tuple[bytes, ...]
    faults: dict[str, str]


class _Block(msgspec.Struct):
    type: str
    text: str = ""
    id: str = ""
    name: str = ""
    input: msgspec.Raw = msgspec.Raw(b"{}")


def read_reply(reply: Reply, *, used_ids: Set[str]) -> Reading:
    """Read a reply whose call ids must differ from `used_ids`.

    Raises msgspec.MsgspecError for a block that is no object with a type.
    """
    texts: list[str] = []
    calls: list[ToolCall] = []
    blocks: list[bytes] = []
    faults: dict[str, str] = {}
    taken = set(used_ids)
    for raw in reply.content:
        block = msgspec.json.decode(raw, type=_Block)
        if block.type == "text":
            texts.append(block.text)
        if block.type != "tool_use":
            blocks.append(raw)
            continue
        call_id = _unique(block.id or "toolu", taken)
        taken.add(call_id)
        text, fault = _object(bytes(block.input))
        if fault:
            faults[call_id] = fault
        calls.append(ToolCall(id=call_id, name=block.name, input=text))
        unchanged = call_id == block.id and text == bytes(block.input)
        blocks.append(raw if unchanged else _rewritten(raw, call_id=call_id, text=text))
    return Reading(text="".join(texts), calls=tuple(calls), blocks=tuple(blocks), faults=faults)


def result_block(result: ToolResult) -> bytes:
    """Give the JSON of the tool_result block for this result."""
    content: list[dict[str, Any]] | str = result.text if result.text.strip() else NO_OUTPUT
    if result.images:
        pictures = [_image(image) for image in result.images]
        content = [*([{"type": "text", "text": content}] if result.text.strip() else []), *pictures]
    block = {"type": "tool_result", "tool_use_id": result.id, "content": content}
    return msgspec.json.encode(block | {"is_error": True} if result.is_error else block)


def bounded(result: ToolResult, *, max_chars: int) -> ToolResult:
    """Give a result as large as a tool of ours makes it, whatever the child has sent."""
    max_chars = DENIAL_CHARS if result.denied else max_chars + NOTE_CHARS
    text = result.text
    if len(text) > max_chars:
        text = text[:max_chars] + "\n[cut: the result was larger than a tool's may be]"
    images = tuple(
        image
        for image in result.images[:MAX_IMAGES]
        if image.media_type in IMAGE_TYPES and len(image.content) <= MAX_IMAGE_BYTES
    )
    return msgspec.structs.replace(
        result, text=printable(text) if result.denied else text, images=images
    )


def _image(image: Image) -> dict[str, Any]:
    source = {"type": "base64", "media_type": image.media_type, "data": image.content}
    return {"type": "image", "source": source}  # msgspec writes bytes as base64


def _unique(wanted: str, taken: Set[str]) -> str:
    candidate, number = wanted, 2
    while candidate in taken:
        candidate = f"{wanted}_{number}"
        number += 1
    return candidate


def _object(text: bytes) -> tuple[bytes, str | None]:
    """Give the JSON of an object for this input, and what was wrong with it, if anything."""
    if text.lstrip()[:1] == b"{":
        return text, None
    value = msgspec.json.decode(text)
    if isinstance(value, str) and value.lstrip()[:1] == "{":
        try:
            inner = msgspec.json.decode(value)
        except msgspec.DecodeError:
            inner = None
        if isinstance(inner, dict):
            return msgspec.json.encode(inner), None
    return b"{}", f"the input must be a JSON object, not {_kind(value)}"


def _kind(value: object) -> str:
    names = {str: "a string", list: "an array", type(None): "null", bool: "a boolean"}
    return names.get(type(value), "a number")


def _rewritten(raw: bytes, *, call_id: str, text: bytes) -> bytes:
    fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    fields["id"] = msgspec.Raw(msgspec.json.encode(call_id))
    fields["input"] = msgspec.Raw(text)
    return msgspec.json.encode(fields)
