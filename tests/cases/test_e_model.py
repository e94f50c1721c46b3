"""Cases of the model and its API: each test has the id of its case and the right value."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from messages_server import MessagesServer
from support_cli import call, environment, run, script, spawn

OVERLOADED = {"error": {"status": 529, "type": "overloaded_error", "message": "Overloaded"}}
TEXT_ONLY = {"type": "text", "text": "ok"}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "ws"
    path.mkdir()
    return path


def against(server: MessagesServer, workspace: Path, *arguments: str, **env: str) -> dict[str, Any]:
    """Run a job whose model is the loopback server; give the result."""
    variables = environment(
        workspace.parent, ANTHROPIC_API_KEY="sk-test", ANTHROPIC_BASE_URL=server.url, **env
    )
    done = run(
        *("spawn", "--prompt", "go", "--model", "claude-test", "--output-format", "json"),
        *arguments,
        cwd=workspace,
        env=variables,
    )
    return json.loads(done.stdout) | {"exit": done.returncode}


def results_in(request: Any) -> list[dict[str, Any]]:
    """The tool_result blocks of the last message of a recorded request."""
    return [b for b in request.json["messages"][-1]["content"] if b["type"] == "tool_result"]


def test_E01_overload_that_passes_is_waited_out(workspace: Path) -> None:
    """A few 529s cost time and nothing else."""
    with MessagesServer([OVERLOADED | {"repeat": 2}, {"text": "done"}]) as server:
        result = against(server, workspace)
    assert (result["stop_reason"], result["summary"], result["exit"]) == ("completed", "done", 0)
    assert len(server.messages) == 3


def test_E01_overload_without_end_is_no_success(workspace: Path) -> None:
    """When the retries are used up, the run says so; what it had done is in the result."""
    lines = [{"text": "part of it", **call("bash", command="true")}, OVERLOADED | {"repeat": None}]
    with MessagesServer(lines) as server:
        result = against(server, workspace, "--retries", "1")
    assert (result["stop_reason"], result["exit"]) == ("model_unavailable", 10)
    assert result["tool_calls"] == 1
    assert "part of it" in result["summary"]
    assert result["recovered"] is True
    assert result["error"]["type"] == "overloaded_error"


@pytest.mark.parametrize(("header", "least_s"), [("1", 1.0), ("abc", 0.0)])
def test_E03_retry_after_is_obeyed(header: str, least_s: float, workspace: Path) -> None:
    """The wait is at least what the header says; a header that is junk is none."""
    limited = {
        "error": {"status": 429, "type": "rate_limit_error", "message": "slow down"},
        "headers": {"retry-after": header},
    }
    with MessagesServer([limited, {"text": "done"}]) as server:
        began = time.monotonic()
        result = against(server, workspace)
    assert result["summary"] == "done"
    assert time.monotonic() - began >= least_s


def test_E03_a_wait_beyond_the_deadline_ends_the_run_at_once(workspace: Path) -> None:
    """Nobody waits a day for a run of half an hour."""
    limited = {
        "error": {"status": 429, "type": "rate_limit_error", "message": "slow down"},
        "headers": {"retry-after": "86400"},
    }
    with MessagesServer([limited, {"text": "done"}]) as server:
        began = time.monotonic()
        result = against(server, workspace)
    assert time.monotonic() - began < 20
    assert result["stop_reason"] == "model_unavailable"
    assert "not tried again" in result["error"]["message"]


def test_E04_a_stream_cut_in_a_call_runs_nothing(workspace: Path) -> None:
    """Half a call is no call: the turn is asked for again from the same history."""
    half = call("bash", command="touch PWNED; echo " + "x" * 200) | {"cut_after_events": 4}
    with MessagesServer([half, {"text": "done"}]) as server:
        result = against(server, workspace)
    assert (result["summary"], result["tool_calls"]) == ("done", 0)
    assert not (workspace / "PWNED").exists()
    first, second = server.messages
    assert first.json == second.json


def test_E05_a_call_cut_by_max_tokens_is_not_run(workspace: Path) -> None:
    """The model is told that its reply was cut, and the loop goes on."""
    cut = {
        "stop_reason": "max_tokens",
        "content": [
            {"type": "tool_use", "id": "t1", "name": "write_file", "input": {"file_path": "x"}}
        ],
    }
    with MessagesServer([cut, {"text": "ok"}]) as server:
        result = against(server, workspace)
    assert (result["stop_reason"], result["summary"]) == ("completed", "ok")
    (answer,) = results_in(server.messages[1])
    assert answer["is_error"] is True
    assert "max_tokens" in answer["content"]
    assert list(workspace.iterdir()) == []


def test_E08_a_paused_turn_is_continued(workspace: Path) -> None:
    """The paused message goes back unchanged, with no text of ours; the pause counts as a turn."""
    paused = {
        "stop_reason": "pause_turn",
        "content": [
            {"type": "text", "text": "searching"},
            {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}},
        ],
    }
    result = spawn(workspace, paused, {"text": "found"})
    assert (result["summary"], result["turns"]) == ("found", 2)
    with MessagesServer([paused, {"text": "found"}]) as server:
        result = against(server, workspace)
    bodies = [request.json for request in server.requests]
    last = bodies[1]["messages"][-1]
    assert last["role"] == "assistant"
    assert [block["type"] for block in last["content"]] == ["text", "server_tool_use"]


def test_E08_pauses_count_toward_the_bound(workspace: Path) -> None:
    """A model that pauses for ever is stopped like any other."""
    paused = {"stop_reason": "pause_turn", "content": [{"type": "text", "text": "searching"}]}
    result = spawn(workspace, *[paused] * 5, arguments=("--max-turns", "2"))
    assert (result["stop_reason"], result["turns"]) == ("max_turns", 2)


def test_E09_a_refusal_is_not_retried(workspace: Path) -> None:
    """One request; the category and the explanation stand in the result."""
    refusal = {
        "stop_reason": "refusal",
        "content": [],
        "stop_details": {"type": "refusal", "category": "cyber", "explanation": "no"},
    }
    with MessagesServer([refusal | {"repeat": None}]) as server:
        result = against(server, workspace)
    assert len(server.messages) == 1
    assert (result["stop_reason"], result["exit"]) == ("refused", 11)
    assert "cyber" in result["error"]["message"]
    assert "no" in result["error"]["message"]
    assert "refused" in result["summary"]


def test_E11_an_empty_last_reply_is_asked_for_in_words(workspace: Path) -> None:
    """The findings of an earlier turn are not lost, and the result says that they stand in."""
    found = {"text": "FINDINGS: 42", **call("bash", command="true")}
    empty = {"stop_reason": "end_turn", "content": []}
    result = spawn(workspace, found, empty, {"text": "In short: 42"})
    assert (result["summary"], result["recovered"]) == ("In short: 42", True)
    result = spawn(workspace, found, empty, empty)
    assert result["summary"].startswith("FINDINGS: 42")
    assert "partial" in result["summary"]
    assert (result["recovered"], result["summary_turn"]) == (True, 1)


def test_E13_only_the_last_reply_is_the_summary(workspace: Path) -> None:
    """Chatter between tool calls is not the answer."""
    model = script(
        workspace.parent / "s.jsonl",
        {"text": "CHATTER", **call("bash", command="true")},
        {"text": "FINAL"},
    )
    done = run("spawn", "--prompt", "go", "--model", model, cwd=workspace, check=0)
    assert done.stdout == b"FINAL\n"


def test_E14_unknown_tools_are_answered_with_those_that_exist(workspace: Path) -> None:
    """Case is not guessed; the loop goes on."""
    calls = {
        "tool_use": [
            {"name": "Bash", "input": {"command": "touch PWNED"}},
            {"name": "mcp__db__query", "input": {}},
        ]
    }
    with MessagesServer([calls, {"text": "ok"}]) as server:
        result = against(server, workspace)
    assert result["summary"] == "ok"
    for answer in results_in(server.messages[1]):
        assert answer["is_error"] is True
        assert "read_file" in answer["content"]
    assert not (workspace / "PWNED").exists()


def test_E15_mistyped_input_names_the_key(workspace: Path) -> None:
    """Nothing runs, nothing crashes, and the model reads which key was wrong."""
    calls = {
        "tool_use": [
            {"name": "bash", "input": {}},
            {"name": "bash", "input": {"command": ["ls"], "timeout": "10"}},
            {"name": "read_file", "input": {"path": None, "limit": -1, "offset": 1000000000}},
        ]
    }
    with MessagesServer([calls, {"text": "ok"}]) as server:
        result = against(server, workspace)
    assert result["summary"] == "ok"
    answers = results_in(server.messages[1])
    assert all(answer["is_error"] for answer in answers)
    for answer, key in zip(answers, ("command", "command", "file_path"), strict=True):
        assert key in answer["content"]
        assert "Traceback" not in answer["content"]


def test_E16_input_that_is_text_becomes_an_object(workspace: Path) -> None:
    """What is stored is what the next request may hold: objects."""
    reply = {
        "content": [
            {"type": "tool_use", "id": "t1", "name": "bash", "input": '{"command":"echo hi"}'},
            {"type": "tool_use", "id": "t2", "name": "bash", "input": ""},
        ],
        "stop_reason": "tool_use",
    }
    transcript = workspace.parent / "t.jsonl"
    result = spawn(workspace, reply, {"text": "ok"}, arguments=("--transcript", str(transcript)))
    assert result["summary"] == "ok"
    lines = [json.loads(line) for line in transcript.read_text().splitlines()]
    first, second = (line for line in lines if line["type"] == "tool_result")
    assert (first["text"], first["is_error"]) == ("hi", False)
    assert second["is_error"] is True


def test_E17_one_failing_call_loses_no_other(workspace: Path) -> None:
    """One user message, one result a call, in call order, each with its own error flag."""
    calls = {
        "tool_use": [
            {"name": "bash", "input": {"command": "echo 1"}},
            {"name": "bash", "input": {"command": "sleep 60", "timeout": 0.5}},
            {"name": "read_file", "input": {"file_path": "/nonexistent"}},
            {"name": "bash", "input": {"command": "echo 4"}},
        ]
    }
    with MessagesServer([calls, {"text": "ok"}]) as server:
        against(server, workspace)
    second = server.messages[1].json
    asked = [b["id"] for b in second["messages"][-2]["content"] if b["type"] == "tool_use"]
    answers = results_in(server.messages[1])
    assert [answer["tool_use_id"] for answer in answers] == asked
    assert [answer.get("is_error", False) for answer in answers] == [False, True, True, False]


def test_E18_the_bound_at_a_call_is_no_success(workspace: Path) -> None:
    """Three rounds, one closing request with the same tools, and a summary that says partial."""
    step = call("bash", command="true")
    with MessagesServer(lambda request: {"text": f"step {len(server.messages)}", **step}) as server:
        result = against(server, workspace, "--max-turns", "3")
    assert (result["stop_reason"], result["exit"]) == ("max_turns", 53)
    assert result["tool_calls"] == 3
    assert len(server.messages) == 4
    tools = [request.json["tools"] for request in server.messages]
    assert tools[0] == tools[3]
    assert "partial" in result["summary"]


@pytest.mark.parametrize("is_answer", [True, False], ids=["400", "stop reason"])
def test_E20_a_full_context_ends_with_what_there_is(is_answer: bool, workspace: Path) -> None:
    """No blind retry; the partial text and the finished calls stand in the result."""
    full = (
        {"error": {"status": 400, "type": "invalid_request_error", "message": "prompt is too long"}}
        if is_answer
        else {"content": [], "stop_reason": "model_context_window_exceeded"}
    )
    step = {"text": "so far", **call("bash", command="true")}
    with MessagesServer([step, step, step, full | {"repeat": None}]) as server:
        result = against(server, workspace)
    assert len(server.messages) == 4
    assert (result["stop_reason"], result["exit"]) == ("context_exceeded", 12)
    assert result["tool_calls"] == 3
    assert "so far" in result["summary"]
