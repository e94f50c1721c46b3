"""What every model has in common: one request in, one whole reply out, or a ModelError.

A request is made of bytes that are never encoded twice: `params` are the top-level parameters of
the Messages API, `messages` the JSON of each message, as they are sent. A turn therefore costs
what the turn adds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

Heard = Callable[[str | None], None]
"""Called on the event loop for each piece of a reply: its text, or None for a sign of life."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of one reply or of a whole run, under the names of the Messages API.

    >>> (forkrun.Usage(input_tokens=3) + forkrun.Usage(output_tokens=4)).total_tokens
    7
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cache_read_input_tokens=self.cache_read_input_tokens + other.cache_read_input_tokens,
            cache_creation_input_tokens=self.cache_creation_input_tokens
            + other.cache_creation_input_tokens,
        )

    @property
    def total_tokens(self) -> int:
        """Everything that was read or written, cached or not."""
        return (
            self.input_tokens
            + self.output_tokens
            + self.cache_read_input_tokens
            + self.cache_creation_input_tokens
        )


_FIRST = ("max_tokens", "messages", "model")


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """How the JSON of a request is written where it is not as the `anthropic` SDK does it.

    `order`: the names of the top level, "messages" among them. `comma` and `colon`: what stands
    between members and after names of the top level, and between messages.
    """

    order: tuple[str, ...]
    comma: bytes = b","
    colon: bytes = b":"


def sdk_order(names: Iterable[str]) -> list[str]:
    """Put names of the top level into the SDK's order: what is required first, then by name."""
    return sorted(names, key=lambda name: (name not in _FIRST, name))


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One call of the model.

    `params`: the top-level parameters but `messages` and `stream`, each as JSON ("model" and
    "max_tokens" among them). `messages`: the JSON of each message.
    `betas`: values of the `anthropic-beta` header. `number` counts the calls of this run from 0,
    failed attempts included, so that a model that plays a script needs no state. `layout`: how
    the body is written, None for the way of the SDK.

    >>> forkrun.Request(params={}, messages=[b'{"role":"user","content":"hi"}']).number
    0
    """

    params: dict[str, msgspec.Raw]
    messages: Sequence[bytes]
    betas: tuple[str, ...] = ()
    number: int = 0
    layout: Layout | None = None

    def parts(self) -> list[bytes]:
        """Give the body of a streaming request as the byte strings that make it up, in order.

        Joined, they are the very bytes that the `anthropic` SDK sends for `messages.create` with
        the same values, or those of the layout.
        """
        params = {**self.params, "stream": msgspec.Raw(b"true")}
        return body_of(params, self.messages, layout=self.layout)


def body_of(
    params: Mapping[str, msgspec.Raw | bytes], messages: Sequence[bytes], *, layout: Layout | None
) -> list[bytes]:
    """Write parameters and messages as one JSON object; the pieces are to be joined."""
    layout = layout or Layout(order=())
    names = {*params, "messages"}
    order = [name for name in layout.order if name in names]
    parts: list[bytes] = []
    before = b"{"
    for name in order + sdk_order(names.difference(order)):
        before += msgspec.json.encode(name) + layout.colon
        if name == "messages":
            parts += [before + b"[", *_joined(messages, layout.comma)]
            before = b"]" + layout.comma
        else:
            before += bytes(params[name]) + layout.comma
    return [*parts, before.removesuffix(layout.comma) + b"}"]


def _joined(messages: Sequence[bytes], comma: bytes) -> Iterator[bytes]:
    for position, message in enumerate(messages):
        if position:
            yield comma
        yield message


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """One whole reply. `content` is the JSON of each block, as it came, save that the `input` of a
    tool call is always an object; `stop_reason` is never None, since a reply without one is no
    reply. `model` is the name that answered. `stop_details` is the JSON of the field of that
    name, where there was one.

    >>> block = b'{"type":"text","text":"hello"}'
    >>> forkrun.Reply(
    ...     content=(block,), stop_reason="end_turn", usage=forkrun.Usage(), model="mine"
    ... ).stop_reason
    'end_turn'
    """

    content: tuple[bytes, ...]
    stop_reason: str
    usage: Usage
    model: str
    request_id: str | None = None
    stop_details: bytes | None = None


class Model(Protocol):
    """The one seam between a run and whatever answers it.

    Raises `ModelUnavailable` where another attempt can help and `ModelError` where it cannot; it
    never retries. Cancelling the task ends the call at once.

    >>> class Parrot:
    ...     name = "parrot"
    ...     async def reply(self, request, heard):
    ...         block = b'{"type":"text","text":"hello"}'
    ...         return forkrun.Reply(
    ...             content=(block,), stop_reason="end_turn", usage=forkrun.Usage(), model="parrot"
    ...         )
    ...     async def close(self):
    ...         pass
    >>> forkrun.run_sync("Say something", model=Parrot()).summary
    'hello'
    """

    @property
    def name(self) -> str:
        """The name that stands in the result."""
        ...

    async def reply(self, request: Request, heard: Heard) -> Reply:
        """Ask for one reply; return it when it is complete."""
        ...

    async def close(self) -> None:
        """Give back what the model holds (connections, threads)."""
        ...
