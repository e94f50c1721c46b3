"""Messages and blocks as far as rules need to tell them apart; everything else stays raw bytes.

A message that is not touched gives back the very bytes that it came with. One that is touched is
put together from the bytes of its blocks, in its own order of keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Raw

from forkrun.errors import InputError

_FIELDS = msgspec.json.Decoder(dict[str, Raw])
_LIST = msgspec.json.Decoder(list[Raw])
_NOTHING = Raw(b"")


class _Head(msgspec.Struct):
    type: str = ""
    id: Raw = _NOTHING
    tool_use_id: Raw = _NOTHING


_HEAD = msgspec.json.Decoder(_Head)


class Block:
    """One content block: its bytes, its type and the id that ties a call to its result."""

    __slots__ = ("id", "index", "raw", "type")

    def __init__(self, raw: bytes, *, index: int = 0, where: str = "block") -> None:
        try:
            head = _HEAD.decode(raw)
        except (msgspec.DecodeError, RecursionError):
            raise InputError(f"{where}: not an object with a type") from None
        self.raw = raw
        self.index = index
        self.type = head.type
        if not self.type:
            raise InputError(f"{where}: a block without a type")
        self.id = _string(head.id if head.tool_use_id is _NOTHING else head.tool_use_id)
        if self.is_call or self.is_server_call:
            self.id = _string(head.id)
            if not self.id:
                raise InputError(f"{where}: a {self.type} without an id")

    @property
    def is_call(self) -> bool:
        """A call that the client answers with a `tool_result`."""
        return self.type == "tool_use"

    @property
    def is_server_call(self) -> bool:
        """A call that the provider answers, in a block of its own."""
        return self.type in {"server_tool_use", "mcp_tool_use"}

    @property
    def is_result(self) -> bool:
        """The client's answer to a call."""
        return self.type == "tool_result"

    @property
    def is_thinking(self) -> bool:
        """Thinking, open or redacted."""
        return self.type in {"thinking", "redacted_thinking"}

    def fields(self) -> dict[str, Raw]:
        """Give the JSON of each field, in order."""
        return _FIELDS.decode(self.raw)

    def inner(self) -> list[bytes]:
        """Give the JSON of each block in its content; nothing where that is no list."""
        content = self.fields().get("content")
        if content is None or not bytes(content).startswith(b"["):
            return []
        return [bytes(raw) for raw in _LIST.decode(content)]

    def value(self, name: str) -> Any:
        """Give one field as Python objects, or None without it."""
        found = self.fields().get(name)
        return None if found is None else msgspec.json.decode(found)

    def with_fields(self, **changed: bytes | None) -> Block:
        """Give the block with some fields replaced (their JSON), added, or left out (None)."""
        fields: dict[str, Any] = self.fields() | changed
        return Block(_joined({n: v for n, v in fields.items() if v is not None}), index=self.index)


class Message:
    """One message; `blocks` may be changed, after which `touch` must be called."""

    __slots__ = ("_fields", "_raw", "_touched", "blocks", "index", "role")

    def __init__(
        self,
        *,
        role: str,
        blocks: list[Block],
        index: int,
        raw: bytes | None = None,
        fields: dict[str, Raw] | None = None,
    ) -> None:
        self.role = role
        self.blocks = blocks
        self.index = index
        self._raw = raw
        self._touched = False
        self._fields = fields or {"role": Raw(msgspec.json.encode(role)), "content": Raw(b"[]")}

    def touch(self) -> None:
        """Say that the blocks are no longer those of the bytes."""
        self._raw = None
        self._touched = True

    @property
    def is_touched(self) -> bool:
        """Whether it is no longer what it came as."""
        return self._touched

    def replace(self, blocks: Iterable[Block]) -> None:
        """Put other blocks in the place of all."""
        self.blocks = list(blocks)
        self.touch()

    @property
    def calls(self) -> list[Block]:
        """The calls that the client has to answer, in order."""
        return [block for block in self.blocks if block.is_call]

    def call_ids(self) -> list[str]:
        """Give the ids of those calls, in order."""
        return [block.id for block in self.calls]

    @property
    def results(self) -> list[Block]:
        """The client's answers, in order."""
        return [block for block in self.blocks if block.is_result]

    def to_json(self) -> bytes:
        """Give its bytes: those that it came with unless it was touched."""
        if self._raw is None:
            content = b"[" + b",".join(block.raw for block in self.blocks) + b"]"
            self._raw = _joined({**self._fields, "content": content})
        return self._raw

    def open_json(self) -> bytes:
        """Give its bytes up to where another block would stand: ending with that of the last block.

        What follows must be a comma, more blocks and "]}". Bytes that it came with are kept where
        they allow it.
        """
        if next(reversed(self._fields)) == "content":
            body = self.to_json().rstrip()[:-1].rstrip()
            if body.endswith(b"]") and self.blocks:
                return body[:-1].rstrip()
        content = b",".join(block.raw for block in self.blocks)
        rest = {name: value for name, value in self._fields.items() if name != "content"}
        return _joined(rest)[:-1] + b',"content":[' + content


def parse_message(raw: bytes, index: int, *, source: str = "snapshot") -> Message:
    """Tell the blocks of a message apart. Raises `InputError` where it is no message."""
    where = f"{source}: message {index}"
    try:
        fields = _FIELDS.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        raise InputError(f"{where}: not an object") from None
    role = _string(fields.get("role", _NOTHING))
    if role == "system":  # instructions between turns: they pass as they are
        return Message(role=role, blocks=[], index=index, raw=raw, fields=fields)
    if role not in {"user", "assistant"}:
        raise InputError(f"{where}: the role is neither user nor assistant: {role or 'none'}")
    blocks = _blocks(bytes(fields.get("content", _NOTHING)), where)
    for block in blocks:
        place = f"{where}, block {block.index}"
        if role == "user" and block.is_call:
            raise InputError(f"{place}: a tool_use in a user message")
        for inner, raw_inner in enumerate(block.inner() if block.is_result else ()):
            Block(raw_inner, where=f"{place}, content {inner}")
    return Message(role=role, blocks=blocks, index=index, raw=raw, fields=fields)


def text_block(text: str) -> bytes:
    """Give the JSON of a text block. A lone surrogate becomes U+FFFD, as JSON cannot hold it."""
    if not text.isascii():
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return msgspec.json.encode({"type": "text", "text": text})


def _blocks(content: bytes, where: str) -> list[Block]:
    if content[:1] == b'"':
        return [Block(b'{"type":"text","text":' + content + b"}")]
    if content[:1] != b"[":
        raise InputError(f"{where}: the content is neither text nor a list of blocks")
    return [
        Block(bytes(raw), index=index, where=f"{where}, block {index}")
        for index, raw in enumerate(_LIST.decode(content))
    ]


def _string(raw: Raw) -> str:
    if raw is _NOTHING:
        return ""
    text = bytes(raw)
    return msgspec.json.decode(text, type=str) if text[:1] == b'"' else ""


def _joined(fields: dict[str, Any]) -> bytes:
    members = (msgspec.json.encode(name) + b":" + bytes(value) for name, value in fields.items())
    return b"{" + b",".join(members) + b"}"
