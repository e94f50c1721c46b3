"""Spans of runs, taken by the real SDK's exporter in memory."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import support_cli
from messages_server import MessagesServer
from support_cli import script
from support_embedding import Played, at, environ, run, workspace  # noqa: F401

from forkrun.job import Job
from forkrun.limits import Limits
from forkrun.runner import Runner

pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import (
    InMemorySpanExporter,
)

FROM_OUTSIDE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def traced():
    """A provider, and a function that gives the finished spans by name."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    def spans(name: str) -> list[Any]:
        return [span for span in exporter.get_finished_spans() if span.name == name]

    yield provider, spans
    provider.shutdown()


def bash(command: str, last: str = "done") -> Played:
    def answer(messages):
        if len(messages) == 1:
            return {"tool_use": [("bash", {"command": command})]}
        return {"text": last or str(messages[-1]["content"][0]["content"])}

    return Played(answer)


def test_a_run_is_a_span_with_its_replies_and_calls_below(workspace, traced) -> None:
    """invoke_agent over chat and execute_tool, with the attributes of the conventions."""
    provider, spans = traced
    lines = [
        {
            "tool_use": [{"name": "bash", "input": {"command": "echo hi"}}],
            "usage": {"input_tokens": 5, "cache_read_input_tokens": 70, "output_tokens": 3},
        },
        {"text": "done", "usage": {"input_tokens": 6, "output_tokens": 2}},
    ]
    with MessagesServer(lines) as server:
        result = run(
            workspace,
            "claude-sonnet-4-5",
            env=at(server.url),
            runner={"tracer_provider": provider},
            label="tester",
        )
    (agent,) = spans("invoke_agent tester")
    first, second = spans("chat claude-sonnet-4-5")
    (tool,) = spans("execute_tool bash")
    assert {span.parent.span_id for span in (first, second, tool)} == {agent.context.span_id}
    assert agent.parent is None
    assert first.kind.name == "CLIENT"
    assert dict(agent.attributes) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "tester",
        "gen_ai.agent.id": result.run_id,
        "gen_ai.provider.name": "anthropic",
        "gen_ai.request.model": "claude-sonnet-4-5",
        "gen_ai.usage.input_tokens": 81,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 70,
        "gen_ai.usage.cache_creation.input_tokens": 0,
        "forkrun.stop_reason": "completed",
    }
    assert dict(first.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.request.model": "claude-sonnet-4-5",
        "gen_ai.request.max_tokens": 8000,
        "gen_ai.response.model": "claude-sonnet-4-5",
        "gen_ai.response.finish_reasons": ("tool_use",),
        "gen_ai.usage.input_tokens": 75,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 70,
        "gen_ai.usage.cache_creation.input_tokens": 0,
    }
    assert tool.attributes["gen_ai.operation.name"] == "execute_tool"
    assert tool.attributes["gen_ai.tool.name"] == "bash"
    assert tool.attributes["gen_ai.tool.type"] == "function"
    assert tool.attributes["gen_ai.tool.call.id"]
    assert first.end_time <= tool.start_time <= tool.end_time <= second.start_time


def test_no_content_stands_in_a_span(workspace, traced) -> None:
    """Prompts, replies and inputs stay out."""
    provider, _ = traced
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    model = bash("echo secret-in", last="secret-out")
    run(workspace, model, runner={"tracer_provider": provider}, prompt="secret-prompt")
    assert "secret" not in "".join(span.to_json() for span in exporter.get_finished_spans())


def test_nested_runs_stand_below_the_call_that_started_them(workspace, traced) -> None:
    """One trace for the tree: invoke_agent, execute_tool task, invoke_agent; tokens are each its own."""
    provider, spans = traced

    def answer(messages):
        if messages[0]["content"][0]["text"] != "go":
            return {"text": "did"}
        if len(messages) > 1:
            return {"text": "done"}
        asked = [("task", {"prompt": "a", "description": "sub"})] * 2
        return {"tool_use": asked}

    run(
        workspace,
        Played(answer),
        runner={"tracer_provider": provider},
        limits=Limits(max_depth=1),
        label="root",
    )
    (root,) = spans("invoke_agent root")
    calls, subs = spans("execute_tool task"), spans("invoke_agent sub")
    assert {call.parent.span_id for call in calls} == {root.context.span_id}
    assert {sub.parent.span_id for sub in subs} == {call.context.span_id for call in calls}
    assert {span.context.trace_id for span in (*calls, *subs)} == {root.context.trace_id}
    used = [span.attributes["gen_ai.usage.output_tokens"] for span in (root, *subs)]
    assert used == [2, 1, 1]


def test_failures_are_marked(workspace, traced) -> None:
    """A run, a reply and a call that fail have a status and an error.type."""
    provider, spans = traced
    lines = [
        {"tool_use": [{"name": "read_file", "input": {"file_path": "none"}}]},
        {"error": {"type": "invalid_request_error", "message": "no"}},
    ]
    with MessagesServer(lines) as server:
        run(workspace, "claude-test", env=at(server.url), runner={"tracer_provider": provider})
    (agent,) = spans("invoke_agent subagent")
    (tool,) = spans("execute_tool read_file")
    chats = spans("chat claude-test")
    assert agent.attributes["error.type"] == "model_error"
    assert tool.attributes["error.type"] == "tool_error"
    assert chats[1].attributes["error.type"] == "invalid_request_error"
    assert not agent.status.is_ok and not tool.status.is_ok and not chats[1].status.is_ok
    assert "error.type" not in chats[0].attributes


