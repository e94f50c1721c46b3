"""MCP hosts that talk to `forkrun mcp`: the official client, and the pipes themselves."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from support_cli import environment, run, script

HANG_S = 30


def server_argv(folder: Path, *lines: dict[str, Any], arguments: tuple[str, ...] = ()) -> list[str]:
    """The command line of a server whose runs get these replies, on a workspace in `folder`."""
    (folder / "ws").mkdir(exist_ok=True)
    model = script(folder / "script.jsonl", *lines)
    flags = ("--model", model, "--cwd", str(folder / "ws"))
    return [sys.executable, "-m", "forkrun", "mcp", *flags, *arguments]


@contextlib.asynccontextmanager
async def connected(
    folder: Path, *lines: dict[str, Any], mode: str = "auto", arguments: tuple[str, ...] = ()
) -> AsyncIterator[Any]:
    """Give the official client, connected to a server over stdio."""
    from mcp import Client, StdioServerParameters

    program, *rest = server_argv(folder, *lines, arguments=arguments)
    with contextlib.chdir(folder):
        server = StdioServerParameters(command=program, args=rest, env=environment(folder))
        async with Client(server, mode=mode) as client:
            yield client


class Wire:
    """The pipes of a server, for what no well-behaved client does."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._ids = 0

    def send(self, method: str, *, answered: bool = True, **params: Any) -> int:
        """Send a request (or a notification) and give its id."""
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
        if answered:
            self._ids += 1
            message["id"] = self._ids
        assert self.process.stdin
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()
        return self._ids

    def read(self) -> dict[str, Any]:
        """Read one message; every line of stdout must be one."""
        assert self.process.stdout
        return dict(json.loads(self.process.stdout.readline()))

    def answer_to(self, number: int) -> dict[str, Any]:
        """Read until the answer to a request comes."""
        while (message := self.read()).get("id") != number:
            pass
        return message

    def greet(self) -> None:
        """Do the handshake."""
        client = {"name": "test", "version": "1"}
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
        self.answer_to(self.send("initialize", **hello))
        self.send("notifications/initialized", answered=False)

    def call(self, prompt: str = "go") -> int:
        """Send a call of `task` that wants progress."""
        meta = {"progressToken": "p"}
        return self.send("tools/call", name="task", arguments={"prompt": prompt}, _meta=meta)


@contextlib.contextmanager
def wired(folder: Path, *lines: dict[str, Any], arguments: tuple[str, ...] = ()) -> Iterator[Wire]:
    """Give the pipes of a server after the handshake; it is killed at the end."""
    process = subprocess.Popen(
        server_argv(folder, *lines, arguments=arguments),
        cwd=folder,
        env=environment(folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        try:
            wire = Wire(process)
            wire.greet()
            yield wire
        finally:
            process.kill()


def inspector() -> list[str]:
    """Give the command line of the official inspector, installed outside the checkout.

    FORKRUN_INSPECTOR names a folder that has it (`npm install @modelcontextprotocol/inspector
    node@22` there); without it, it is installed once into the user's cache.
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(os.environ.get("FORKRUN_INSPECTOR") or f"{home}/forkrun-tests/inspector-2.12.0")
    modules = folder / "node_modules"
    start = modules / "@modelcontextprotocol/inspector/clients/launcher/build/index.js"
    if not start.exists():
        npm = shutil.which("npm") or pytest.skip("npm is not installed here")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text("{}")
        wanted = ("@modelcontextprotocol/inspector@2.12.0", "node@22")
        command = [npm, "install", "--no-audit", "--no-fund", "--loglevel=error", *wanted]
        try:
            subprocess.run(command, cwd=folder, capture_output=True, timeout=80, check=True)
        except subprocess.SubprocessError as error:
            shutil.rmtree(folder, ignore_errors=True)
            pytest.skip(f"the inspector could not be installed: {error}")
    return [str(modules / ".bin/node"), str(start), "--cli"]


SMALL = Path(__file__).resolve().parent / "small_mcp_server.py"


def inside(workspace: Path, *arguments: str) -> dict[str, Any]:
    """The configuration of the small server for inside the sandbox; its file is laid there."""
    shutil.copy(SMALL, workspace / SMALL.name)
    return {"command": "python3", "args": [SMALL.name, *arguments]}


def outside(*arguments: str, **env: str) -> dict[str, Any]:
    """The configuration of the small server for outside of the sandbox."""
    server = {"command": sys.executable, "args": [str(SMALL), *arguments]}
    return server | ({"env": env} if env else {"network": True})


def configured(**servers: dict[str, Any]) -> tuple[str, str]:
    """The flag that names these servers."""
    return "--mcp-config", json.dumps({"mcpServers": servers})


def events_of(
    workspace: Path,
    *lines: dict[str, Any],
    arguments: tuple[str, ...] = (),
    check: int | None = 0,
    **options: Any,
) -> list[dict[str, Any]]:
    """Run `forkrun spawn` with these replies and give its events; the last is the result."""
    model = script(workspace.parent / "script.jsonl", *lines)
    done = run(
        *("spawn", "--prompt", "go", "--model", model, "--output-format", "stream-json"),
        *arguments,
        cwd=workspace,
        check=check,
        **options,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def heads(events: list[dict[str, Any]]) -> list[tuple[str, bool]]:
    """What each call came to: the beginning of its text, and whether it is an error."""
    return [(each["head"], each["is_error"]) for each in events if each["type"] == "tool_result"]
