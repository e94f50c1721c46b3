"""The answer to one request, read from its connection: a stream of events, or a refusal.

Imported when the first request is on its way: what reads an answer is not needed to ask.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse, IncompleteRead

from forkrun.errors import ModelError, ModelUnavailable

from .base import Reply
from .connections import SILENCE_S, Server
from .faults import error_of_answer
from .stream import EventReader, ReplyBuilder, cut

MAX_ERROR_BYTES = 64 * 1024
_PIECE_BYTES = 64 * 1024
_DRAIN_S = 0.1
_TRUST = "SSL_CERT_FILE names a file of certificates to trust"


class Answer:
    """The answer that comes on a connection; its head has been read.

    Raises OSError where none comes.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._response = HTTPResponse(sock, method="POST")
        try:
            self._response.begin()
        except HTTPException as error:
            self._response.close()
            raise OSError(_reason(error)) from None
        except BaseException:
            self._response.close()
            raise
        self._headers = {name.lower(): value for name, value in self._response.getheaders()}

    def read(
        self, *, model: str, server: Server, hear: Callable[[list[str | None]], None]
    ) -> Reply | ModelError:
        """Read it: the reply, or what the server says instead. `hear` gets each piece as it comes.

        Raises ModelError for a reply that is not whole or is none, and OSError.
        """
        if self._response.status == 200:
            self._check_kind(server)
            return self._stream(model, hear)
        try:
            body = self._response.read(MAX_ERROR_BYTES)
        except HTTPException as error:
            raise OSError(_reason(error)) from None
        return self._refusal(server, body)

    def is_at_end(self) -> bool:
        """Whether the connection can be used again: its answer is at its end, or very nearly so."""
        if self._response.will_close:
            return False
        try:
            if not self._response.isclosed():
                self._sock.settimeout(_DRAIN_S)
                self._response.read(_PIECE_BYTES)
            self._sock.settimeout(SILENCE_S)
        except (OSError, HTTPException):
            return False  # the answer is here; only the connection is lost
        return self._response.isclosed()

    def close(self) -> None:
        """Let go of the connection, which stays open."""
        self._response.close()

    def _stream(self, model: str, hear: Callable[[list[str | None]], None]) -> Reply:
        events = EventReader()
        request_id = self._headers.get("request-id")
        builder = ReplyBuilder(model=model, request_id=request_id)
        while not builder.is_complete:
            try:
                chunk = self._response.read1(_PIECE_BYTES)
            except (OSError, HTTPException) as error:
                raise cut(_reason(error), request_id=request_id) from None
            if not chunk:
                break
            texts = [builder.take(event) for event in events.feed(chunk)]
            hear([text for text in texts if text] or [None])
        return builder.reply()

    def _check_kind(self, server: Server) -> None:
        kind = self._headers.get("content-type", "")
        if not kind.startswith("text/event-stream") or "content-encoding" in self._headers:
            raise ModelError(
                f"{server.authority} does not speak the Messages API: it answers with"
                f" {self._headers.get('content-encoding', '')} {kind or 'no content type'}".replace(
                    "  ", " "
                ),
                hint="ANTHROPIC_BASE_URL is the address of a server with /v1/messages, without /v1",
                kind="not_a_stream",
            )

    def _refusal(self, server: Server, body: bytes) -> ModelError:
        status = self._response.status
        if status < 400:
            return ModelError(
                f"{server.authority} answers with status {status} and sends the request on to"
                f" {self._headers.get('location', 'nowhere')}",
                hint="set ANTHROPIC_BASE_URL to where the API is",
                status=status,
                kind="redirect",
            )
        return error_of_answer(status=status, headers=self._headers, body=body)


def no_answer(error: OSError, *, server: Server) -> ModelError:
    """Make the error for a request that got no answer."""
    message = f"no answer from {server.authority}: {_reason(error)}"
    if hasattr(error, "verify_message"):  # ssl.SSLCertVerificationError
        return ModelError(message, hint=_TRUST, kind="tls_error")
    return ModelUnavailable(message)


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no byte in time"
    if isinstance(error, IncompleteRead):
        return "the connection ended in the middle"
    if words := getattr(error, "verify_message", None):
        return f"its certificate is not trusted ({words})"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
