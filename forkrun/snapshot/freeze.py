"""Freeze the parameters of a `messages.create` call into bytes, once, at the door.

What comes in as Python objects is encoded as the anthropic SDK (2.14) would send it; what comes in
as JSON is kept byte for byte. What cannot be sent to anybody (not UTF-8, not JSON, a key twice, not
a conversation) is refused here, with the message and block it stands in. Whether the API would
accept the conversation is not asked here: that is `repair`.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import cached_property
from typing import Any, Literal

import msgspec

from forkrun.errors import InputError
from forkrun.models.base import Layout, body_of, sdk_order
from forkrun.snapshot.shape import Message, parse_message
from forkrun.snapshot.strict import Surrogates, refuse_what_is_not_json

MAX_INPUT_BYTES = 128 * 1024 * 1024
Dangling = Literal["placeholder", "cut"]

_NOT_SENT = frozenset(
    {"messages", "betas", "stream", "timeout", "extra_headers", "extra_query", "extra_body"}
)
_BETA_HEADER = "anthropic-beta"


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A request, frozen. Nothing that happens to the objects that it was made of changes it.

    `params`: name and JSON of each top-level parameter but `messages`, in the order given.
    `messages`: the JSON of each message. `betas`: values of the `anthropic-beta` header. `notes`
    say what had to be replaced so that it is JSON at all. Raises InputError for what is no request.

    >>> snapshot = forkrun.Snapshot.of(
    ...     model="script:replies.jsonl",
    ...     max_tokens=1000,
    ...     messages=[{"role": "user", "content": "We work on the parser."}],
    ... )
    >>> forkrun.run_sync("Now check the tests", snapshot=snapshot).stop_reason
    'completed'
    """

    params: tuple[tuple[str, bytes], ...]
    messages: tuple[bytes, ...]
    betas: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    layout: Layout | None = None

    @classmethod
    def of(cls, **params: Any) -> Snapshot:
        """Freeze the very parameters of `messages.create`: dicts, SDK objects or both, mixed."""
        return cls.from_params(params)

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Snapshot:
        """Freeze a mapping of the parameters of `messages.create` or `beta.messages.create`.

        `betas` and an `anthropic-beta` in `extra_headers` become `betas`; `extra_body` is laid over
        the parameters, as the SDK does; `stream`, `timeout`, other headers and `extra_query`
        belong to a transport and are left out. Raises `InputError`.
        """
        given = {name: value for name, value in params.items() if not _is_omitted(value)}
        if "messages" not in given:
            raise InputError("snapshot: there are no messages")
        body = {name: value for name, value in given.items() if name not in _NOT_SENT}
        body |= dict(given.get("extra_body") or {})
        surrogates = Surrogates()
        messages = body.pop("messages", given["messages"])
        if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
            raise InputError("snapshot: messages is not a list")
        return cls._checked(
            params=[
                (name, _encode(body[name], where=name, surrogates=surrogates))
                for name in sdk_order(body)
            ],
            messages=[
                _encode(message, where=f"message {position}", surrogates=surrogates)
                for position, message in enumerate(messages)
            ],
            betas=[*_betas_of(given.get("betas")), *_header_betas(given.get("extra_headers"))],
            surrogates=surrogates,
        )

    @classmethod
    def from_json(
        cls, text: bytes | str, *, max_bytes: int = MAX_INPUT_BYTES, source: str = "snapshot"
    ) -> Snapshot:
        """Freeze the JSON of those parameters, or of a list of messages alone, byte for byte.

        Lone surrogates become U+FFFD, once, here. Raises `InputError`, which begins with `source`.
        """
        surrogates = Surrogates()
        if len(text) > max_bytes:
            raise InputError(f"{source}: larger than {max_bytes} bytes: {len(text)}")
        try:
            plain = surrogates.mended(text) if isinstance(text, str) else str(text, "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{source}: not UTF-8 at byte {error.start}") from None
        plain = surrogates.mended_escapes(plain)
        refuse_what_is_not_json(plain, source)
        whole = plain.encode()
        given = _parameters(whole, source)
        messages = given.pop("messages", None)
        if messages is None:
            raise InputError(f"{source}: there are no messages")
        if not messages.startswith(b"["):
            raise InputError(f"{source}: messages is not a list")
        headers = json.loads(given.get("extra_headers", b"null"))
        return cls._checked(
            params=[(n, v) for n, v in given.items() if n not in _NOT_SENT],
            messages=[bytes(m) for m in msgspec.json.decode(messages, type=list[msgspec.Raw])],
            betas=[*_betas_of(json.loads(given.get("betas", b"null"))), *_header_betas(headers)],
            surrogates=surrogates,
            source=source,
            layout=_layout(whole),
        )

    @classmethod
    def _checked(
        cls,
        *,
        params: list[tuple[str, bytes]],
        messages: list[bytes],
        betas: list[str],
        surrogates: Surrogates,
        source: str = "snapshot",
        layout: Layout | None = None,
    ) -> Snapshot:
        for position, message in enumerate(messages):
            parse_message(message, position, source=source)
        for position, tool in enumerate(_listed(dict(params).get("tools"), source)):
            if not tool.lstrip().startswith(b"{"):
                raise InputError(f"{source}: tools[{position}] is not an object")
        return cls(
            params=tuple(params),
            messages=tuple(messages),
            betas=tuple(dict.fromkeys(betas)),
            notes=surrogates.notes(),
            layout=layout,
        )

    def __repr__(self) -> str:
        return f"<Snapshot of {len(self.messages)} messages, {sum(map(len, self.messages))} bytes>"

    def to_json(self) -> bytes:
        """Give the JSON of the whole, which `from_json` reads; the bytes of each part are kept."""
        params = dict(self.params)
        if self.betas:
            params["betas"] = _encode_plain(list(self.betas))
        return b"".join(body_of(params, self.messages, layout=self.layout))

    def with_params(self, **changed: Any) -> Snapshot:
        """Give it with other top-level parameters, or more: a prompt cache may no longer hit."""
        surrogates = Surrogates()
        new = {n: _encode(v, where=n, surrogates=surrogates) for n, v in changed.items()}
        params = tuple((dict(self.params) | new).items())
        return msgspec.structs.replace(self, params=params, notes=self.notes + surrogates.notes())

    def param(self, name: str) -> Any:
        """Give the value of a top-level parameter as Python objects, or None without it."""
        return next((json.loads(value) for given, value in self.params if given == name), None)

    def parsed(self) -> list[Message]:
        """Give the messages with their blocks told apart, to look at or to change."""
        return [parse_message(raw, position) for position, raw in enumerate(self.messages)]

    @cached_property
    def worked_out(self) -> dict[str, Any]:
        """What was derived from it once and is shared by all forks; no part of its value."""
        return {}


