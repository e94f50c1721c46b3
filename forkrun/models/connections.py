"""Connections to one server, over TCP or TLS: made ahead of time, kept, and used again.

Nothing is sent on a connection here, and little is imported, so that a command line can connect
while it still imports the rest. What blocks is called on threads; `hold` names the socket that is
shut down where nobody waits any more, and raises where that is so already.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

from forkrun.errors import ModelUnavailable

if TYPE_CHECKING:
    import ssl

CONNECT_S = 10.0  # name, TCP and TLS together
SILENCE_S = 600.0  # without a byte; as in the anthropic package
_KEEP_S = 30.0
_CA_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)
_ITS_END = getattr(select, "POLLRDHUP", select.POLLIN)  # the first is Linux's

Hold = Callable[[socket.socket], None]


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


class Connections:
    """The connections to one server that are not in use, newest first. A context manager."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._idle: list[tuple[float, socket.socket]] = []
        self._early: _Early | None = None
        self._tls: ssl.SSLContext | None = None
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> Connections:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def begin(self) -> None:
        """Begin to connect, in a thread: the first who then asks for a connection gets this one."""
        self._early = _Early(self._connected)

    def kept(self) -> socket.socket | None:
        """Give a kept connection that the server has not closed meanwhile, or None."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                since, sock = self._idle.pop()
            if time.monotonic() - since < _KEEP_S and not _shows(sock, select.POLLIN):
                return sock
            sock.close()

    def connect(self, hold: Hold) -> socket.socket:
        """Give the connection that was begun, if it came to be, or else a new one; blocks.

        Raises OSError.
        """
        with self._lock:
            early, self._early = self._early, None
        if early is not None and (sock := early.take()) is not None:
            # Over TLS something does come, unasked: the tickets of the session.
            if not _shows(sock, _ITS_END):
                return sock
            sock.close()
        return self._connected(hold)

    def keep(self, sock: socket.socket) -> None:
        """Keep a connection on which nothing is under way."""
        with self._lock:
            if not self._closed:
                self._idle.append((time.monotonic(), sock))
                return
        sock.close()

    def close(self) -> None:
        """Close what is not in use, now and later."""
        with self._lock:
            self._closed = True
            lines, self._idle = self._idle, []
            early, self._early = self._early, None
        if early is not None:
            early.drop()
        for _, sock in lines:
            sock.close()

    def _connected(self, hold: Hold) -> socket.socket:
        if self.server.tls and self._tls is None:
            self._tls = tls_context()
        return _connected(self.server, hold=hold, tls=self._tls)


class _Early:
    """One connection that is being made by a thread, for whoever takes it."""

    def __init__(self, connect: Callable[[Hold], socket.socket]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._sock: socket.socket | None = None
        self._is_dropped = False
        threading.Thread(target=self._work, name="forkrun-connect", daemon=True).start()

    def take(self) -> socket.socket | None:
        """Wait for the connection and give it, for good; None where it could not be had."""
        self._done.wait()
        return self._sock

    def drop(self) -> None:
        """Close the connection, or have its thread do so; waits for nothing."""
        with self._lock:
            self._is_dropped = True
            if self._sock is None:
                return
            if self._done.is_set():
                self._sock.close()
            else:
                shut_down(self._sock)

    def _work(self) -> None:
        sock = None
        with contextlib.suppress(Exception):  # who takes it connects anew, and is told what fails
            sock = self._connect(self._hold)
        with self._lock:
            if sock is not None and self._is_dropped:
                sock.close()
                sock = None
            self._sock = sock
            self._done.set()

    def _hold(self, sock: socket.socket) -> None:
        with self._lock:
            if self._is_dropped:
                raise ModelUnavailable("nobody waits for the connection", kind="cancelled")
            self._sock = sock


def tls_context() -> ssl.SSLContext:
    """Trust what the system trusts; SSL_CERT_FILE and SSL_CERT_DIR go first, as OpenSSL has it."""
    import ssl

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


def shut_down(sock: socket.socket) -> None:
    """End a connection under the thread that uses it, which then closes it."""
    # Not the method of an SSLSocket, which would change the object under that thread.
    with contextlib.suppress(OSError):  # not connected yet, or gone already
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _shows(sock: socket.socket, event: int) -> bool:
    """Whether this has happened on an idle connection, or its end has come."""
    poll = select.poll()
    poll.register(sock, event)
    return bool(poll.poll(0))


def _connected(server: Server, *, hold: Hold, tls: ssl.SSLContext | None) -> socket.socket:
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
            hold(sock)
            sock.settimeout(max(0.1, deadline - time.monotonic()))
            sock.connect(address)
            _set_options(sock)
            if tls is not None:
                secure = tls.wrap_socket(
                    sock, server_hostname=server.host, do_handshake_on_connect=False
                )
                sock = secure
                hold(secure)
                secure.do_handshake()
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
