"""MCP servers outside of the sandbox, by the official client, on the broker's side."""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support_api import processes_named
from support_cli import call, environment, processes_with, run, script, wait_until
from support_mcp import configured, events_of, heads, inside, outside

import forkrun

pytest.importorskip("mcp", reason="the package mcp is not installed")

SERVER = Path(__file__).resolve().parent.parent / "http_mcp_server.py"
TOKEN = "token-4711-secret"


@contextlib.contextmanager
def listening(kind: str) -> Iterator[str]:
    """Give the address of a server that wants a header."""
    process = subprocess.Popen([sys.executable, str(SERVER), kind], stdout=subprocess.PIPE)
    with process:
        try:
            yield process.stdout.readline().decode().strip()
        finally:
            process.kill()


def test_its_tools_work_and_it_is_not_in_the_sandbox(workspace: Path) -> None:
    """It is reached, and it sees what the child does not."""
    lines = (
        call("mcp__small__echo", text="hello"),
        call("mcp__small__with_dot"),
        call("mcp__small__fail"),
        call("mcp__small__picture"),
        call("mcp__small__large"),
        call("mcp__small__write", text="x"),
        {"text": "done"},
    )
    events = events_of(workspace, *lines, arguments=configured(small=outside()))
    said = heads(events)
    assert said[:3] == [("hello", False), ('{"dotted":true}', False), ("it went wrong", True)]
    assert "audio/wav" in said[3][0]
    sizes = [each["size"] for each in events if each["type"] == "tool_result"]
    assert sizes[4] <= 30_000
    assert said[5] == (str(workspace.parent / "home"), False)  # never the workspace
    assert events[-1]["changes"] == []


def test_what_it_is_given_stays_with_it(workspace: Path) -> None:
    """Its environment values are in no argument list, no child, no transcript, no event; and what
    is not given to it is not there."""
    secret = "sekrit-8152-value"
    transcript = workspace.parent / "t.jsonl"
    # The pattern does not match itself in the command line that it stands in.
    search = (
        "cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c sekrit-[8]152"
    )
    lines = (
        call("mcp__small__environment"),
        call("mcp__small__echo", text="hello"),
        call("bash", command=f"{search}; true"),
        {"text": "done"},
    )
    given = configured(small=outside(API_TOKEN=secret, MODE="plain"))
    config = workspace.parent / "mcp.json"
    config.write_text(given[1].replace(secret, "${THE_SECRET}"))
    events = events_of(
        workspace,
        *lines,
        arguments=("--mcp-config", str(config), "--transcript", str(transcript)),
        env=environment(workspace.parent, THE_SECRET=secret, ANTHROPIC_API_KEY="canary-4711"),
    )
    (found, _), _, (count, _) = heads(events)
    assert "API_TOKEN" in found
    assert '"MODE": "plain"' in found
    assert "canary-4711" not in found
    assert "THE_SECRET" not in found
    assert count.strip().startswith("0")
    assert secret not in json.dumps(events)
    assert secret not in transcript.read_text()


def test_rules_hold_for_it(workspace: Path) -> None:
    """A call that no rule allows is denied before it is made."""
    lines = (
        call("mcp__small__write", text="x"),
        call("mcp__small__echo", text="hi"),
        {"text": "done"},
    )
    arguments = (*configured(small=outside()), "--allow", "mcp__small__echo")
    events = events_of(workspace, *lines, arguments=arguments)
    assert heads(events) == [("hi", False)]
    assert [denial["tool"] for denial in events[-1]["denials"]] == ["mcp__small__write"]
    assert not (workspace.parent / "home/written.txt").exists()


def test_results_stand_in_the_order_of_the_calls(workspace: Path) -> None:
    """One reply that calls both sides gets all results, each its own."""
    uses = [
        {"name": "mcp__out__echo", "input": {"text": "one"}},
        {"name": "bash", "input": {"command": "echo two"}},
        {"name": "mcp__in__echo", "input": {"text": "three"}},
        {"name": "mcp__out__echo", "input": {"text": "four"}},
    ]
    servers = {"out": outside(), "in": inside(workspace)}
    arguments = configured(**servers)
    events = events_of(workspace, {"tool_use": uses}, {"text": "done"}, arguments=arguments)
    assert {head.strip() for head, _ in heads(events)} == {"one", "two", "three", "four"}
    assert events[-1]["tool_calls"] == 4


def test_a_call_has_the_time_of_a_tool(workspace: Path) -> None:
    """A call that does not answer ends with an error after --tool-timeout, and the run goes on."""
    lines = (call("mcp__small__sleep"), {"text": "done"})
    arguments = (*configured(small=outside()), "--tool-timeout", "0.5")
    events = events_of(workspace, *lines, arguments=arguments)
    ((head, is_error),) = heads(events)
    assert is_error
    assert "timed out" in head
    assert events[-1]["stop_reason"] == "completed"


