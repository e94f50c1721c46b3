"""Content blocks as bytes: taken apart and put together without decoding what they hold.

A block of a reply is sent back in every later request, and a provider checks some of it by
signature. So its fields stay the bytes that came; the one thing that is mended is the `input` of a
tool call, since a request whose history holds an input that is no object is refused.
"""

from __future__ import annotations

from typing import Any

import msgspec

Fields = dict[str, msgspec.Raw]
"""One block: the JSON of each field, in the order in which it came."""

EMPTY_OBJECT = msgspec.Raw(b"{}")
CALL_TYPES = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
_fields = msgspec.json.Decoder(Fields)


class Typed(msgspec.Struct):
    """The one field that every block has."""

    type: str


def with_object_input(block: bytes) -> bytes:
    """Give the block as it is, unless it is a tool call whose `input` is missing or no object.

    An object that came as JSON text becomes that object, anything else `{}`. Raises
    `msgspec.DecodeError` for what is no block.
    """
    if msgspec.json.decode(block, type=Typed).type not in CALL_TYPES:
        return block
    fields = _fields.decode(block)
    given = bytes(fields.get("input", b"null"))
    mended = object_input(given)
    return (
        block if mended == given else msgspec.json.encode(fields | {"input": msgspec.Raw(mended)})
    )


def object_input(given: bytes) -> bytes:
    """Give the JSON object that an input is meant to be: itself, the one in its text, or `{}`."""
    value = _decoded(given)
    if isinstance(value, str):
        given = value.encode("utf-8", "replace")
        value = _decoded(given)
    return given if isinstance(value, dict) else b"{}"


def _decoded(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
