"""MCP servers inside the sandbox of the child."""

import asyncio
import json
import socket
from pathlib import Path

import pytest
from support_api import processes_named
from support_cli import call, environment, processes_with, run, script, wait_until
from support_mcp import configured, events_of, heads, inside

import forkrun


def test_its_tools_are_the_models(workspace: Path) -> None:
    """Each tool has its name and its schema in the request, and a call comes back as it was meant."""
    lines = (
        call("mcp__small__echo", text="hello \x1b[31mred"),
        call("mcp__small__with_dot"),
        call("mcp__small__fail"),
        {"text": "done"},
    )
    events = events_of(workspace, *lines, arguments=configured(small=inside(workspace)))
    assert "mcp__small__echo" in events[0]["tools"]
    assert heads(events) == [
        ("hello red", False),
        ('{"dotted":true}', False),
        ("it went wrong", True),
    ]
    assert events[-1]["stop_reason"] == "completed"


def test_pictures_and_notes_are_kept(workspace: Path) -> None:
    """An image comes back as an image, a resource as text, a sound as a note that it is left out."""
    transcript = workspace.parent / "t.jsonl"
    arguments = (*configured(small=inside(workspace)), "--transcript", str(transcript))
    lines = (call("mcp__small__picture"), {"text": "done"})
    ((head, is_error),) = heads(events_of(workspace, *lines, arguments=arguments))
    assert not is_error
    assert "audio/wav" in head
    assert "[note://1]\na note" in head
    assert "image/png" in transcript.read_text()


def test_a_long_result_is_cut(workspace: Path) -> None:
    """A result is bounded as those of our own tools are."""
    lines = (call("mcp__small__large"), {"text": "done"})
    events = events_of(workspace, *lines, arguments=configured(small=inside(workspace)))
    (result,) = [each for each in events if each["type"] == "tool_result"]
    assert 29_000 < result["size"] < 31_000


def test_it_is_as_confined_as_the_child(workspace: Path) -> None:
    """It has no variable of ours, reaches nobody on this machine, and its files are the run's."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), 2):
            pass  # the control: outside, somebody answers
        lines = (
            call("mcp__small__environment"),
            call("mcp__small__connect"),
            call("mcp__small__write", text="x"),
            {"text": "done"},
        )
        events = events_of(
            workspace,
            *lines,
            arguments=configured(small=inside(workspace, str(port))),
            env=environment(workspace.parent, ANTHROPIC_API_KEY="canary-4711"),
        )
    (found, _), (connected, _), _ = heads(events)
    assert "canary-4711" not in found
    assert connected.startswith("refused")
    assert {"path": "written.txt", "kind": "added"} in events[-1]["changes"]


def test_what_it_writes_is_thrown_away_with_the_run(workspace: Path) -> None:
    """In a view that is discarded a server's writes go with it."""
    lines = (call("mcp__small__write", text="x"), {"text": "done"})
    arguments = (*configured(small=inside(workspace)), "--workspace", "discard")
    events_of(workspace, *lines, arguments=arguments)
    assert not (workspace / "written.txt").exists()


@pytest.mark.parametrize(
    ("rules", "allowed"),
    [
        (("--allow", "mcp__small__echo"), True),
        (("--allow", "mcp__small"), True),
        (("--allow", "read"), False),
        (("--deny", "mcp__small__echo"), False),
        (("--deny", "mcp__small"), False),
        (("--deny", "mcp__smal", "mcp__small__fail"), True),
    ],
)
def test_rules_hold_for_it(workspace: Path, rules: tuple[str, ...], allowed: bool) -> None:
    """`mcp__server` and `mcp__server__tool` allow and deny, as rules of our own tools do."""
    lines = (call("mcp__small__echo", text="hi"), {"text": "done"})
    arguments = (*configured(small=inside(workspace)), *rules)
    events = events_of(workspace, *lines, arguments=arguments)
    assert bool(events[-1]["denials"]) is not allowed
    assert bool(heads(events)) is allowed


def test_a_server_that_ends_is_said_to_have(workspace: Path) -> None:
    """A call that kills its server is an error with the exit code; so is the next, and no more."""
    lines = (call("mcp__small__end"), call("mcp__small__echo", text="hi"), {"text": "done"})
    events = events_of(workspace, *lines, arguments=configured(small=inside(workspace)))
    assert all("ended with exit code 7" in head and is_error for head, is_error in heads(events))
    assert events[-1]["stop_reason"] == "completed"


def test_a_call_has_the_time_of_a_tool(workspace: Path) -> None:
    """A call that does not answer ends with an error after --tool-timeout."""
    lines = (call("mcp__small__sleep"), {"text": "done"})
    arguments = (*configured(small=inside(workspace)), "--tool-timeout", "0.5")
    ((head, is_error),) = heads(events_of(workspace, *lines, arguments=arguments))
    assert is_error
    assert "no answer after 0.5 s" in head