def test_a_server_that_ends_is_an_error_of_the_call(workspace: Path) -> None:
    """A call that kills its server is an error, and so is the next; the run goes on."""
    lines = (call("mcp__small__end"), call("mcp__small__echo", text="hi"), {"text": "done"})
    events = events_of(workspace, *lines, arguments=configured(small=outside()))
    assert [is_error for _, is_error in heads(events)] == [True, True]
    assert events[-1]["stop_reason"] == "completed"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (outside("--dies", A_KEY="sekrit-8152"), b"it cannot start without its configuration"),
        (outside("--floods"), b"a line of more than 8388608 bytes"),
        ({"command": "no-such-program", "network": True}, b"there is no program no-such-program"),
        ({"url": "http://127.0.0.1:9/mcp?key=sekrit-8152"}, b"the server cannot be reached"),
    ],
)
def test_a_server_that_cannot_be_used_ends_the_run_before_it_costs(
    workspace: Path, given: dict, words: bytes
) -> None:
    """The error names the server and the reason, and no secret."""
    model = script(workspace.parent / "script.jsonl", {"text": "done"})
    arguments = ("--model", model, *configured(small=given))
    done = run("spawn", "--prompt", "go", *arguments, cwd=workspace, check=78)
    assert words in done.stderr, done.stderr
    assert b"sekrit" not in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("kind", ["http", "sse"])
def test_a_remote_server_is_reached_with_its_headers(workspace: Path, kind: str) -> None:
    """Over HTTP the headers go with each request and come back to nobody; without, it is said."""
    transcript = workspace.parent / "t.jsonl"
    lines = (
        call("mcp__remote__shout", text="hello"),
        call("mcp__remote__header"),
        {"text": "done"},
    )
    with listening(kind) as url:
        server = {"type": kind, "url": url, "headers": {"Authorization": f"Bearer {TOKEN}"}}
        arguments = (*configured(remote=server), "--transcript", str(transcript))
        events = events_of(workspace, *lines, arguments=arguments)
        assert heads(events) == [
            ("HELLO", False),
            ("the token is [Authorization withheld]", False),
        ]
        assert TOKEN not in transcript.read_text()
        model = script(workspace.parent / "s.jsonl", {"text": "done"})
        arguments = ("--model", model, *configured(remote={"type": kind, "url": url}))
        done = run("spawn", "--prompt", "go", *arguments, cwd=workspace, check=78)
        assert b"401" in done.stderr, done.stderr


@pytest.mark.slow
def test_a_giant_answer_is_given_up(workspace: Path) -> None:
    """A response of 40 MB is not read to its end; the call is an error."""
    lines = (call("mcp__remote__flood"), {"text": "done"})
    with listening("http") as url:
        server = {"url": url, "headers": {"Authorization": f"Bearer {TOKEN}"}}
        arguments = (*configured(remote=server), "--tool-timeout", "20")
        events = events_of(workspace, *lines, arguments=arguments)
    ((head, is_error),) = heads(events)
    assert is_error, head[:200]
    assert len(head) < 1000


def test_it_ends_with_the_run(workspace: Path) -> None:
    """After a run, and after one that is cancelled in a call, no process of it is left."""
    marker = "76.4242"
    lines = (call("mcp__small__pid"), {"text": "done"})
    events = events_of(workspace, *lines, arguments=configured(small=outside(marker)))
    assert heads(events)[0][1] is False
    assert not processes_with(marker)

    model = script(workspace.parent / "script.jsonl", call("mcp__small__sleep"))

    async def main() -> None:
        async with forkrun.spawn(
            "go",
            model=model,
            cwd=workspace,
            mcp_servers={"small": outside(marker)},
            environ=environment(workspace.parent),
        ) as started:
            async for event in started.events():
                if isinstance(event, forkrun.ToolCallEvent):
                    break
            await asyncio.to_thread(wait_until, lambda: processes_named(marker))
            started.cancel()
            assert (await started.result()).stop_reason == "cancelled"
            assert not processes_named(marker)

    asyncio.run(main())


@pytest.mark.parametrize("where", [inside, outside])
def test_a_run_is_cancelled_while_a_server_starts(workspace: Path, where) -> None:
    """A server that never answers does not hold up the end of its run, and is gone with it."""
    marker = f"78.{where.__name__}"
    arguments = (workspace, "--hangs", marker) if where is inside else ("--hangs", marker)
    model = script(workspace.parent / "script.jsonl", {"text": "done"})

    async def main() -> None:
        async with forkrun.spawn(
            "go",
            model=model,
            cwd=workspace,
            mcp_servers={"small": where(*arguments)},
            environ=environment(workspace.parent),
        ) as started:
            await asyncio.to_thread(wait_until, lambda: processes_named(marker))
            began = time.monotonic()
            started.cancel()
            assert (await started.result()).stop_reason == "cancelled"
            assert time.monotonic() - began < 5
            assert not processes_named(marker)

    asyncio.run(main())
