"""An answer of a form that was asked for, by each road, from a server that is as strict as the API."""

from __future__ import annotations

import json

import msgspec
import pytest
from messages_server import MessagesServer
from support_embedding import at, run, workspace  # noqa: F401
from support_mcp import inside

from forkrun.mcp.config import McpServer

SCHEMA = {
    "type": "object",
    "properties": {
        "version": {"type": "integer", "minimum": 1},
        "files": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["version", "files"],
}
GOOD = {"version": 7, "files": ["README.md"]}
BAD = {"version": 0, "files": ["README.md"]}
CURRENT, OLD = "claude-sonnet-4-5", "claude-opus-4-1"
PARENT = {
    "model": CURRENT,
    "max_tokens": 500,
    "tools": [{"name": "Read", "input_schema": {"type": "object"}}],
    "messages": [{"role": "user", "content": "Look at this project."}],
}


def text(value) -> dict:
    return {"text": json.dumps(value)}


def final(value, **more) -> dict:
    return {"tool_use": [{"name": "final_answer", "input": value}], **more}


def served(workspace, model, lines, **job):
    with MessagesServer(lines) as server:
        result = run(workspace, model, env=at(server.url), json_schema=SCHEMA, **job)
        assert [r.status for r in server.messages] == [200] * len(server.messages)
        return result, [r.json for r in server.messages]


def forked(workspace, lines, **job):
    with MessagesServer(lines) as server:
        snapshot = json.dumps(PARENT).encode()
        from forkrun.snapshot.freeze import Snapshot

        result = run(
            workspace,
            None,
            env=at(server.url),
            snapshot=Snapshot.from_json(snapshot),
            json_schema=SCHEMA,
            **job,
        )
        return result, [r.json for r in server.messages]


def test_a_model_with_structured_outputs_is_held_to_the_schema_by_the_api(workspace) -> None:
    """The request carries the schema in the API's own part; the reply's text is the answer."""
    result, (request,) = served(workspace, CURRENT, [text(GOOD)])
    assert result.stop_reason == "completed"
    assert result.structured_output == GOOD
    assert json.loads(result.summary) == GOOD
    form = request["output_config"]["format"]
    assert form["type"] == "json_schema"
    assert form["schema"]["additionalProperties"] is False
    assert form["schema"]["properties"]["version"]["description"] == "{minimum: 1}"
    assert "final_answer" not in [tool["name"] for tool in request["tools"]]


def test_another_model_gives_its_answer_by_a_tool(workspace) -> None:
    """A model without structured outputs calls `final_answer`, whose input is the answer."""
    result, (request,) = served(workspace, OLD, [final(GOOD)])
    assert (result.stop_reason, result.structured_output) == ("completed", GOOD)
    assert json.loads(result.summary) == GOOD
    assert "output_config" not in request
    assert request["tools"][-1]["name"] == "final_answer"
    assert request["tools"][-1]["input_schema"] == SCHEMA


def test_a_fork_is_asked_in_words_and_keeps_its_prefix(workspace) -> None:
    """A fork's tools and parameters are its parent's; the schema stands in the directive."""
    result, (request,) = forked(workspace, [text(GOOD)])
    assert (result.stop_reason, result.structured_output) == ("completed", GOOD)
    assert request["tools"] == PARENT["tools"]
    assert "output_config" not in request
    assert (
        json.dumps(SCHEMA, separators=(",", ":")) in request["messages"][-1]["content"][-1]["text"]
    )


def test_a_fenced_answer_is_an_answer(workspace) -> None:
    """JSON in a code fence counts, with words around it or not."""
    line = {"text": f"Here it is:\n```json\n{json.dumps(GOOD)}\n```"}
    result, _ = forked(workspace, [line])
    assert result.structured_output == GOOD
    assert json.loads(result.summary) == GOOD


@pytest.mark.parametrize(
    ("model", "wrong", "right"),
    [
        (CURRENT, text(BAD), text(GOOD)),
        (OLD, final(BAD), final(GOOD)),
        (OLD, {"text": "7"}, final(GOOD)),
    ],
)
def test_a_wrong_answer_is_corrected(workspace, model, wrong, right) -> None:
    """What is wrong is told to the model, with its place, and the next answer counts."""
    result, requests = served(workspace, model, [wrong, right])
    assert (result.stop_reason, result.structured_output, result.turns) == ("completed", GOOD, 2)
    said = json.dumps(requests[1]["messages"][-1])
    assert "version: 0 is less than the minimum of 1" in said or "is not of type" in said


def test_a_fork_is_corrected(workspace) -> None:
    """The correction is a user message after the reply; the prefix stays."""
    result, requests = forked(workspace, [{"text": "It is seven."}, text(GOOD)])
    assert result.structured_output == GOOD
    assert requests[1]["messages"][: len(requests[0]["messages"])] != []
    assert "not JSON" in requests[1]["messages"][-1]["content"][0]["text"]


@pytest.mark.parametrize(("model", "line"), [(CURRENT, text(BAD)), (OLD, final(BAD))])
def test_after_the_last_correction_the_run_has_failed(workspace, model, line) -> None:
    """Three corrections by default, then `schema_failed`, 65, the last text and what was wrong."""
    result, requests = served(workspace, model, [line | {"repeat": None}])
    assert (result.stop_reason, result.exit_code) == ("schema_failed", 65)
    assert len(requests) == 4
    assert json.loads(result.summary) == BAD
    assert result.structured_output is None
    assert result.error is not None
    assert "version: 0 is less than the minimum of 1" in result.error.message


def test_calls_beside_the_answer_run_first(workspace) -> None:
    """An answer beside other calls is not taken: they run, and the model answers again."""
    beside = {
        "tool_use": [
            {"name": "bash", "input": {"command": "echo made > made.txt"}},
            {"name": "final_answer", "input": GOOD},
        ]
    }
    result, requests = served(workspace, OLD, [beside, final(GOOD)])
    assert (result.stop_reason, result.tool_calls, result.turns) == ("completed", 1, 2)
    assert (workspace / "made.txt").read_text() == "made\n"
    results = requests[1]["messages"][-1]["content"]
    assert [block.get("is_error", False) for block in results] == [False, True]


def test_tools_come_before_the_answer_on_the_road_of_the_api(workspace) -> None:
    """A run works with its tools as ever, and its last reply is the answer."""
    look = {"tool_use": [{"name": "read_file", "input": {"file_path": "README.md"}}]}
    result, requests = served(workspace, CURRENT, [look, text(GOOD)])
    assert (result.structured_output, result.tool_calls) == (GOOD, 1)
    assert requests[0]["output_config"] == requests[1]["output_config"]


def test_at_a_bound_the_last_answer_is_taken(workspace) -> None:
    """A run that has hit a bound is no success, but its last words are read as an answer."""
    from forkrun.limits import Limits

    look = {"tool_use": [{"name": "glob", "input": {"pattern": "*"}}]}
    result, _ = served(workspace, CURRENT, [look, text(GOOD)], limits=Limits(max_turns=1))
    assert (result.stop_reason, result.structured_output) == ("max_turns", GOOD)


def test_a_form_that_the_api_refuses_goes_by_the_tool(workspace) -> None:
    """An account, a host or a schema that the API's own road does not take costs one request."""
    error = {"type": "invalid_request_error", "message": "output_config.format: too complex"}
    with MessagesServer([{"error": error}, final(GOOD)]) as server:
        result = run(workspace, CURRENT, env=at(server.url), json_schema=SCHEMA)
        first, second = (request.json for request in server.messages)
    assert (result.stop_reason, result.structured_output, result.turns) == ("completed", GOOD, 1)
    assert "output_config" in first
    assert "output_config" not in second
    assert second["tools"][-1]["name"] == "final_answer"


def test_what_a_server_offers_is_offered_on_the_other_road_too(workspace) -> None:
    """Where a run begins again, the tools of its MCP servers are shown again."""
    error = {"type": "invalid_request_error", "message": "output_config.format: too complex"}
    servers = {"small": msgspec.convert(inside(workspace), McpServer)}
    with MessagesServer([{"error": error}, final(GOOD)]) as server:
        result = run(
            workspace, CURRENT, env=at(server.url), json_schema=SCHEMA, mcp_servers=servers
        )
        first, second = (
            {tool["name"] for tool in request.json["tools"]} for request in server.messages
        )
    assert result.stop_reason == "completed"
    assert any(name.startswith("mcp__small__") for name in first)
    assert second == first | {"final_answer"}


def test_another_refusal_is_the_end(workspace) -> None:
    """A 400 that has nothing to do with the form is not tried again."""
    error = {"type": "invalid_request_error", "message": "max_tokens: too large"}
    with MessagesServer([{"error": error}, text(GOOD)]) as server:
        result = run(workspace, CURRENT, env=at(server.url), json_schema=SCHEMA)
        assert len(server.messages) == 1
    assert result.stop_reason == "model_error"