_COLON = re.compile(rb'\s*\{\s*"(?:[^"\\]|\\.)*"(: |:)')


def _layout(whole: bytes) -> Layout | None:
    """Say how a request is written, so that it can be sent as its parent sends it."""
    if not whole.lstrip().startswith(b"{"):
        return None
    names = list(msgspec.json.decode(whole, type=dict[str, msgspec.Raw]))
    kept = [name for name in names if name in ("messages", "stream") or name not in _NOT_SENT]
    order = kept[:-1] if kept[-1] == "stream" else kept
    found = _COLON.match(whole)
    is_wide = found is not None and found[1] == b": "  # as json.dumps does it
    if not is_wide and order == sdk_order(order):
        return None
    comma, colon = (b", ", b": ") if is_wide else (b",", b":")
    return Layout(order=tuple(order), comma=comma, colon=colon)


def _listed(tools: bytes | None, source: str) -> list[bytes]:
    """Part the list of tools; a parent may have sent null for none."""
    if tools is None or tools == b"null":
        return []
    if not tools.lstrip().startswith(b"["):
        raise InputError(f"{source}: tools is not a list")
    return [bytes(tool) for tool in msgspec.json.decode(tools, type=list[msgspec.Raw])]


def _is_omitted(value: object) -> bool:
    # The SDK's marks for "not given"; named, not imported, since its import takes a second.
    return type(value).__name__ in {"Omit", "NotGiven"}


def _betas_of(value: Any) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list | tuple) or not all(isinstance(beta, str) for beta in value):
        raise InputError("snapshot: betas is not a list of names")
    return list(value)


def _header_betas(headers: Any) -> Iterator[str]:
    for name, value in headers.items() if isinstance(headers, Mapping) else ():
        if name.lower() == _BETA_HEADER and isinstance(value, str):
            yield from (beta.strip() for beta in value.split(",") if beta.strip())


def _default(value: Any) -> Any:
    """Give what the SDK sends for an object that is not JSON by itself."""
    if hasattr(value, "model_dump"):  # pydantic, as the SDK's replies are
        hidden = getattr(value, "__api_exclude__", None)
        return value.model_dump(exclude_unset=True, mode="json", by_alias=True, exclude=hidden)
    if hasattr(value, "to_dict"):  # the SDK's tools made of functions
        return value.to_dict()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, os.PathLike):  # a file as the data of an image or a document
        with open(value, "rb") as file:
            return base64.b64encode(file.read()).decode()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, bytes | bytearray | memoryview):
        raise TypeError("bytes cannot be sent as JSON")
    if isinstance(value, Set | Iterator) or (
        isinstance(value, Iterable) and hasattr(value, "__len__")
    ):
        return list(value)
    raise TypeError(f"{type(value).__name__} cannot be sent as JSON")


_ENCODER = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_default
)


def _encode_plain(value: Any) -> bytes:
    return _ENCODER.encode(value).encode()


def _encode(value: Any, *, where: str, surrogates: Surrogates) -> bytes:
    try:
        text = _ENCODER.encode(value)
    except RecursionError:
        raise InputError(f"snapshot: {where}: nested too deeply") from None
    except (TypeError, ValueError, OSError) as error:
        raise InputError(f"snapshot: {where}: {error}") from None
    try:
        return text.encode()
    except UnicodeEncodeError:
        return surrogates.mended(text).encode()


def _parameters(whole: bytes, source: str) -> dict[str, bytes]:
    """Give the JSON of each top-level parameter, `extra_body` laid over them."""
    first = whole.lstrip()[:1]
    if first == b"[":
        return {"messages": whole.strip()}
    if first != b"{":
        raise InputError(f"{source}: neither an object of parameters nor a list of messages")
    fields = msgspec.json.decode(whole, type=dict[str, msgspec.Raw])
    extra = fields.get("extra_body")
    if extra is not None and bytes(extra).startswith(b"{"):
        fields |= msgspec.json.decode(extra, type=dict[str, msgspec.Raw])
    return {name: bytes(value) for name, value in fields.items()}
