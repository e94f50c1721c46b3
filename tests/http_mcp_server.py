"""An MCP server over HTTP on loopback, by the official SDK, that wants a header.

Usage: http_mcp_server.py KIND ("http" or "sse"); prints the address once it listens.
"""

import contextlib
import socket
import sys

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

server = MCPServer("remote")


@server.tool()
async def shout(text: str, ctx: Context) -> str:
    """Say it louder."""
    await ctx.report_progress(1, 2)
    return text.upper()


@server.tool()
def header() -> str:
    """Repeat the secret."""
    return "the token is token-4711-secret"


@server.tool()
def flood() -> str:
    """Say too much."""
    return "a" * 40_000_000


def guarded(app):
    async def guard(scope, receive, send):
        headers = dict(scope.get("headers", ()))
        if scope["type"] == "http" and headers.get(b"authorization") != b"Bearer token-4711-secret":
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b"no"})
            return
        await app(scope, receive, send)

    return guard


kind = sys.argv[1]
app = server.streamable_http_app() if kind == "http" else server.sse_app()
with contextlib.closing(socket.socket()) as listening:
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    port = listening.getsockname()[1]
    print(f"http://127.0.0.1:{port}/{'mcp' if kind == 'http' else 'sse'}", flush=True)
    config = uvicorn.Config(guarded(app), log_level="error", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listening])
