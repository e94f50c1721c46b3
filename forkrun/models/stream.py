"""From the bytes of a streamed answer to one whole reply, whichever road they came by.

    bytes ──▶ EventReader ──▶ JSON of each event ──▶ ReplyBuilder ──▶ Reply

The stream is server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html)
whose `data` is a JSON object with a `type`
(https://docs.anthropic.com/en/docs/build-with-claude/streaming). A reply counts only when
`message_stop` has come and a stop_reason with it: a stream that ends early, however cleanly, is
`ModelUnavailable`. Blocks, deltas and events of types that are not known here are kept or passed
over, never an error. What is held in memory is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from forkrun.errors import ModelError, ModelUnavailable

from .base import Reply, Usage
from .blocks import CALL_TYPES, Fields, object_input
from .faults import error_of, fault_in

MAX_EVENT_BYTES = 32 * 1024 * 1024
MAX_REPLY_BYTES = 64 * 1024 * 1024


class EventReader:
    """Cuts a stream into events; `feed` gives the `data` of each event that is complete."""

    def __init__(self) -> None:
        self._line = bytearray()  # the beginning of a line whose end has not come
        self._data: list[bytes] = []
        self._held = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Take the next bytes, in pieces of any size."""
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            if self._line:
                line = bytes(self._line) + line  # noqa: PLW2901
                self._line.clear()
            yield from self._take(line.removesuffix(b"\r"))
        self._line += rest
        self._check_size(len(self._line))

    def _take(self, line: bytes) -> Iterator[bytes]:
        if not line:
            if self._data:
                yield b"\n".join(self._data)
            self._data, self._held = [], 0
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._held += len(value)
            self._check_size(0)

    def _check_size(self, unfinished: int) -> None:
        if self._held + unfinished > MAX_EVENT_BYTES:
            raise _too_large("an event", MAX_EVENT_BYTES)


class _Start(msgspec.Struct):
    usage: dict[str, Any] | None = None
    model: str | None = None


class _Event(msgspec.Struct):
    type: str = ""
    index: int = 0
    message: _Start | None = None
    content_block: msgspec.Raw = msgspec.Raw(b"")
    delta: msgspec.Raw = msgspec.Raw(b"")
    usage: dict[str, Any] | None = None
    error: msgspec.Raw = msgspec.Raw(b"")


class _Ending(msgspec.Struct):
    stop_reason: str | None = None
    stop_details: msgspec.Raw = msgspec.Raw(b"null")


class ReplyBuilder:
    """Takes the events of one answer in order; `reply` gives what they amount to."""

    def __init__(self, *, model: str, request_id: str | None = None) -> None:
        self._model = model
        self._request_id = request_id
        self._usage: dict[str, int] = {}
        self._blocks: dict[int, _Block] = {}
        self._ending = _Ending()
        self._stopped = False
        self._bytes = 0

    @property
    def is_complete(self) -> bool:
        """Whether nothing more needs to be read."""
        return self._stopped

    def take(self, data: bytes) -> str | None:
        """Take one event; give the text that it adds to the reply, or None.

        Raises `ModelUnavailable` for an event that is not one, and what an `error` event says.
        """
        event = self._decoded(data)
        match event.type:
            case "message_start" if event.message is not None:
                self._model = event.message.model or self._model
                self._count(event.message.usage)
            case "content_block_start":
                self._grow(len(event.content_block))
                self._blocks[event.index] = _Block(event.content_block)
                return self._blocks[event.index].first_text
            case "content_block_delta":
                self._grow(len(event.delta))
                return self._block(event.index).add(_delta(event.delta))
            case "message_delta":
                self._end(event)
            case "message_stop":
                self._stopped = True
            case "error" | "" if event.type or event.error:
                raise self._failure(data)
        return None

    def reply(self) -> Reply:
        """Give the reply. Raises `ModelUnavailable` where it did not come to its end."""
        reason = self._ending.stop_reason
        if not self._stopped or reason is None:
            raise cut(
                "it ended without a stop_reason"
                if self._stopped
                else "it ended before message_stop",
                request_id=self._request_id,
            )
        details = bytes(self._ending.stop_details)
        return Reply(
            content=tuple(self._blocks[index].json() for index in sorted(self._blocks)),
            stop_reason=reason,
            usage=Usage(**{name: self._usage.get(name, 0) for name in Usage.__struct_fields__}),
            model=self._model,
            request_id=self._request_id,
            stop_details=None if details == b"null" else details,
        )

    def _failure(self, data: bytes) -> ModelError:
        fault = fault_in(data)
        return error_of(
            message=fault.message or "an error event without a message",
            kind=fault.type or "api_error",
            request_id=self._request_id,
        )

    def _decoded(self, data: bytes) -> _Event:
        try:
            if not data.isascii():
                data.decode()
            return msgspec.json.decode(data, type=_Event)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._mended(data)

    def _mended(self, data: bytes) -> _Event:
        # Half a surrogate pair in an escape is legal JSON that msgspec refuses.
        import json

        try:
            fields = json.loads(data)
            delta = fields.pop("delta", None) if isinstance(fields, dict) else None
            event = msgspec.convert(fields, type=_Event)
        except (ValueError, msgspec.ValidationError, RecursionError) as error:
            raise garbled(f"an event is not valid JSON: {error}", self._request_id) from None
        if delta is not None:
            event.delta = msgspec.Raw(json.dumps(delta).encode())
        return event

    def _block(self, index: int) -> _Block:
        block = self._blocks.get(index)
        if block is None:
            raise garbled(f"a delta for block {index}, which has not begun", self._request_id)
        return block

    def _end(self, event: _Event) -> None:
        self._count(event.usage)
        if not event.delta:
            return
        try:
            ending = msgspec.json.decode(event.delta, type=_Ending)
        except msgspec.DecodeError as error:
            raise garbled(f"message_delta: {error}", self._request_id) from None
        if ending.stop_reason is not None:
            self._ending = ending

    def _count(self, usage: dict[str, Any] | None) -> None:
        # Counts are totals so far: a later one replaces an earlier one, a missing one does not.
        for name, value in (usage or {}).items():
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                self._usage[name] = value

    def _grow(self, size: int) -> None:
        self._bytes += size
        if self._bytes > MAX_REPLY_BYTES:
            raise _too_large("the reply", MAX_REPLY_BYTES)


