"""MCP servers outside of the sandbox, spoken to by the official SDK on the broker's side.

Each has a task of its own, in which its connection is opened, kept and closed, as the scopes of the
SDK want it. What a server is given, its environment and its headers, stays here: it reaches neither
the child nor the model nor a message, not even where the server repeats it word for word.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import msgspec

from forkrun.mcp.config import McpServer, own_environment
from forkrun.mcp.content import Said, offer_of, read_result
from forkrun.mcp.pipes import piped
from forkrun.protocol import ServerTools
from forkrun.supervisor import Tail
from forkrun.text import one_line

START_TIMEOUT_S = 30.0
STOP_S = 3.0
HTTP_TIMEOUT_S = 30.0
MAX_RESPONSE_BYTES = 32 * 1024 * 1024
MAX_PAGES = 16
WORDS_CHARS = 500
MIN_SECRET_CHARS = 6
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASS|PWD|AUTH|CREDENTIAL|COOKIE|PRIVATE", re.I)


class RemoteServer:
    """One server outside of the sandbox. An async context manager, which connects on entering.

    Entering does not raise: `offer` says what the server offers, or why it cannot be used.
    """

    def __init__(self, name: str, server: McpServer, *, environ: Mapping[str, str]) -> None:
        self._name = name
        self._server = server
        self._environ = environ
        self._secrets = _secrets(server)
        self._stderr = Tail(keep_tail=4 * WORDS_CHARS)
        self._stop = asyncio.Event()
        self._originals: dict[str, str] = {}
        self._client: Any = None
        self._status: int | None = None
        self._offered: asyncio.Future[ServerTools]
        self._keeping: asyncio.Task[None]

    async def __aenter__(self) -> RemoteServer:
        self._offered = asyncio.get_running_loop().create_future()
        self._keeping = asyncio.ensure_future(self._keep())
        return self

    async def __aexit__(self, *_: object) -> None:
        ending = asyncio.ensure_future(self._end())
        while not ending.done():  # a second cancellation must not leave the server behind
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(ending)

    async def _end(self) -> None:
        """Ask the task of the connection to end; cancel it where it cannot hear or takes long."""
        self._stop.set()
        if self._client is not None:
            await asyncio.wait({self._keeping}, timeout=STOP_S)
        self._keeping.cancel()
        await asyncio.wait({self._keeping}, timeout=STOP_S)

    async def offer(self) -> ServerTools:
        """Wait for what the server offers, or for why it cannot be used."""
        done, _ = await asyncio.wait({self._offered}, timeout=START_TIMEOUT_S)
        if not done:
            why = f"it did not answer within {START_TIMEOUT_S:g} s"
            return ServerTools(server=self._name, error=self._with_last_words(why))
        return self._offered.result()

    async def call(
        self, tool: str, raw: bytes, *, timeout_s: float, heard: Callable[[], None]
    ) -> Said:
        """Call a tool with this input, the JSON of an object."""
        from mcp import MCPError

        async def progress(*_: object) -> None:
            heard()

        try:
            result = await self._client.call_tool(
                self._originals[tool],
                msgspec.json.decode(raw),
                read_timeout_seconds=timeout_s,
                progress_callback=progress,
            )
        except MCPError as error:
            return Said(text=f"{tool}: {self._words(error)}", is_error=True)
        except Exception as error:  # noqa: BLE001 - whatever a server or its transport can cause
            return Said(text=f"{tool}: {self._words(error)}", is_error=True)
        said = read_result(result.model_dump(mode="json", by_alias=True, exclude_none=True))
        return msgspec.structs.replace(said, text=self._without_secrets(said.text))

    async def _keep(self) -> None:
        """Be the life of the connection: open it, ask what there is, keep it, close it."""
        try:
            await asyncio.to_thread(_import_sdk)
            async with self._connected() as client:
                offered = await self._listed(client)
                self._client = client
                self._offered.set_result(offered)
                await self._stop.wait()
        except Exception as error:  # noqa: BLE001 - whatever a server or its transport can cause
            if not self._offered.done():
                why = self._with_last_words(self._words(error))
                self._offered.set_result(ServerTools(server=self._name, error=why))

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        from mcp import Client
        from mcp.types import Implementation

        client_info = Implementation(name="forkrun", version="0")
        async with contextlib.AsyncExitStack() as stack:
            transport = await self._transport(stack)
            client = Client(transport, client_info=client_info, cache=None)
            yield await stack.enter_async_context(client)

    async def _transport(self, stack: contextlib.AsyncExitStack) -> Any:
        server = self._server
        if server.url is None:
            return piped(
                server.argv,
                env=own_environment(self._environ, server),
                # Never the workspace: what stands in it must not choose what is run here.
                cwd=self._environ.get("HOME") or "/",
                stderr=self._stderr,
            )
        if server.type == "sse":
            from mcp.client.sse import sse_client

            return sse_client(server.url, headers=dict(server.headers))
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        client = httpx2.AsyncClient(
            headers=server.headers,
            timeout=httpx2.Timeout(HTTP_TIMEOUT_S, read=None),
            event_hooks={"response": [self._heard_of]},
        )
        await stack.enter_async_context(client)
        return streamable_http_client(server.url, http_client=client)

    async def _heard_of(self, response: Any) -> None:
        """Bound a response, and keep the status of one that is an error: the SDK says only that."""
        if response.status_code >= 400:
            self._status = response.status_code
        response.stream = _bounded(response.stream)

    async def _listed(self, client: Any) -> ServerTools:
        listed: list[Any] = []
        cursor = None
        for _ in range(MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            listed += [tool.model_dump(mode="json", by_alias=True) for tool in page.tools]
            if (cursor := page.next_cursor) is None:
                break
        offer = offer_of(self._name, msgspec.json.decode(self._encoded(listed)))
        self._originals = {tool.name: original for original, tool in offer.tools}
        tools = tuple(tool for _, tool in offer.tools)
        return ServerTools(server=self._name, tools=tools, left_out=offer.left_out)

    def _encoded(self, listed: list[Any]) -> str:
        return self._without_secrets(msgspec.json.encode(listed).decode())

    def _words(self, error: BaseException) -> str:
        """Say what went wrong, without an address: it may hold a secret."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        status = getattr(getattr(error, "response", None), "status_code", self._status)
        self._status = None
        if status is not None:
            return f"the server answered with HTTP status {status}"
        kind = type(error).__name__
        said = one_line(self._without_secrets(str(error)), width=WORDS_CHARS)
        return {
            "MCPError": said,
            "RuntimeError": f"its answer is not valid: {said}",  # held against its schema
            "ValidationError": f"its answer is not valid: {said}",
            "ConnectError": "the server cannot be reached",
            "ConnectTimeout": "the server cannot be reached",
            "FileNotFoundError": f"there is no program {self._server.command}",
            "PermissionError": f"{self._server.command} may not be run",
        }.get(kind, f"the connection failed ({kind})")

    def _with_last_words(self, why: str) -> str:
        said = self._stderr.tail.decode(errors="replace")
        said = one_line(self._without_secrets(said)[-WORDS_CHARS:], width=WORDS_CHARS)
        return f"{why}; it said: {said}" if said else why

    def _without_secrets(self, text: str) -> str:
        for secret, name in self._secrets.items():
            text = text.replace(secret, f"[{name} withheld]")
        return text


def _import_sdk() -> None:
    import mcp  # noqa: F401 - takes 0.4 s, in which the loop serves others

    # Without a handler of its host's, the SDK's complaints are for nobody.
    logging.getLogger("mcp").addHandler(logging.NullHandler())


def _secrets(server: McpServer) -> dict[str, str]:
    """Give what must be shown to nobody, each with the name under which it was given."""
    found = {value: name for name, value in server.env.items() if _SECRET_NAME.search(name)}
    for name, value in server.headers.items():
        for part in {value, value.rpartition(" ")[2]}:
            found[part] = name
    long = {value: name for value, name in found.items() if len(value) >= MIN_SECRET_CHARS}
    return dict(sorted(long.items(), key=lambda each: -len(each[0])))


def _bounded(stream: Any) -> Any:
    """Give the stream of a response that ends with an error where it grows beyond all measure."""
    import httpx2

    class Bounded(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            left = MAX_RESPONSE_BYTES
            async for chunk in stream:
                left -= len(chunk)
                if left < 0:
                    raise httpx2.ReadError(f"a response of more than {MAX_RESPONSE_BYTES} bytes")
                yield chunk

        async def aclose(self) -> None:
            await stream.aclose()

    return Bounded()
