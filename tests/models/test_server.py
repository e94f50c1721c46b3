"""The strict server refuses what the API refuses, and takes what the API takes."""

import http.client
import json
import os
import subprocess
import sys

import messages_server
import pytest
from messages_server import MessagesServer, Rules, problem_with

CALL = {"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": "ls"}}
CALL2 = CALL | {"id": "t2"}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "a"}
RESULT2 = RESULT | {"tool_use_id": "t2"}
TEXT = {"type": "text", "text": "go on"}
THINKING = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
MARK = {"cache_control": {"type": "ephemeral"}}
TOOL = {"name": "bash", "input_schema": {"type": "object"}}
PNG = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgoAAAAA"}
FORCED = {"tool_choice": {"type": "any"}, "tools": [TOOL]}


def user(*content):
    return {"role": "user", "content": list(content)}


def assistant(*content):
    return {"role": "assistant", "content": list(content)}


def body(*messages, **more):
    return {
        "model": "claude-test",
        "max_tokens": 9,
        "messages": list(messages) or [user(TEXT)],
    } | more


TAKEN = {
    "a text": body({"role": "user", "content": "hi"}),
    "an answered call": body(user(TEXT), assistant(TEXT, CALL), user(RESULT, TEXT)),
    "two answered calls": body(user(TEXT), assistant(CALL, CALL2), user(RESULT2, RESULT, TEXT)),
    "thinking": body(user(TEXT), assistant(THINKING, CALL), user(RESULT)),
    "four marks": body(user(TEXT | MARK), system=[TEXT | MARK], tools=[TOOL | MARK], **MARK),
    "an image": body(user({"type": "image", "source": PNG})),
    "an unknown block": body(user({"type": "of_next_year"})),
    "thinking that is off": body(thinking={"type": "disabled"}, **FORCED),
}
REFUSED = {
    "no model": body(model=""),
    "no max_tokens": body(max_tokens=0),
    "an unknown parameter": body(colour="red"),
    "no messages": body() | {"messages": []},
    "an unknown field": body(user(TEXT) | {"id": 1}),
    "an unknown role": body({"role": "system", "content": "x"}),
    "an assistant first": body(assistant(TEXT), user(TEXT)),
    "an assistant last": body(user(TEXT), assistant(TEXT)),
    "a blank text": body({"role": "user", "content": " \n"}),
    "an empty text": body(user({"type": "text", "text": ""})),
    "an empty message": body(user(), assistant(TEXT), user(TEXT)),
    "a blank system": body(system=[{"type": "text", "text": ""}]),
    "an open call": body(user(TEXT), assistant(CALL), user(TEXT)),
    "an open call at the end": body(user(TEXT), assistant(CALL)),
    "a call that is answered late": body(user(TEXT), assistant(CALL), user(TEXT), user(RESULT)),
    "one of two calls open": body(user(TEXT), assistant(CALL, CALL2), user(RESULT)),
    "a result for nobody": body(user(RESULT)),
    "a result for an earlier call": body(
        user(TEXT), assistant(CALL), user(RESULT), assistant(TEXT), user(RESULT)
    ),
    "two results": body(user(TEXT), assistant(CALL), user(RESULT, RESULT)),
    "text before results": body(user(TEXT), assistant(CALL), user(TEXT, RESULT)),
    "an id twice": body(user(TEXT), assistant(CALL), user(RESULT), assistant(CALL), user(RESULT)),
    "an id that is none": body(user(TEXT), assistant(CALL | {"id": "a b"}), user(RESULT)),
    "an input that is text": body(user(TEXT), assistant(CALL | {"input": "{}"}), user(RESULT)),
    "a name that is none": body(user(TEXT), assistant(CALL | {"name": "a.b"}), user(RESULT)),
    "a call by the user": body(user(CALL)),
    "a result by the assistant": body(user(TEXT), assistant(RESULT), user(TEXT)),
    "five marks": body(
        user(TEXT | MARK, TEXT | MARK), system=[TEXT | MARK], tools=[TOOL | MARK], **MARK
    ),
    "a mark on thinking": body(user(TEXT), assistant(THINKING | MARK, TEXT), user(TEXT)),
    "thinking without signature": body(
        user(TEXT), assistant(THINKING | {"signature": ""}, TEXT), user(TEXT)
    ),
    "a tool name that is none": body(tools=[TOOL | {"name": "a b"}]),
    "a tool name that is too long": body(tools=[TOOL | {"name": "a" * 129}]),
    "a tool twice": body(tools=[TOOL, TOOL]),
    "a tool without schema": body(tools=[{"name": "bash"}]),
    "a forced tool and thinking": body(
        thinking={"type": "enabled", "budget_tokens": 1024}, **FORCED
    ),
    "a choice without tools": body(tool_choice={"type": "auto"}),
    "a tool that is not there": body(tools=[TOOL], tool_choice={"type": "tool", "name": "x"}),
    "an image that is another": body(
        user({"type": "image", "source": PNG | {"media_type": "image/jpeg"}})
    ),
    "an image that is none": body(user({"type": "image", "source": PNG | {"data": "%%"}})),
}


