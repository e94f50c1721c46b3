"""What an MCP server says, made fit for a model: names, definitions, results. For both sides.

Nothing a server says is believed: names are held to what the Messages API takes, texts are cleaned,
everything is bounded, and what does not fit is left out and named.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from forkrun.protocol import Image, ServerTool
from forkrun.text import printable

PREFIX = "mcp__"
MAX_TOOLS = 128
MAX_DESCRIPTION_CHARS = 4_000
MAX_SCHEMA_BYTES = 32 * 1024
MAX_IMAGES = 8
MAX_IMAGE_BYTES = 3_750_000  # 5 MB of base64, the most that the Messages API takes
MAX_IMAGES_BYTES = 10_000_000

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")  # of the Messages API
_PROPERTY = re.compile(r"[A-Za-z0-9_.-]{1,64}")  # of the Messages API
_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")
_MAGIC = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """The tools of one server: definitions, each with the server's own name of it, and the names of
    those that are left out."""

    tools: tuple[tuple[str, ServerTool], ...]
    left_out: tuple[str, ...] = ()


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a call, not yet cut to a length."""

    text: str
    is_error: bool = False
    images: tuple[Image, ...] = ()


def offer_of(server: str, listed: Iterable[Any]) -> Offer:
    """Give what a server's list of tools offers to a model, under the names `mcp__server__tool`."""
    found: dict[str, tuple[str, ServerTool]] = {}
    left_out: list[str] = []
    for each in listed:
        name = each.get("name") if isinstance(each, dict) else None
        if not isinstance(name, str):
            continue
        tool = ServerTool(
            name=f"{PREFIX}{server}__{_FOREIGN.sub('_', name)}",
            description=str(each.get("description") or each.get("title") or ""),
            schema=msgspec.json.encode(each.get("inputSchema")),
        )
        fit = fitted(tool, server=server)
        if fit is None or fit.name in found or len(found) >= MAX_TOOLS:
            left_out.append(printable(name[:128]))
        else:
            found[fit.name] = (name, fit)
    return Offer(tools=tuple(found.values()), left_out=tuple(left_out[:MAX_TOOLS]))


def fitted(tool: ServerTool, *, server: str) -> ServerTool | None:
    """Give a tool as the Messages API takes it, or None where it cannot."""
    is_own = tool.name.startswith(f"{PREFIX}{server}__")
    if not is_own or not _TOOL_NAME.fullmatch(tool.name) or len(tool.schema) > MAX_SCHEMA_BYTES:
        return None
    try:
        schema = msgspec.json.decode(tool.schema, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    properties = schema.get("properties", {})
    if schema.get("type", "object") != "object" or not isinstance(properties, dict):
        return None
    if not all(_PROPERTY.fullmatch(name) for name in properties):
        return None
    # The API refuses these at the top; the server itself still judges by them.
    kept = {key: value for key, value in schema.items() if key not in ("oneOf", "anyOf", "allOf")}
    return ServerTool(
        name=tool.name,
        description=printable(tool.description[:MAX_DESCRIPTION_CHARS]),
        schema=msgspec.json.encode(kept | {"type": "object"}),
    )


def read_result(result: Any) -> Said:
    """Read the result of tools/call: its blocks in their order as one text, and its images."""
    if not isinstance(result, dict):
        return Said(text="the server's answer is no result", is_error=True)
    blocks = result.get("content")
    parts: list[str] = []
    images: list[Image] = []
    for block in blocks if isinstance(blocks, list) else ():
        if isinstance(block, dict):
            _take(block, parts, images)
    if not parts and not images and result.get("structuredContent") is not None:
        parts.append(printable(msgspec.json.encode(result["structuredContent"]).decode()))
    return Said(text="\n".join(parts), is_error=result.get("isError") is True, images=tuple(images))


def _take(block: Mapping[str, Any], parts: list[str], images: list[Image]) -> None:
    match block:
        case {"type": "text", "text": str(text)}:
            parts.append(printable(text))
        case {"type": "image", "data": str(encoded)}:
            _take_image(encoded, block.get("mimeType"), parts, images)
        case {"type": "resource", "resource": {"text": str(text)} as resource}:
            parts.append(f"[{_short(resource.get('uri'))}]\n{printable(text)}")
        case {"type": "resource", "resource": {"blob": str(encoded)} as resource}:
            parts.append(f"[{_short(resource.get('uri'))}]")
            _take_image(encoded, resource.get("mimeType"), parts, images)
        case {"type": "resource_link"}:
            parts.append(f"[a link: {_short(block.get('name'))} {_short(block.get('uri'))}]")
        case _:
            kind = _short(block.get("mimeType") or block.get("type"))
            parts.append(f"[left out, since it cannot be shown here: {kind}]")


def _take_image(encoded: str, claimed: Any, parts: list[str], images: list[Image]) -> None:
    try:
        content = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        content = b""
    kind = media_type(content)
    room = MAX_IMAGES_BYTES - sum(len(image.content) for image in images)
    if kind is None:
        parts.append(f"[left out, since it cannot be shown here: {_short(claimed)}]")
    elif len(images) >= MAX_IMAGES or len(content) > min(MAX_IMAGE_BYTES, room):
        parts.append(f"[an image too many or too large was left out: {len(content)} bytes]")
    else:
        images.append(Image(media_type=kind, content=content))


def media_type(content: bytes) -> str | None:
    """Give the type of an image that the Messages API takes, by what it is."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in _MAGIC.items() if content.startswith(magic)), None)


def _short(value: Any) -> str:
    return " ".join(printable(str(value)[:300]).split())
