"""Reads the usual JSON of MCP hosts: `{"mcpServers": {NAME: {"command": …} or {"url": …}}}`.

`${NAME}` and `${NAME:-DEFAULT}` stand for variables of the user's environment. A server that they
are used for has been given environment values, so it runs outside of the sandbox.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from forkrun.errors import InputError, UsageError
from forkrun.mcp.config import McpServer, check_servers

MAX_FILE_BYTES = 1024 * 1024
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_HINT = 'expected {"mcpServers": {"NAME": {"command": "PROGRAM", "args": []}}}'


def read_servers(
    given: Sequence[str], *, environ: Mapping[str, str]
) -> tuple[dict[str, McpServer], tuple[str, ...]]:
    """Give the servers that files or JSON texts name, the later before the earlier, and notices.

    Raises InputError, with file and name, for what is not valid; UsageError for what is not there.
    """
    servers: dict[str, McpServer] = {}
    notices: list[str] = []
    for text in given:
        source, content = _content(text)
        for name, entry in _entries(content, source=source).items():
            where = f"{source}, server {name!r}"
            if entry.pop("disabled", False) is True:
                notices.append(f"{where} is disabled and left out")
                servers.pop(name, None)
                continue
            unknown = sorted(entry.keys() - set(McpServer.__struct_fields__))
            if unknown:
                notices.append(f"{where}: not known here and left out: {', '.join(unknown)}")
            servers[name] = _server(entry, where=where, environ=environ)
    check_servers(servers)
    return servers, tuple(notices)


def _content(text: str) -> tuple[str, bytes]:
    if text.lstrip().startswith("{"):
        return "--mcp-config", text.encode(errors="surrogateescape")
    try:
        with open(text, "rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read the MCP servers ({error.strerror}): {text}") from error
    if len(content) > MAX_FILE_BYTES:
        raise InputError(f"larger than {MAX_FILE_BYTES} bytes: {text}")
    return text, content


class _File(msgspec.Struct):
    servers: dict[str, dict[str, Any]] = msgspec.field(name="mcpServers")


def _entries(content: bytes, *, source: str) -> dict[str, dict[str, Any]]:
    try:
        return msgspec.json.decode(content, type=_File).servers
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{source} does not name MCP servers: {error}", hint=_HINT) from error


def _server(entry: dict[str, Any], *, where: str, environ: Mapping[str, str]) -> McpServer:
    known = {name: entry[name] for name in McpServer.__struct_fields__ if name in entry}
    try:
        expanded = {name: _expanded(value, environ) for name, value in known.items()}
        server = msgspec.convert(expanded, McpServer)
    except msgspec.ValidationError as error:
        raise InputError(f"{where} is not valid: {error}") from error
    except KeyError as error:
        raise InputError(f"{where} uses a variable that is not set: {error.args[0]}") from error
    if server.is_confined and expanded != known:
        return msgspec.structs.replace(server, network=True)
    return server


def _expanded(value: Any, environ: Mapping[str, str]) -> Any:
    match value:
        case str():
            return _VARIABLE.sub(lambda found: _value(found[1], found[2], environ), value)
        case list():
            return [_expanded(each, environ) for each in value]
        case dict():
            return {name: _expanded(each, environ) for name, each in value.items()}
    return value


def _value(name: str, default: str | None, environ: Mapping[str, str]) -> str:
    return environ[name] if default is None else environ.get(name) or default
