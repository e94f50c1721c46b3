"""The road by the `anthropic` package: for credentials that are more than a key, and for clients
that the caller hands in (synchronous or asynchronous, Bedrock, Vertex and Foundry included).

A client of the API itself is sent the bytes of the request; the classes for other platforms rewrite
the parameters on the way, so they are given them as objects. Answers are read as bytes wherever
they are server-sent events. The package never retries for us: one place above both roads does.
Cancelling frees whoever waits at once; the thread of a synchronous client whose server has not yet
answered is freed with that answer, or when the client's own timeout ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from typing import Any

import msgspec

from forkrun.errors import ConfigurationError, ModelError, ModelUnavailable

from .access import DEFAULT_BASE_URL, Access
from .base import Heard, Reply, Request
from .calls import Call
from .faults import error_of, error_of_answer, without
from .stream import EventReader, ReplyBuilder, cut, garbled
from .threads import Threads

_PATH = "/v1/messages"
MAX_CALLS = 100
_DRAIN_S = 0.1


def make_client(access: Access, *, is_open: bool) -> Any:
    """Make a client of the package; what `access` does not give, the package looks for itself,
    unless the server `is_open` to requests without a credential.

    Raises `ConfigurationError` where it finds nothing or what it finds is not valid.
    """
    import anthropic

    credential: dict[str, Any] = {}
    if access.key or access.token:
        credential = {"api_key": access.key} if access.key else {"auth_token": access.token}
    headers: dict[str, Any] = dict(access.headers)
    if is_open and not access.has_static_credential:
        headers["authorization"] = anthropic.Omit()
    try:
        return anthropic.AsyncAnthropic(
            **credential,
            # What a profile says of its address holds unless the user names another.
            base_url=None if access.base_url == DEFAULT_BASE_URL else access.base_url,
            default_headers=headers,
            max_retries=0,
        )
    except anthropic.AnthropicError as error:
        raise ConfigurationError(f"the credential cannot be used: {error}") from None


class SdkModel:
    """A Claude model behind a client of the `anthropic` package."""

    def __init__(
        self, name: str, *, client: Any, secrets: tuple[str, ...] = (), is_ours: bool = False
    ) -> None:
        """Send requests by this client. One that `is_ours` is closed with the model."""
        if not callable(getattr(client, "post", None)):
            raise ConfigurationError(
                f"the client is not one of the anthropic package: {type(client).__name__}"
            )
        self._name = name
        self._client = client
        self._is_ours = is_ours
        own = (getattr(client, "api_key", None), getattr(client, "auth_token", None))
        self._secrets = (*secrets, *(value for value in own if isinstance(value, str) and value))
        self._threads: Threads | None = None

    @property
    def name(self) -> str:
        return self._name

    async def reply(self, request: Request, heard: Heard) -> Reply:
        if inspect.iscoroutinefunction(self._client.post):
            return await self._reply(request, heard)
        if self._threads is None:
            self._threads = Threads(limit=MAX_CALLS, name="forkrun-model")
        call = Call(request, heard=heard)
        self._threads.run(lambda: self._answer(call))
        try:
            return await call.outcome
        finally:
            call.abort()

    async def close(self) -> None:
        """End the threads, and close the client if it is ours."""
        if self._threads is not None:
            self._threads.close()
        if self._is_ours:
            await self._client.close()

    async def _reply(self, request: Request, heard: Heard) -> Reply:
        reading: _Reading | None = None
        try:
            stream = await self._client.post(_PATH, **_options(self._client, request))
            reading = _Reading(self._name, stream=stream)
            async with contextlib.aclosing(_pieces(stream)) as pieces:
                async for piece in pieces:
                    for text in reading.take(piece):
                        heard(text)
                    if reading.is_complete:
                        await _drain(pieces)
                        break
            return reading.reply()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - a client of the caller's may raise anything
            raise self._explained(error, has_begun=reading is not None) from None

    def _answer(self, call: Call) -> None:
        """The same on a thread, for a synchronous client."""
        reading: _Reading | None = None
        try:
            stream = self._client.post(_PATH, **_options(self._client, call.request))
            reading = _Reading(self._name, stream=stream)
            with contextlib.closing(stream):
                call.hold(_socket_of(stream))
                for piece in _pieces_now(stream):
                    call.hear(list(reading.take(piece)))
                    if reading.is_complete:
                        break
                reply = reading.reply()
            call.settle(reply)
        except Exception as error:  # noqa: BLE001 - it is handed to the task that waits
            call.settle(self._explained(error, has_begun=reading is not None))

    def _explained(self, error: Exception, *, has_begun: bool) -> ModelError:
        explained = error
        if not isinstance(explained, ModelError):
            explained = _model_error(error, has_begun=has_begun)
        explained.args = (without(self._secrets, text=str(explained)),)
        return explained


class _Reading:
    """The events of one answer, from the bytes or the objects that a client gives."""

    def __init__(self, name: str, *, stream: Any) -> None:
        headers = getattr(getattr(stream, "response", None), "headers", None) or {}
        self._events = EventReader()
        self._builder = ReplyBuilder(model=name, request_id=headers.get("request-id"))

    @property
    def is_complete(self) -> bool:
        return self._builder.is_complete

    def take(self, piece: Any) -> list[str | None]:
        """Take bytes of the stream, or one event; give what is heard."""
        if isinstance(piece, bytes):
            events = self._events.feed(piece)
        else:
            events = iter([msgspec.json.encode(_plain(piece))])
        texts = [self._builder.take(event) for event in events]
        return [text for text in texts if text] or [None]

    def reply(self) -> Reply:
        return self._builder.reply()


def _options(client: Any, request: Request) -> dict[str, Any]:
    """Give the arguments of `client.post` for a streamed reply."""
    from anthropic import AsyncStream, Stream
    from anthropic.types import Message, RawMessageStreamEvent

    is_async = inspect.iscoroutinefunction(client.post)
    body = b"".join(request.parts())
    headers = {"anthropic-beta": ",".join(request.betas)} if request.betas else {}
    return {
        "cast_to": Message,
        "stream": True,
        "stream_cls": AsyncStream[RawMessageStreamEvent]
        if is_async
        else Stream[RawMessageStreamEvent],
        "options": {"max_retries": 0, "headers": headers},
        **({"content": body} if _is_raw(client) else {"body": msgspec.json.decode(body)}),
    }


def _is_raw(client: Any) -> bool:
    """Whether the bytes of a request reach the server as they are given to the client."""
    import anthropic

    return type(client) in (anthropic.Anthropic, anthropic.AsyncAnthropic) and not client.middleware


async def _pieces(stream: Any) -> AsyncGenerator[Any, None]:
    """Give bytes or events; closes the stream when it is closed itself."""
    try:
        async for piece in stream.response.aiter_bytes() if _is_sse(stream) else stream:
            yield piece
    finally:
        await stream.close()


async def _drain(pieces: AsyncIterator[Any]) -> None:
    """Read on to the end, if it is near: the connection can then be used again."""
    with contextlib.suppress(Exception):  # the reply is whole, whatever comes
        async with asyncio.timeout(_DRAIN_S):
            async for _ in pieces:
                pass


def _pieces_now(stream: Any) -> Iterator[Any]:
    """The same, without awaiting."""
    return iter(stream.response.iter_bytes() if _is_sse(stream) else stream)


def _is_sse(stream: Any) -> bool:
    """Whether the bytes of an answer are events: the package passes over those without a name."""
    kind = stream.response.headers.get("content-type", "")
    return bool(kind.startswith("text/event-stream"))


def _plain(event: Any) -> dict[str, Any]:
    """Give an event of the package as it came: only the fields that were there."""
    fields: dict[str, Any] = event.model_dump(
        mode="json", by_alias=True, exclude_unset=True, warnings=False
    )
    return fields


def _socket_of(stream: Any) -> Any:
    """Give the socket under a response, to be shut down on cancelling, or None."""
    connection = stream.response.extensions.get("network_stream")
    return None if connection is None else connection.get_extra_info("socket")


def _model_error(error: Exception, *, has_begun: bool) -> ModelError:
    import anthropic
    import httpx2

    if isinstance(error, anthropic.APIStatusError):
        return _refusal(error)
    if isinstance(error, anthropic.APIConnectionError | httpx2.HTTPError):
        reason = _reason(error)
        return cut(reason) if has_begun else ModelUnavailable(f"no answer from the model: {reason}")
    if isinstance(error, ValueError) and has_begun:
        return garbled(_reason(error), None)
    kind = "authentication_error" if isinstance(error, anthropic.AnthropicError) else "client_error"
    return ModelError(f"the client failed: {type(error).__name__}: {_reason(error)}", kind=kind)


def _refusal(error: Any) -> ModelError:
    headers: Mapping[str, str] = {
        name.lower(): value for name, value in error.response.headers.items()
    }
    if error.status_code < 400:  # an error event in a stream that had begun
        return error_of(
            message=error.api_message or error.message,
            kind=error.type or "api_error",
            request_id=headers.get("request-id"),
        )
    content = (
        error.body if isinstance(error.body, str) else msgspec.json.encode(error.body).decode()
    )
    return error_of_answer(status=error.status_code, headers=headers, body=content.encode())


def _reason(error: Exception) -> str:
    cause = error.__cause__
    return str(cause) if cause is not None and str(cause) else str(error) or type(error).__name__
