"""The MCP servers that a user names for a run, as data."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from forkrun.errors import UsageError

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9-])?")


class McpServer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An MCP server for a run: a `command` with `args`, or a `url`.

    One that is given neither `env` nor `network` runs inside the sandbox of the child. Every other
    runs, or is reached, outside of it: by this process, with the official SDK (the extra `mcp`),
    and what it is given never enters the child. `type`: "stdio", "http" or "sse".

    >>> server = forkrun.McpServer(command="my-server", args=("--quiet",))
    >>> server.is_confined, forkrun.McpServer(command="my-server", network=True).is_confined
    (True, False)
    """

    type: Literal["stdio", "http", "streamable-http", "sse"] | None = None
    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    network: bool = False
    url: str | None = None
    headers: dict[str, str] = {}

    @property
    def is_confined(self) -> bool:
        """Whether it runs inside the sandbox of the child."""
        return self.command is not None and not self.env and not self.network

    @property
    def argv(self) -> tuple[str, ...]:
        """Its command line."""
        return (self.command or "", *self.args)


def check_servers(servers: Mapping[str, McpServer]) -> None:
    """Raise UsageError for servers that cannot be meant, or that need an SDK that is not here."""
    for name, server in servers.items():
        where = f"the MCP server {name!r}"
        if not _NAME.fullmatch(name) or "__" in name or len(name) > 64:
            raise UsageError(
                f"{where} has a name that rules and tools cannot have",
                hint="use letters, digits, - and single _, at most 64",
            )
        if not (server.command or server.url) or (server.command and server.url):
            raise UsageError(f"{where} needs either a command or a url")
        if server.url is not None and not re.match(r"https?://[^/]", server.url):
            raise UsageError(f"{where} has a url that is neither http:// nor https://")
        if "\0" in "".join((*server.argv, *server.env, *server.env.values())):
            raise UsageError(f"{where} has a NUL character in its command or its environment")
    if not all(server.is_confined for server in servers.values()):
        check_installed()


def check_installed() -> None:
    """Raise UsageError, with the remedy, where the SDK is not installed."""
    from importlib.util import find_spec

    if find_spec("mcp") is None:
        raise UsageError(
            "this needs the package mcp, which is not installed",
            hint="install it beside forkrun: pip install 'mcp>=2.3,<3' (the extra named mcp)",
        )


def own_environment(environ: Mapping[str, str], server: McpServer) -> dict[str, str]:
    """Give the environment of a server outside of the sandbox: nothing of ours but what every
    program needs, and what the user has given it."""
    kept = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER")
    base = {name: environ[name] for name in kept if name in environ}
    return {"PATH": os.defpath, "TERM": "dumb", **base, **server.env}