def test_a_server_that_cannot_be_used_ends_the_run_before_it_costs(workspace: Path) -> None:
    """A server that dies, or that is not there, is an error with its words; no model was asked."""
    server = inside(workspace, "--dies")
    model = script(workspace.parent / "script.jsonl", {"text": "done"})
    for given, words in (
        (server, b"it cannot start without its configuration"),
        ({"command": "no-such-program"}, b"there is no program no-such-program"),
    ):
        done = run(
            *("spawn", "--prompt", "go", "--model", model, *configured(small=given)),
            cwd=workspace,
            check=78,
        )
        assert words in done.stderr
        assert b"'small' cannot be used" in done.stderr
        assert done.stdout == b""


def test_a_line_without_end_ends_its_server(workspace: Path) -> None:
    """A server that floods its output is given up; nothing of that size is kept."""
    model = script(workspace.parent / "script.jsonl", {"text": "done"})
    given = configured(small=inside(workspace, "--floods"))
    done = run("spawn", "--prompt", "go", "--model", model, *given, cwd=workspace, check=78)
    assert b"a message of more than" in done.stderr


def test_it_dies_with_the_run(workspace: Path) -> None:
    """After the run no process of the server is left, though it has not been told to end."""
    marker = "74.4242"
    lines = (call("bash", command=f"pgrep -f {marker}"), {"text": "done"})
    events = events_of(workspace, *lines, arguments=configured(small=inside(workspace, marker)))
    assert heads(events)[0][1] is False  # the control: it was there
    assert not processes_with(marker)


def test_a_fork_has_those_tools_that_its_parent_had(workspace: Path) -> None:
    """In a fork a tool of the parent's list works, and no other; the list itself stays as it is."""
    snapshot = workspace.parent / "snapshot.json"
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    tool = {
        "name": "mcp__small__echo",
        "description": "as the parent has it",
        "input_schema": schema,
    }
    asked = {"role": "user", "content": "what is there?"}
    request = {"model": "claude-test", "max_tokens": 100, "tools": [tool], "messages": [asked]}
    snapshot.write_text(json.dumps(request))
    lines = (
        call("mcp__small__echo", text="hi"),
        call("mcp__small__fail"),
        {"text": "done"},
    )
    arguments = (*configured(small=inside(workspace)), "--snapshot", str(snapshot))
    events = events_of(workspace, *lines, arguments=arguments)
    assert heads(events) == [("hi", False)]
    assert "mcp__small__fail" not in events[0]["tools"]
    (denial,) = events[-1]["denials"]
    assert denial["tool"] == "mcp__small__fail"


def test_bash_leaves_the_server_alone(workspace: Path) -> None:
    """What a command leaves behind is ended; a server that was there before it goes on."""
    lines = (
        call("bash", command="sleep 60 & echo started"),
        call("mcp__small__echo", text="still here"),
        {"text": "done"},
    )
    events = events_of(workspace, *lines, arguments=configured(small=inside(workspace)))
    assert heads(events)[1] == ("still here", False)


def test_a_cancelled_run_ends_it(workspace: Path) -> None:
    """Ending a run in the middle of a call leaves nothing of the server."""
    marker = "75.4242"
    model = script(workspace.parent / "script.jsonl", call("mcp__small__sleep"))
    servers = {"small": inside(workspace, marker)}

    async def main() -> None:
        async with forkrun.spawn(
            "go",
            model=model,
            cwd=workspace,
            mcp_servers=servers,
            environ=environment(workspace.parent),
        ) as started:
            async for event in started.events():
                if isinstance(event, forkrun.ToolCallEvent):
                    break
            await asyncio.to_thread(wait_until, lambda: processes_named(marker))
            started.cancel()
            assert (await started.result()).stop_reason == "cancelled"

    asyncio.run(main())
    assert not processes_named(marker)


@pytest.mark.parametrize("sandbox", ["lsm", "none"])
def test_in_weaker_tiers_it_dies_with_the_run_too(workspace: Path, sandbox: str) -> None:
    """Where no namespace ends it, the run does; also in the middle of a call."""
    marker = f"77.{sandbox}"
    given = inside(workspace, marker)
    flags = ("--sandbox", sandbox, "--workspace", "live", *configured(small=given))
    lines = (call("mcp__small__echo", text="hi"), {"text": "done"})
    events = events_of(workspace, *lines, arguments=flags)
    assert heads(events) == [("hi", False)]
    assert not processes_with(marker)

    lines = (call("mcp__small__sleep"), {"text": "done"})
    events = events_of(workspace, *lines, arguments=(*flags, "--timeout", "2"), check=124)
    assert events[-1]["stop_reason"] == "timeout"
    assert not processes_with(marker)


def test_a_nested_run_has_them_too(workspace: Path) -> None:
    """A run that the run starts gets the same servers, each run its own process of them."""
    # Both runs play the whole script; the inner one is told that it is too deep for another.
    lines = (
        call("task", prompt="look"),
        call("mcp__small__echo", text="hi"),
        {"text": "done"},
    )
    arguments = (*configured(small=inside(workspace)), "--max-depth", "1")
    events = events_of(workspace, *lines, arguments=arguments)
    (subrun,) = events[-1]["subruns"]
    assert (subrun["stop_reason"], subrun["tool_calls"]) == ("completed", 1)
    assert heads(events)[1] == ("hi", False)
