"""The plain road to the Messages API: one POST by `http.client`, for a plain key or token.

The request is the one that the `anthropic` package would send; the package itself stays unimported,
which saves most of the time from the start to the first request. Each call blocks a thread of a
bounded pool; connections are kept and used again. Cancelling the task that waits shuts the
connection down from the event loop, which frees the thread at once.
"""

from __future__ import annotations

import http.client
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import cast

import msgspec

from forkrun.errors import ModelError, ModelUnavailable

from .base import Heard, Reply, Request
from .calls import CONNECT_S, Call
from .faults import error_of_answer, without
from .stream import EventReader, ReplyBuilder, cut
from .threads import Threads

SILENCE_S = 600.0  # without a byte; as in the anthropic package
MAX_CALLS = 1000
MAX_ERROR_BYTES = 64 * 1024
_PIECE_BYTES = 64 * 1024
_KEEP_S = 30.0
_DRAIN_S = 0.1
_TRUST = "SSL_CERT_FILE names a file of certificates to trust"
_CA_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """Where requests go. `path` is that of the Messages API there ("/v1/messages")."""

    host: str
    port: int
    path: str
    tls: bool

    @property
    def authority(self) -> str:
        """The value of the `Host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


class HttpModel:
    """A Claude model, or one that speaks like it, at a server that takes a plain key or none."""

    def __init__(
        self,
        name: str,
        *,
        server: Server,
        headers: Mapping[str, str],
        secrets: tuple[str, ...] = (),
    ) -> None:
        """`headers` are sent with each request; `secrets` never stand in a message of ours."""
        self._name = name
        self._server = server
        self._headers = dict(headers)
        self._secrets = secrets
        self._threads = Threads(limit=MAX_CALLS, name="forkrun-model")
        self._idle = _IdleConnections()
        self._tls: ssl.SSLContext | None = None

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
        self._idle.close()

    def _answer(self, call: Call) -> None:
        """Run one call on a thread of the pool; whatever happens becomes its outcome."""
        try:
            connection = self._idle.take() or self._connect(call)
            try:
                call.hold(connection.sock)
                call.connected()
                self._exchange(call, connection)
            except BaseException:
                connection.close()
                raise
        except Exception as error:  # noqa: BLE001 - it is handed to the task that waits
            call.settle(self._explained(error))

    def _exchange(self, call: Call, connection: http.client.HTTPConnection) -> None:
        broken = self._send(call.request, connection)
        try:
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise broken or error from None
        headers = {name.lower(): value for name, value in response.getheaders()}
        if response.status == 200:
            self._check_kind(headers)
            outcome: Reply | Exception = self._stream(call, response, headers)
        else:
            body = response.read(MAX_ERROR_BYTES)
            outcome = self._explained(self._refusal(response.status, headers=headers, body=body))
        # First the connection, then the outcome: the next request may follow at once.
        call.hold(None)
        self._keep(connection, response)
        call.settle(outcome)

    def _send(self, request: Request, connection: http.client.HTTPConnection) -> OSError | None:
        """Send a request; give the error where the server stopped reading: it may have answered."""
        parts = request.parts()
        connection.putrequest("POST", self._server.path, skip_host=True, skip_accept_encoding=True)
        headers = {"host": self._server.authority, **self._headers}
        headers["content-length"] = str(sum(len(part) for part in parts))
        if request.betas:
            headers["anthropic-beta"] = ",".join(request.betas)
        for name, value in headers.items():
            connection.putheader(name, value.encode())
        try:
            connection.endheaders()
            for piece in _pieces(parts):
                connection.send(piece)
        except OSError as error:
            return error
        return None

    def _stream(
        self, call: Call, response: http.client.HTTPResponse, headers: Mapping[str, str]
    ) -> Reply:
        events = EventReader()
        builder = ReplyBuilder(model=self._name, request_id=headers.get("request-id"))
        while not builder.is_complete:
            try:
                chunk = response.read1(_PIECE_BYTES)
            except (OSError, http.client.HTTPException) as error:
                raise cut(_reason(error), request_id=headers.get("request-id")) from None
            if not chunk:
                break
            texts = [builder.take(event) for event in events.feed(chunk)]
            call.hear([text for text in texts if text] or [None])
        return builder.reply()

    def _check_kind(self, headers: Mapping[str, str]) -> None:
        kind = headers.get("content-type", "")
        if not kind.startswith("text/event-stream") or "content-encoding" in headers:
            raise ModelError(
                f"{self._server.authority} does not speak the Messages API: it answers with"
                f" {headers.get('content-encoding', '')} {kind or 'no content type'}".replace(
                    "  ", " "
                ),
                hint="ANTHROPIC_BASE_URL is the address of a server with /v1/messages, without /v1",
                kind="not_a_stream",
            )

    def _refusal(self, status: int, *, headers: Mapping[str, str], body: bytes) -> ModelError:
        if status < 400:
            return ModelError(
                f"{self._server.authority} answers with status {status} and sends the request on to"
                f" {headers.get('location', 'nowhere')}",
                hint="set ANTHROPIC_BASE_URL to where the API is",
                status=status,
                kind="redirect",
            )
        return error_of_answer(status=status, headers=headers, body=body)

    def _connect(self, call: Call) -> http.client.HTTPConnection:
        call.expect_connection(to=self._server.authority)
        if self._server.tls and self._tls is None:
            self._tls = tls_context()
        connection = http.client.HTTPConnection(self._server.host, self._server.port)
        connection.auto_open = 0
        connection.sock = _connected(self._server, call=call, tls=self._tls)
        return connection

    def _keep(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> None:
        """Keep the connection where its answer is at its end, or very nearly so."""
        try:
            if connection.sock is not None and not response.isclosed():
                connection.sock.settimeout(_DRAIN_S)
                response.read(_PIECE_BYTES)
            if connection.sock is not None and response.isclosed():
                connection.sock.settimeout(SILENCE_S)
                self._idle.give(connection)
                return
        except (OSError, http.client.HTTPException):
            pass  # the answer is here; only the connection is lost
        response.close()
        connection.close()

    def _explained(self, error: Exception) -> Exception:
        if isinstance(error, OSError | http.client.HTTPException):
            message = f"no answer from {self._server.authority}: {_reason(error)}"
            if isinstance(error, ssl.SSLCertVerificationError):
                error = ModelError(message, hint=_TRUST, kind="tls_error")
            else:
                error = ModelUnavailable(message)
        if isinstance(error, ModelError):
            error.args = (without(self._secrets, text=str(error)),)
        return error


def tls_context() -> ssl.SSLContext:
    """Trust what the system trusts; SSL_CERT_FILE and SSL_CERT_DIR go first, as OpenSSL has it."""
    # As the anthropic package does; `create_default_context` is stricter from Python 3.13 on, and
    # refuses certificates of many company proxies.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_default_certs()
    paths = ssl.get_default_verify_paths()
    if paths.cafile is None and paths.capath is None:
        _trust_elsewhere(context)
    return context


def _trust_elsewhere(context: ssl.SSLContext) -> None:
    # A Python built on another machine may look for certificates where there are none.
    for path in _CA_FILES:
        try:
            context.load_verify_locations(path)
        except OSError:
            continue
        return


class _IdleConnections:
    """Connections that wait for the next request, newest first."""

    def __init__(self) -> None:
        self._idle: list[tuple[float, http.client.HTTPConnection]] = []
        self._lock = threading.Lock()
        self._closed = False

    def take(self) -> http.client.HTTPConnection | None:
        """Give a connection that the server has not closed meanwhile, or None."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                since, connection = self._idle.pop()
            if time.monotonic() - since < _KEEP_S and not _is_readable(connection.sock):
                return connection
            connection.close()

    def give(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append((time.monotonic(), connection))
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            lines, self._idle = self._idle, []
        for _, connection in lines:
            connection.close()


def _is_readable(sock: socket.socket | None) -> bool:
    """Whether something has come on an idle connection: its end, most likely."""
    if sock is None:
        return True
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _connected(server: Server, *, call: Call, tls: ssl.SSLContext | None) -> socket.socket:
    """Connect to the first address that answers."""
    deadline = time.monotonic() + CONNECT_S
    failure: OSError = OSError("the name has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(
        # As bytes: a text would be encoded by the codec of international names, to import for this.
        server.host.encode(),
        server.port,
        type=socket.SOCK_STREAM,
    ):
        sock = socket.socket(family, kind, protocol)
        try:
            call.hold(sock)
            sock.settimeout(max(0.1, deadline - time.monotonic()))
            sock.connect(address)
            _set_options(sock)
            if server.tls:
                sock = cast(ssl.SSLContext, tls).wrap_socket(
                    sock, server_hostname=server.host, do_handshake_on_connect=False
                )
                call.hold(sock)
                sock.do_handshake()
        except OSError as error:
            failure = error
            sock.close()
            continue
        except BaseException:
            sock.close()
            raise
        sock.settimeout(SILENCE_S)
        return sock
    raise failure


def _set_options(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 60), ("TCP_KEEPCNT", 5)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


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


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no byte in time"
    if isinstance(error, http.client.IncompleteRead):
        return "the connection ended in the middle"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