@pytest.mark.parametrize("asked", TAKEN.values(), ids=TAKEN)
def test_what_is_right_is_taken(asked):
    """The control of every refusal."""
    assert problem_with(asked) is None


@pytest.mark.parametrize("asked", REFUSED.values(), ids=REFUSED)
def test_what_is_wrong_is_refused(asked):
    """With a sentence that says what and where."""
    assert problem_with(asked)


def test_the_limits_can_be_moved():
    """As those of the API move."""
    assert (
        problem_with(body(user(TEXT), assistant(TEXT)), rules=Rules(ends_with_user=False)) is None
    )
    assert problem_with(body(user(TEXT | MARK)), rules=Rules(max_marks=0))


def post(server, asked, **headers):
    """Send a body; give status and decoded answer."""
    connection = http.client.HTTPConnection(*server.url.removeprefix("http://").split(":"))
    own = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
    data = asked if isinstance(asked, bytes) else json.dumps(asked).encode()
    try:
        connection.request("POST", "/v1/messages", data, own | headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_thinking_must_come_back_as_it_was_issued():
    """Changed, moved or left out beside its call: refused; as it was: taken."""
    more = THINKING | {"thinking": "second", "signature": "c2Vjb25k"}
    issued = [THINKING, TEXT, more, CALL]
    with MessagesServer([{"content": issued}, {"text": "x", "repeat": None}]) as server:
        assert post(server, body())[0] == 200
        for content, status in (
            (issued, 200),
            ([THINKING, more, CALL], 200),
            ([THINKING | {"thinking": "other"}, TEXT, more, CALL], 400),
            ([more, TEXT, THINKING, CALL], 400),
            ([TEXT, more, CALL], 400),
        ):
            assert post(server, body(user(TEXT), assistant(*content), user(RESULT)))[0] == status


def test_headers_and_size_are_checked():
    """A credential, the version, the type; and no more than so many bytes."""
    with MessagesServer(
        [{"text": "x", "repeat": None}], key="k", rules=Rules(max_bytes=300)
    ) as server:
        assert post(server, body())[0] == 401
        assert post(server, body(), authorization="Bearer k")[0] == 200
        key = {"x-api-key": "k"}
        assert post(server, body(), **key)[0] == 200
        assert post(server, body(), **key | {"anthropic-version": ""})[0] == 400
        assert post(server, body(), **key | {"content-type": "text/plain"})[0] == 400
        assert post(server, b"{", **key)[0] == 400
        status, answer = post(server, body(system="x" * 300), **key)
        assert (status, answer["error"]["type"]) == (413, "request_too_large")


def test_without_stream_the_answer_is_one_message():
    """As the API does it."""
    with MessagesServer([{"text": "x", "tool_use": [{"name": "bash"}]}]) as server:
        status, answer = post(server, body())
    assert status == 200
    assert answer["stop_reason"] == "tool_use"
    assert [block["type"] for block in answer["content"]] == ["text", "tool_use"]


def test_it_serves_a_command_line_as_a_process(tmp_path):
    """Its address on the first line, its requests in a file, its end with stdin."""
    (tmp_path / "script").write_text('{"text": "x"}\n')
    command = [sys.executable, messages_server.__file__, "--script", str(tmp_path / "script")]
    with subprocess.Popen(
        [*command, "--record", str(tmp_path / "record")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"]},
    ) as process:

        class At:
            url = process.stdout.readline().strip()

        assert post(At, body())[0] == 200
        process.stdin.close()
        assert process.wait(10) == 0
    assert json.loads(json.loads((tmp_path / "record").read_text())["body"]) == body()