def test_a_call_that_is_cut_off_has_its_span(workspace, traced) -> None:
    """What ran when the time was up is there, and marked."""
    provider, spans = traced
    limits = Limits(timeout_s=2.0)
    run(workspace, bash("sleep 309"), runner={"tracer_provider": provider}, limits=limits)
    (tool,) = spans("execute_tool bash")
    (agent,) = spans("invoke_agent subagent")
    assert tool.attributes["error.type"] == "cancelled"
    assert agent.attributes["error.type"] == "timeout"


def test_the_callers_span_is_the_parent(workspace, traced) -> None:
    """A span that is current where the run is started wins over a stale TRACEPARENT."""
    provider, spans = traced
    env = environ(workspace, TRACEPARENT=FROM_OUTSIDE)

    async def whole() -> None:
        async with Runner(model=bash("true"), environ=env, tracer_provider=provider) as runner:
            with provider.get_tracer("host").start_as_current_span("host"):
                await runner.run(Job(prompt="go", cwd=str(workspace)))

    asyncio.run(whole())
    (host,), (agent,) = spans("host"), spans("invoke_agent subagent")
    assert agent.parent.span_id == host.context.span_id
    assert agent.context.trace_id == host.context.trace_id


def test_the_trace_of_the_environment_is_gone_on_with(workspace, traced) -> None:
    """TRACEPARENT is the parent where no span is current; one that is not valid is dropped."""
    provider, spans = traced
    for value in (FROM_OUTSIDE, "00-nonsense", f"00-{'0' * 32}-b7ad6b7169203331-01"):
        run(
            workspace,
            bash("true"),
            env={"TRACEPARENT": value},
            runner={"tracer_provider": provider},
        )
    first, second, third = spans("invoke_agent subagent")
    assert f"{first.context.trace_id:032x}" == FROM_OUTSIDE.split("-")[1]
    assert f"{first.parent.span_id:016x}" == FROM_OUTSIDE.split("-")[2]
    assert (second.parent, third.parent) == (None, None)


def test_commands_are_told_the_trace(workspace, traced) -> None:
    """TRACEPARENT of a command is the run's own span, whatever stood in the environment before."""
    provider, spans = traced
    result = run(
        workspace,
        bash('echo "[$TRACEPARENT]"', last=""),
        env={"TRACEPARENT": FROM_OUTSIDE},
        runner={"tracer_provider": provider},
        job_env={"TRACEPARENT": "stale"},
    )
    (agent,) = spans("invoke_agent subagent")
    span = f"{agent.context.trace_id:032x}-{agent.context.span_id:016x}"
    assert f"[00-{span}-01]" in result.summary


@pytest.mark.parametrize(
    ("given", "seen"), [(FROM_OUTSIDE, FROM_OUTSIDE), ("garbage", ""), ("", "")]
)
def test_a_trace_goes_through_where_no_span_is_made(workspace, given: str, seen: str) -> None:
    """Without a tracer the caller's context is carried on, if it is valid."""
    model = script(
        workspace.parent / "s.jsonl",
        {"tool_use": [{"name": "bash", "input": {"command": 'echo "[$TRACEPARENT]" > seen.txt'}}]},
        {"text": "done"},
    )
    home = workspace.parent / "home"
    env = support_cli.environment(home, TRACEPARENT=given)
    support_cli.run("spawn", "--prompt", "go", "--model", model, cwd=workspace, env=env, check=0)
    assert (workspace / "seen.txt").read_text() == f"[{seen}]\n"


def test_the_command_line_exports_where_the_environment_says_so(workspace) -> None:
    """OTEL_TRACES_EXPORTER names an exporter; spans never stand on stdout."""
    model = script(workspace.parent / "s.jsonl", {"text": "done"})
    home = workspace.parent / "home"
    env = support_cli.environment(home, OTEL_TRACES_EXPORTER="console")
    done = support_cli.run(
        "spawn", "--prompt", "go", "--model", model, cwd=workspace, env=env, check=0
    )
    assert done.stdout == b"done\n"
    assert b'"name": "invoke_agent subagent"' in done.stderr


def test_an_exporter_that_cannot_be_had_or_reached_does_not_hold_a_run_up(workspace: Path) -> None:
    """Tracing that fails is a word on stderr; the answer comes, and the end waits seconds only."""
    model = script(workspace.parent / "s.jsonl", {"text": "done"})
    env = support_cli.environment(
        workspace.parent / "home", OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9"
    )
    began = time.monotonic()
    done = support_cli.run(
        "spawn", "--prompt", "go", "--model", model, cwd=workspace, env=env, check=0
    )
    assert time.monotonic() - began < 8
    assert done.stdout == b"done\n"
    assert b"no traces" in done.stderr or b"xport" in done.stderr


def test_nothing_is_imported_unless_used(workspace: Path) -> None:
    """A run of a host that does not trace imports nothing of OpenTelemetry."""
    model = script(workspace.parent / "s.jsonl", {"text": "done"})
    code = f"""
import sys, forkrun
forkrun.run_sync("go", model={model!r}, cwd={str(workspace)!r})
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environ(workspace),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"
