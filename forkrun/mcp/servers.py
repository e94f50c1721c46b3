"""The MCP servers of one run, in the sandbox and outside: what they offer, who runs a call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import msgspec

from forkrun.errors import ChannelError, ConfigurationError
from forkrun.mcp.config import McpServer
from forkrun.mcp.content import MAX_TOOLS, fitted
from forkrun.mcp.remote import RemoteServer
from forkrun.protocol import Listed, ServerProgram, ServerTools, ToolCall, ToolLimits, ToolResult
from forkrun.report import bounded
from forkrun.supervisor import Worker
from forkrun.text import one_line

MAX_OFFER_BYTES = 512 * 1024
WORDS_CHARS = 800
HINT = (
    "it runs inside the sandbox; where it needs the network or the environment, say so by "
    '"network": true or "env" in its configuration: it then runs outside'
)


class Servers:
    """The servers of one run. An async context manager: those outside of the sandbox begin to be
    connected on entering and are gone after leaving; those inside are the child's."""

    def __init__(self, servers: Mapping[str, McpServer], *, environ: Mapping[str, str]) -> None:
        self.programs = tuple(
            ServerProgram(name=name, argv=server.argv)
            for name, server in servers.items()
            if server.is_confined
        )
        self._remote = [
            RemoteServer(name, server, environ=environ)
            for name, server in servers.items()
            if not server.is_confined
        ]
        self._holders: dict[str, RemoteServer] = {}
        self.left_out: dict[str, tuple[str, ...]] = {}  # tools that a model cannot be offered

    async def __aenter__(self) -> Servers:
        for remote in self._remote:
            await remote.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.gather(*(remote.__aexit__() for remote in self._remote))

    async def definitions(self, worker: Worker) -> list[dict[str, Any]]:
        """Give the definitions of all tools, once every server has said what it offers.

        Raises ConfigurationError for a server that cannot be used, ChannelError for a child that
        says what it cannot have been told.
        """
        inside = await self._inside(worker)
        found = [*inside]
        for remote, offer in zip(
            self._remote, await asyncio.gather(*(r.offer() for r in self._remote)), strict=True
        ):
            self._holders |= {tool.name: remote for tool in offer.tools}
            found.append(offer)
        for offer in found:
            if offer.error is not None:
                words = one_line(offer.error, width=WORDS_CHARS)
                raise ConfigurationError(
                    f"the MCP server {offer.server!r} cannot be used: {words}",
                    hint=HINT if offer in inside else None,
                )
        self.left_out = {offer.server: offer.left_out for offer in found if offer.left_out}
        return _definitions(found)

    def holds(self, tool: str) -> bool:
        """Say whether a call of this tool is run here, and not by the child."""
        return tool in self._holders

    async def call(
        self, call: ToolCall, *, timeout_s: float, heard: Callable[[], None]
    ) -> ToolResult:
        """Run a call outside of the sandbox; what goes wrong stands in the result."""
        said = await self._holders[call.name].call(
            call.name, call.input, timeout_s=timeout_s, heard=heard
        )
        text = bounded(said.text, max_chars=ToolLimits().result_chars)
        return ToolResult(id=call.id, text=text, is_error=said.is_error, images=said.images)

    async def _inside(self, worker: Worker) -> list[ServerTools]:
        """Take what the child's servers offer; it says so, so nothing of it is believed."""
        if not self.programs:
            return []
        message = await worker.receive()
        if not isinstance(message, Listed):
            raise ChannelError(f"a message out of turn: {type(message).__name__}")
        if [offer.server for offer in message.servers] != [each.name for each in self.programs]:
            raise ChannelError("the child listed servers that it was not told to start")
        for offer in message.servers:
            fits = [fitted(tool, server=offer.server) == tool for tool in offer.tools]
            if not all(fits) or len(fits) > MAX_TOOLS:
                raise ChannelError(f"the child listed tools of {offer.server} that do not fit")
        return list(message.servers)


def _definitions(offers: Sequence[ServerTools]) -> list[dict[str, Any]]:
    tools = {tool.name: tool for offer in offers for tool in offer.tools}
    size = sum(len(tool.schema) + len(tool.description) for tool in tools.values())
    if size > MAX_OFFER_BYTES:
        raise ConfigurationError(
            f"the definitions of the MCP servers' tools are larger than {MAX_OFFER_BYTES} bytes",
            hint="name fewer servers",
        )
    return [
        {
            "name": tool.name,
            "description": tool.description,
            "input_schema": msgspec.json.decode(tool.schema),
        }
        for tool in tools.values()
    ]
