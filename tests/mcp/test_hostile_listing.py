"""A child that lies about what its MCP servers offer."""

import asyncio
import sys
from pathlib import Path

import pytest
from support_cli import script

import forkrun
import forkrun.starting
from forkrun.starting import package_folders

CHILD = """\
import socket, sys, time
way, sandbox_folder, *entries, fds = sys.argv[1:]
package = type(sys)("forkrun_sandbox")
package.__path__ = [sandbox_folder]
sys.modules["forkrun_sandbox"] = package
sys.path[:0] = entries
from forkrun.channel import Channel
from forkrun.protocol import Ask, Listed, Ready, ServerTool, ServerTools, ToChild
from forkrun_sandbox.spec import Report

channel = Channel(socket.socket(fileno=int(fds.split(",")[0])), ToChild)
start = channel.receive()
channel.send(Ready(report=Report(tier="none")))
tool = ServerTool(name="mcp__small__echo", description="", schema=b'{"type":"object"}')
change = {
    "honest": {},
    "other-name": {"name": "bash"},
    "other-server": {"name": "mcp__other__echo"},
    "name-with-blanks": {"name": "mcp__small__e cho"},
    "no-object": {"schema": b"[]"},
    "no-json": {"schema": b"\\xff{"},
    "deep": {"schema": b'{"a":' * 5000 + b"1" + b"}" * 5000},
    "large": {"schema": b'{"type":"object","x":"' + b"a" * 40_000 + b'"}'},
    "unclean": {"description": "a\\x1b[31mb"},
}.get(way, {})
import msgspec

tools = (msgspec.structs.replace(tool, **change),)
if way == "many":
    tools = tuple(
        msgspec.structs.replace(tool, name=f"mcp__small__t{number}") for number in range(1000)
    )
servers = (ServerTools(server="small", tools=tools),)
if way == "another":
    servers = (ServerTools(server="large"),)
if way == "none":
    servers = ()
channel.send(Ask() if way == "ask" else Listed(servers=servers))
time.sleep(60)
"""


@pytest.fixture
def run_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run a job with one server whose child lies in the way named."""
    child = tmp_path / "child.py"
    child.write_text(CHILD)
    (tmp_path / "ws").mkdir()
    model = script(tmp_path / "s.jsonl", {"delay_s": 0.2, "text": "done"})

    def run(way: str) -> forkrun.Result:
        argv = [sys.executable, "-I", "-S", str(child), way, *package_folders()]
        monkeypatch.setattr(
            forkrun.starting, "worker_argv", lambda *fds: [*argv, ",".join(map(str, fds))]
        )

        async def once() -> forkrun.Result:
            async with forkrun.Runner(model=model, start="exec") as runner:
                return await runner.run(
                    "go",
                    cwd=tmp_path / "ws",
                    workspace="live",
                    limits=forkrun.Limits(timeout_s=3),
                    mcp_servers={"small": {"command": "x"}},
                )

        return asyncio.run(once())

    return run


def test_an_honest_listing_is_taken(run_child) -> None:
    """The control: the same child with a true listing goes on, here until its time is up."""
    assert run_child("honest").stop_reason == "timeout"


@pytest.mark.parametrize(
    "way",
    [
        *("other-name", "other-server", "name-with-blanks", "no-object", "no-json", "deep"),
        *("large", "unclean", "many", "another", "none", "ask"),
    ],
)
def test_a_false_listing_is_a_crash(run_child, way: str) -> None:
    """Names, schemas and servers that cannot be what the servers said end the run as crashed."""
    result = run_child(way)
    assert result.stop_reason == "crashed", result
    assert result.turns == 0
