"""What has been said, as bytes that are sent again in every turn and encoded once.

A conversation is the top-level parameters of the Messages API and the JSON of each message. It only
grows at its end: a turn costs what the turn adds. Cache marks are not part of a message; they
are spliced into the newest user messages when a request is made, so that the end of what has been
said is written to the provider's prompt cache and the next request reads it there. A request
never has more than four marks (limit of the Messages API), those of the parent included.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

import msgspec

from forkrun.errors import ContextExceeded
from forkrun.models.base import Request
from forkrun.snapshot.shape import text_block
from forkrun.snapshot.start import MAX_REQUEST_BYTES, ForkedStart

__all__ = ["Conversation", "text_block"]

_MARK = b',"cache_control":{"type":"ephemeral"}'
_OPEN = {"user": b'{"role":"user","content":[', "assistant": b'{"role":"assistant","content":['}
_CLOSE = b"]}"


class Conversation:
    """A conversation of one run; grows by whole messages and gives the request of each turn."""

    def __init__(self, start: ForkedStart) -> None:
        """Begin with the messages of `start`, which are sent as they are, mark at the end apart."""
        self._params = start.params
        self._prefix = start.prefix
        self._messages = [start.opening]  # those that follow the prefix
        self._betas = start.betas
        self._layout = start.layout
        self._size = start.size_bytes
        self._tail_marks = start.tail_marks
        self._own_user = [0]  # positions among them of the user messages that may be marked
        self._role = "user"  # of the newest message

    @classmethod
    def fresh(
        cls,
        *,
        model: str,
        max_tokens: int,
        prompt: str,
        system: str | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        further: Mapping[str, Any] | None = None,
    ) -> Conversation:
        """Start with nothing but instructions, tools and a prompt.

        The last block of what never changes (system, else tools) carries a cache mark. `further`
        are more parameters of every request.
        """
        params = {"model": msgspec.json.encode(model), "max_tokens": b"%d" % max_tokens}
        params |= {name: msgspec.json.encode(value) for name, value in (further or {}).items()}
        if tools:
            params["tools"] = msgspec.json.encode(tools)
        if system and not system.isspace():
            params["system"] = b"[" + text_block(system)[:-1] + _MARK + b"}]"
        elif tools:
            params["tools"] = params["tools"][:-2] + _MARK + b"}]"
        opening = _OPEN["user"] + text_block(prompt) + _CLOSE
        return cls(
            ForkedStart(
                params={name: msgspec.Raw(value) for name, value in params.items()},
                prefix=(),
                opening=opening,
                size_bytes=sum(map(len, params.values())) + len(opening),
            )
        )

    @classmethod
    def fork(cls, start: ForkedStart) -> Conversation:
        """Continue where a snapshot ends: with the directive of the fork as the last message."""
        return cls(start)

    def offer(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """Show the model further tools, before the first request of a fresh conversation."""
        added = msgspec.json.encode(tools)
        ours = bytes(self._params.get("tools", b"[]"))
        whole = ours[:-1] + b"," * (len(ours) > 2) + added[1:] if tools else ours
        self._params = {**self._params, "tools": msgspec.Raw(whole)} if tools else self._params
        self._size += len(added)

    def add_user(self, blocks: Iterable[bytes]) -> None:
        """Add a user message made of these blocks (the JSON of each), tool results first.

        Where the newest message is a user message already, the blocks join it.
        """
        position = len(self._messages)
        self._add("user", blocks)
        if len(self._messages) > position:
            self._own_user.append(position)

    def add_assistant(self, blocks: Iterable[bytes]) -> None:
        """Add the blocks of a reply as they came. What the API would not take back is mended."""
        self._add("assistant", blocks)

    @property
    def size_bytes(self) -> int:
        """About how long the body of the next request will be."""
        return self._size

    def request(self, number: int) -> Request:
        """Give the request that asks for the next reply; what is added later does not change it.

        Raises `ContextExceeded` where it is larger than the API takes: sending it again and
        again would not help.
        """
        if self._size > MAX_REQUEST_BYTES:
            raise ContextExceeded(
                f"the request is larger than {MAX_REQUEST_BYTES} bytes: {self._size}",
                status=413,
                kind="request_too_large",
            )
        messages = self._messages.copy()
        for position in self._own_user[-self._tail_marks :] if self._tail_marks else ():
            messages[position] = _with_mark(messages[position])
        return Request(
            params=self._params,
            messages=_Following(self._prefix, messages) if self._prefix else messages,
            betas=self._betas,
            number=number,
            layout=self._layout,
        )

    def _add(self, role: str, blocks: Iterable[bytes]) -> None:
        from forkrun.snapshot.blocks import mended

        added = b",".join(mended(role, blocks))
        if not added:
            return
        if self._role == role:
            self._messages[-1] = self._messages[-1][: -len(_CLOSE)] + b"," + added + _CLOSE
        else:
            self._messages.append(_OPEN[role] + added + _CLOSE)
            self._role = role
        self._size += len(added) + len(_OPEN["assistant"])


class _Following(Sequence[bytes]):
    """Messages that follow a frozen prefix. Of that nothing is copied: to count one reference more
    to each of some thousand messages costs as much as the rest of a turn."""

    def __init__(self, prefix: tuple[bytes, ...], messages: list[bytes]) -> None:
        self._prefix = prefix
        self._messages = messages

    def __len__(self) -> int:
        return len(self._prefix) + len(self._messages)

    def __iter__(self) -> Iterator[bytes]:
        yield from self._prefix
        yield from self._messages

    @overload
    def __getitem__(self, position: int) -> bytes: ...
    @overload
    def __getitem__(self, position: slice) -> list[bytes]: ...
    def __getitem__(self, position: int | slice) -> bytes | list[bytes]:
        if isinstance(position, slice):
            return [self[each] for each in range(*position.indices(len(self)))]
        at = range(len(self))[position] - len(self._prefix)
        return self._messages[at] if at >= 0 else self._prefix[at]


def _with_mark(message: bytes) -> bytes:
    # Every message made here ends with the brace of its last block, then "]}".
    return message[: -len(_CLOSE) - 1] + _MARK + b"}" + _CLOSE