class _Block:
    """One content block while it grows. `_start` is the JSON that it began with."""

    def __init__(self, start: msgspec.Raw) -> None:
        try:
            self._fields: Fields = msgspec.json.decode(start, type=Fields)
            self._type = msgspec.json.decode(self._fields.get("type", b'""'), type=str)
        except (msgspec.DecodeError, RecursionError) as error:
            raise garbled(f"content_block_start: {error}", None) from None
        self._start = bytes(start)
        self._added: dict[str, list[Any]] = {}
        self._replaced: dict[str, Any] = {}

    @property
    def first_text(self) -> str | None:
        """The text that the block began with."""
        text = self._value("text") if self._type == "text" else None
        return text if isinstance(text, str) and text else None

    def add(self, delta: dict[str, Any]) -> str | None:
        """Take one delta; give the text that it adds, or None."""
        match delta:
            case {"type": "text_delta", "text": str(text)}:
                self._append("text", text)
                return _printable(text) or None
            case {"type": "input_json_delta", "partial_json": str(piece)}:
                self._append("input", piece)
            case {"type": "signature_delta", "signature": str(signature)}:
                self._replaced["signature"] = signature
            case {"type": "citations_delta", "citation": citation}:
                self._append("citations", citation)
            case _:
                self._add_unknown(delta)
        return None

    def json(self) -> bytes:
        """Give the JSON of the block; untouched fields are the bytes that came."""
        if not self._added and not self._replaced and self._type not in CALL_TYPES:
            return self._start
        fields = dict(self._fields)
        for name, value in self._replaced.items():
            fields[name] = _raw(value)
        for name, pieces in self._added.items():
            fields[name] = self._grown(name, pieces)
        if self._type in CALL_TYPES:
            fields["input"] = msgspec.Raw(object_input(bytes(fields.get("input", b"{}"))))
        return msgspec.json.encode(fields)

    def _grown(self, name: str, pieces: list[Any]) -> msgspec.Raw:
        if name == "input":
            text = "".join(pieces)
            return msgspec.Raw(_printable(text).encode()) if text.strip() else self._fields["input"]
        first = self._value(name)
        if all(isinstance(piece, str) for piece in pieces):
            return _raw((first if isinstance(first, str) else "") + "".join(pieces))
        return _raw([*(first if isinstance(first, list) else []), *pieces])

    def _add_unknown(self, delta: dict[str, Any]) -> None:
        # Text grows the field of the same name (as thinking_delta does), anything else replaces it.
        for name, value in delta.items():
            if isinstance(value, str) and name != "type":
                self._append(name, value)
            elif name != "type":
                self._replaced[name] = value

    def _append(self, name: str, piece: Any) -> None:
        self._added.setdefault(name, []).append(piece)

    def _value(self, name: str) -> Any:
        field = self._fields.get(name)
        try:
            return None if field is None else msgspec.json.decode(field)
        except (msgspec.DecodeError, RecursionError):
            return None


def cut(why: str, *, request_id: str | None = None) -> ModelUnavailable:
    """Make the error for a stream that did not come to its end."""
    return ModelUnavailable(f"stream cut: {why}", kind="stream_cut", request_id=request_id)


def garbled(what: str, request_id: str | None) -> ModelUnavailable:
    """Make the error for a stream that breaks its own rules."""
    return ModelUnavailable(f"stream garbled: {what}", kind="stream_garbled", request_id=request_id)


def _too_large(what: str, limit: int) -> ModelError:
    return ModelError(f"{what} of the model is larger than {limit} bytes", kind="reply_too_large")


def _delta(raw: msgspec.Raw) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        import json

        value = json.loads(bytes(raw)) if raw else None
    if not isinstance(value, dict):
        raise garbled("a delta is not an object", None)
    return value


def _raw(value: Any) -> msgspec.Raw:
    if isinstance(value, str):
        value = _printable(value)
    return msgspec.Raw(msgspec.json.encode(value))


def _printable(text: str) -> str:
    """Join halves of surrogate pairs that came apart; what stays half becomes U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
