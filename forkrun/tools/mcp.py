"""MCP servers inside the sandbox: started by this process, spoken to over their stdin and stdout.

    child ──▶ initialize, tools/list            once, before the first reply is asked for
    child ──▶ tools/call ──▶ server             one at a time
          ◀── result, notifications, requests   its requests are refused, but for ping

Messages are JSON-RPC 2.0, one a line (MCP 2025-11-25, "Transports"). A server has what every
command of the run has: its rights, its environment, its bounds. It dies with the run, and here at
the latest when the block of `Servers` is left.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import msgspec

from forkrun.mcp.content import Offer, Said, offer_of, read_result
from forkrun.protocol import ServerProgram, ServerTools
from forkrun.tools import processes
from forkrun.tools.bash import find_program
from forkrun.tools.failures import ToolError
from forkrun.tools.output import Kept

PROTOCOL = "2025-11-25"
START_TIMEOUT_S = 30.0
KILL_S = 5.0
MAX_LINE_BYTES = 8 * 1024 * 1024
MAX_PAGES = 16
_CHUNK_BYTES = 64 * 1024
_STATUS_S = 0.2  # how long after its output a process may end
_WORDS_CHARS = 500
_NOT_FOUND = -32601  # JSON-RPC 2.0, "Error object"


class ServerGone(Exception):
    """The server has ended or broken the protocol; nothing more comes from it."""


class ServerError(Exception):
    """The server answered a request with an error; its words."""


class OutOfTime(Exception):
    """No answer came in time."""


def ignore() -> None:
    """Hear a sign of life and do nothing with it."""


class Servers:
    """The MCP servers of one run; a context manager, at whose end none of them lives."""

    def __init__(self, *, directory: int, env: Mapping[str, str]) -> None:
        """They start in the directory of this descriptor."""
        self._directory = directory
        self._env = env
        self._servers: list[_Server] = []
        self._tools: dict[str, tuple[_Server, str]] = {}

    def __enter__(self) -> Servers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for server in self._servers:
            server.close()

    def holds(self, tool: str) -> bool:
        """Say whether a tool of this name is one of theirs."""
        return tool in self._tools

    def start(self, programs: tuple[ServerProgram, ...]) -> tuple[ServerTools, ...]:
        """Start them all, then ask each what it offers; what fails stands in the answer."""
        until = time.monotonic() + START_TIMEOUT_S
        started = [(program.name, self._started(program)) for program in programs]
        return tuple(self._listed(name, server, until=until) for name, server in started)

    def call(self, tool: str, raw: bytes, *, timeout_s: float, heard: Callable[[], None]) -> Said:
        """Call a tool with this input, the JSON of an object."""
        server, name = self._tools[tool]
        params = {"name": name, "arguments": msgspec.Raw(raw)}
        try:
            result = server.request(
                "tools/call", params, until=time.monotonic() + timeout_s, heard=heard
            )
        except OutOfTime:
            raise ToolError(
                f"{tool}: no answer after {timeout_s:g} s; it was told to stop"
            ) from None
        except ServerGone as error:
            raise ToolError(f"{tool}: the server is gone: {error}") from None
        except ServerError as error:
            return Said(text=f"{tool}: {error}", is_error=True)
        return read_result(result)

    def _started(self, program: ServerProgram) -> _Server | str:
        path = _found(program.argv[0], self._env)
        if path is None:
            return f"there is no program {program.argv[0]} inside the sandbox"
        try:
            server = _Server([path, *program.argv[1:]], directory=self._directory, env=self._env)
        except OSError as error:
            return f"{program.argv[0]} could not be started: {error.strerror}"
        self._servers.append(server)
        return server

    def _listed(self, name: str, server: _Server | str, *, until: float) -> ServerTools:
        if isinstance(server, str):
            return ServerTools(server=name, error=server)
        try:
            offer = _offer(name, server, until=until)
        except OutOfTime:
            why = f"it did not answer within {START_TIMEOUT_S:g} s"
            return ServerTools(server=name, error=server.with_last_words(why))
        except (ServerGone, ServerError) as error:
            return ServerTools(server=name, error=server.with_last_words(str(error)))
        self._tools |= {tool.name: (server, original) for original, tool in offer.tools}
        tools = tuple(tool for _, tool in offer.tools)
        return ServerTools(server=name, tools=tools, left_out=offer.left_out)


def _offer(name: str, server: _Server, *, until: float) -> Offer:
    hello = {
        "protocolVersion": PROTOCOL,
        "capabilities": {},
        "clientInfo": {"name": "forkrun", "version": "0"},
    }
    server.request("initialize", hello, until=until)
    server.notify("notifications/initialized", {}, until=until)
    listed: list[Any] = []
    params: dict[str, Any] = {}
    for _ in range(MAX_PAGES):
        page = server.request("tools/list", params, until=until)
        tools = page.get("tools") if isinstance(page, dict) else None
        listed += tools if isinstance(tools, list) else []
        cursor = page.get("nextCursor") if isinstance(page, dict) else None
        if not isinstance(cursor, str):
            break
        params = {"cursor": cursor}
    return offer_of(name, listed)


def _found(program: str, env: Mapping[str, str]) -> str | None:
    if "/" not in program:
        return find_program(program, env)
    return program if program.startswith("/") else os.path.join(env.get("PWD", "/"), program)


class _Message(msgspec.Struct):
    id: Any = None
    method: str | None = None
    result: Any = None
    error: Any = None


class _Server:
    """One server: its process and the pipes to it. Not for use from several threads."""

    def __init__(self, argv: list[str], *, directory: int, env: Mapping[str, str]) -> None:
        theirs = [os.pipe() for _ in range(3)]
        (its_in, self._in), (self._out, its_out), (self._err, its_err) = theirs
        try:
            standard = (its_in, its_out, its_err)
            self._pid = processes.start(argv, standard, directory=directory, env=env)
        except OSError:
            for descriptor in (self._in, self._out, self._err):
                os.close(descriptor)
            raise
        finally:
            for descriptor in (its_in, its_out, its_err):
                os.close(descriptor)
        for descriptor in (self._in, self._out, self._err):
            os.set_blocking(descriptor, False)
        self._open = {self._in, self._out, self._err}
        self._words = Kept(limit=_WORDS_CHARS)
        self._buffer = bytearray()
        self._next_id = 0

    def request(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        until: float,
        heard: Callable[[], None] = ignore,
    ) -> Any:
        """Send a request and wait for its answer, until an instant of time.monotonic.

        Raises ServerError for an error, ServerGone at the end, OutOfTime after telling the server.
        """
        self._next_id += 1
        number = self._next_id
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        self._send(message, until=until)
        try:
            while (answer := self._read(until=until)).id != number or answer.method is not None:
                heard()
                self._refuse(answer, until=until)
        except OutOfTime:
            self.cancel(number)
            raise
        if answer.error is not None:
            raise ServerError(_words_of(answer.error))
        return answer.result

    def notify(self, method: str, params: Mapping[str, Any], *, until: float) -> None:
        """Send a notification."""
        self._send({"jsonrpc": "2.0", "method": method, "params": params}, until=until)

    def cancel(self, number: int) -> None:
        """Tell the server that an answer is no longer waited for, if it still reads."""
        params = {"requestId": number, "reason": "no answer in time"}
        try:
            self.notify("notifications/cancelled", params, until=time.monotonic() + 0.1)
        except (OutOfTime, ServerGone):
            return

    def with_last_words(self, why: str) -> str:
        """Add to a reason what the server has written to stderr."""
        self._hear_stderr()
        said = " ".join(self._words.text(limit=_WORDS_CHARS).split())
        return f"{why}; it said: {said}" if said else why

    def close(self) -> None:
        """Kill the server and its group, and reap it."""
        for descriptor in self._open:
            os.close(descriptor)
        self._open = set()
        for kill in (os.killpg, os.kill):
            try:
                kill(self._pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        end = time.monotonic() + KILL_S
        while time.monotonic() < end and not os.waitpid(self._pid, os.WNOHANG)[0]:
            time.sleep(0.002)

    def _refuse(self, message: _Message, *, until: float) -> None:
        """Answer a request of the server's; what is no request needs no answer."""
        if message.method is None or message.id is None:
            return
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message.id}
        if message.method == "ping":
            answer["result"] = {}
        else:
            answer["error"] = {"code": _NOT_FOUND, "message": "Method not found"}
        self._send(answer, until=until)

    def _send(self, message: Mapping[str, Any], *, until: float) -> None:
        if self._in not in self._open:
            raise ServerGone(self._how_it_ended())
        data = memoryview(msgspec.json.encode(message) + b"\n")
        while data:
            try:
                data = data[os.write(self._in, data) :]
            except BlockingIOError:
                self._wait(select.POLLOUT, until=until)
            except OSError as error:
                raise ServerGone(self._how_it_ended()) from error

    def _read(self, *, until: float) -> _Message:
        """Give the next message; lines that are none are passed over, as loggers print some."""
        while True:
            line, newline, rest = self._buffer.partition(b"\n")
            if newline:
                self._buffer = rest
                try:
                    return msgspec.json.decode(bytes(line), type=_Message)
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                    continue
            if len(self._buffer) > MAX_LINE_BYTES:
                raise ServerGone(f"it sent a message of more than {MAX_LINE_BYTES} bytes")
            self._wait(0, until=until)

    def _wait(self, also: int, *, until: float) -> None:
        """Wait until something can be read (or written, where `also` says so), and read it."""
        watch = select.poll()
        for descriptor in self._open:
            watch.register(descriptor, also if descriptor == self._in else select.POLLIN)
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise OutOfTime
        for descriptor, _ in watch.poll(left_s * 1000):
            if descriptor == self._err:
                self._hear_stderr()
            elif descriptor == self._out and not self._hear(self._out, self._buffer.extend):
                raise ServerGone(self._how_it_ended())
            elif descriptor == self._in and not also:  # POLLERR: nobody reads any more
                self._close(self._in)

    def _hear_stderr(self) -> None:
        if self._err in self._open:
            self._hear(self._err, self._words.add)

    def _hear(self, descriptor: int, take: Callable[[bytes], None]) -> bool:
        """Read what there is; False at the end of file."""
        try:
            piece = os.read(descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return True
        if not piece:
            self._close(descriptor)
            return False
        take(piece)
        return True

    def _close(self, descriptor: int) -> None:
        self._open.discard(descriptor)
        os.close(descriptor)

    def _how_it_ended(self) -> str:
        """Say how the process ended, leaving its status to be taken by `close`."""
        end = time.monotonic() + _STATUS_S
        while time.monotonic() < end:
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            if found := os.waitid(os.P_PID, self._pid, options):
                how = "exit code" if found.si_code == os.CLD_EXITED else "signal"
                return f"it has ended with {how} {found.si_status}"
            time.sleep(0.005)
        return "it has closed its output"


def _words_of(error: Any) -> str:
    message = error.get("message") if isinstance(error, dict) else None
    return str(message or "an error without words")[:_WORDS_CHARS]
