"""The plain road to the Messages API: one POST over HTTP/1.1, for a plain key or token.

The request is the one that the `anthropic` package would send; the package itself stays unimported,
which saves most of the time from the start to the first request. Each call blocks a thread of a
bounded pool; connections are kept and used again. Cancelling the task that waits shuts the
connection down from the event loop, which frees the thread at once.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping

from forkrun.errors import ModelError

from .base import Heard, Reply, Request
from .calls import Call
from .connections import Connections, Server
from .threads import Threads

MAX_CALLS = 1000
_PIECE_BYTES = 64 * 1024


class HttpModel:
    """A Claude model, or one that speaks like it, at a server that takes a plain key or none."""

    def __init__(
        self,
        name: str,
        *,
        server: Server,
        headers: Mapping[str, str],
        secrets: tuple[str, ...] = (),
        connections: Connections | None = None,
    ) -> None:
        """`headers` are sent with each request, names and values as they can stand in one;
        `secrets` never stand in a message of ours; `connections` are those to this server."""
        self._name = name
        self._server = server
        self._headers = dict(headers)
        self._secrets = secrets
        self._threads = Threads(limit=MAX_CALLS, name="forkrun-model")
        self._connections = connections or Connections(server)

    @property
    def name(self) -> str:
        return self._name

    async def reply(self, request: Request, heard: Heard) -> Reply:
        call = Call(request, heard=heard)
        self._threads.run(lambda: self._answer(call))
        try:
            return await call.outcome
        finally:
            call.abort()

    async def close(self) -> None:
        """Close the idle connections and end the threads."""
        self._threads.close()
        self._connections.close()

    def _answer(self, call: Call) -> None:
        """Run one call on a thread of the pool; whatever happens becomes its outcome."""
        try:
            sock = self._connections.kept()
            if sock is None:
                call.expect_connection(to=self._server.authority)
                sock = self._connections.connect(call.hold)
            try:
                call.hold(sock)
                call.connected()
                self._exchange(call, sock)
            except BaseException:
                sock.close()
                raise
        except Exception as error:  # noqa: BLE001 - it is handed to the task that waits
            call.settle(self._explained(error))

    def _exchange(self, call: Call, sock: socket.socket) -> None:
        broken = self._send(call.request, sock)
        from .answers import Answer  # by now the server has something to do

        try:
            answer = Answer(sock)
        except OSError as error:
            raise broken or error from None
        try:
            outcome = answer.read(model=self._name, server=self._server, hear=call.hear)
            # First the connection, then the outcome: the next request may follow at once.
            call.hold(None)
            if answer.is_at_end():
                self._connections.keep(sock)
            else:
                sock.close()
        finally:
            answer.close()
        call.settle(self._explained(outcome) if isinstance(outcome, Exception) else outcome)

    def _send(self, request: Request, sock: socket.socket) -> OSError | None:
        """Send a request; give the error where the server stopped reading: it may have answered."""
        parts = request.parts()
        headers = {"host": self._server.authority, **self._headers}
        headers["content-length"] = str(sum(len(part) for part in parts))
        if request.betas:
            headers["anthropic-beta"] = ",".join(request.betas)
        lines = [f"POST {self._server.path} HTTP/1.1", *(f"{n}: {v}" for n, v in headers.items())]
        head = "\r\n".join([*lines, "", ""]).encode()
        try:
            for piece in _pieces([head, *parts]):
                sock.sendall(piece)
        except OSError as error:
            return error
        return None

    def _explained(self, error: Exception) -> Exception:
        if isinstance(error, OSError):
            from .answers import no_answer

            error = no_answer(error, server=self._server)
        if isinstance(error, ModelError):
            from .faults import without

            error.args = (without(self._secrets, text=str(error)),)
        return error


def _pieces(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Join small parts, and pass large ones on as they are."""
    gathered: list[bytes] = []
    size = 0
    for part in parts:
        if size + len(part) > _PIECE_BYTES and gathered:
            yield b"".join(gathered)
            gathered, size = [], 0
        if len(part) > _PIECE_BYTES:
            yield part
        else:
            gathered.append(part)
            size += len(part)
    if gathered:
        yield b"".join(gathered)
