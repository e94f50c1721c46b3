"""Scripts: a model that plays replies from a file."""

import asyncio
import json
import time

import pytest
from support_models import ask, blocks, request

from forkrun.errors import ContextExceeded, InputError, ModelError, ModelUnavailable, UsageError
from forkrun.models import open_model
from forkrun.models.base import Usage


def script(tmp_path, *lines):
    path = tmp_path / "script.jsonl"
    path.write_text(
        "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    )
    return open_model(f"script:{path}", environ={})


def play(model, *, number=0, asked=None, heard=None):
    return asyncio.run(ask(model, asked or request(number=number), heard=heard))


def test_a_text_ends_the_turn(tmp_path):
    """A line with text alone is a last reply, heard in pieces."""
    heard: list[str] = []
    text = "one two three four five six seven eight nine\n\n ten"
    reply = play(script(tmp_path, {"text": text}), heard=heard)
    assert blocks(reply) == [{"type": "text", "text": text}]
    assert reply.stop_reason == "end_turn"
    assert "".join(heard) == text
    assert len(heard) > 1


def test_calls_get_ids_that_depend_on_their_place_alone(tmp_path):
    """The same script gives the same ids; ids of one's own are kept."""
    calls = [{"name": "bash", "input": {"command": "ls"}}, {"name": "glob", "id": "mine"}]
    model = script(tmp_path, "", {"tool_use": calls, "text": "I will look."})
    reply = play(model)
    assert blocks(reply) == [
        {"type": "text", "text": "I will look."},
        {"type": "tool_use", "id": "toolu_2_0", "name": "bash", "input": {"command": "ls"}},
        {"type": "tool_use", "id": "mine", "name": "glob", "input": {}},
    ]
    assert reply.stop_reason == "tool_use"


def test_the_number_of_the_request_chooses_the_line(tmp_path):
    """A script has no state: any run may ask for any line, in any order."""
    model = script(tmp_path, {"text": "a"}, {"text": "b"})
    assert [blocks(play(model, number=n))[0]["text"] for n in (1, 0, 1)] == ["b", "a", "b"]


def test_raw_blocks_come_as_they_are(tmp_path):
    """Block types that nobody knows, a stop_reason and usage of one's own."""
    line = '{"content":[{"type":"odd" , "n":1.50}],"stop_reason":"max_tokens","usage":{"input_tokens":9}}'
    reply = play(script(tmp_path, line))
    assert reply.content == (b'{"type":"odd" , "n":1.50}',)
    assert reply.stop_reason == "max_tokens"
    assert reply.usage == Usage(input_tokens=9)


def test_E16_inputs_that_are_text_become_objects(tmp_path):
    """An input that came as JSON text is that object, one that is empty is an empty object."""
    content = [
        {"type": "tool_use", "id": "t1", "name": "bash", "input": '{"command":"echo hi"}'},
        {"type": "tool_use", "id": "t2", "name": "bash", "input": ""},
        {"type": "tool_use", "id": "t3", "name": "bash"},
    ]
    reply = play(script(tmp_path, {"content": content}))
    assert [block["input"] for block in blocks(reply)] == [{"command": "echo hi"}, {}, {}]


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        ({"status": 529, "type": "overloaded_error", "retry_after_s": 0.1}, ModelUnavailable),
        ({"type": "overloaded_error"}, ModelUnavailable),
        ({}, ModelUnavailable),
        ({"status": 400}, ModelError),
        ({"status": 400, "message": "prompt is too long"}, ContextExceeded),
        ({"status": 401}, ModelError),
    ],
)
def test_an_error_line_is_a_failed_attempt(tmp_path, error, wanted):
    """Whether it can be tried again depends on the status, as with the API."""
    with pytest.raises(ModelError) as caught:
        play(script(tmp_path, {"error": error}))
    assert type(caught.value) is wanted
    if "retry_after_s" in error:
        assert caught.value.retry_after_s == 0.1


def test_a_delay_comes_before_the_reply(tmp_path):
    """`delay_s` is waited, and no more."""
    started = time.monotonic()
    play(script(tmp_path, {"delay_s": 0.1, "text": "late"}))
    assert 0.1 <= time.monotonic() - started < 2


def test_expect_looks_into_the_last_user_message(tmp_path):
    """In its text and in its tool results; what is not there is named with its line."""
    result = {
        "type": "tool_result",
        "tool_use_id": "t",
        "content": [{"type": "text", "text": "42 files"}],
    }
    asked = request(
        "first", {"role": "user", "content": [result, {"type": "text", "text": "go on"}]}
    )
    assert play(script(tmp_path, {"expect": ["42 files", "go on"], "text": "seen"}), asked=asked)
    with pytest.raises(ModelError, match=r"line 3 expects 'first'") as caught:
        play(script(tmp_path, "", "", {"expect": ["first"], "text": "seen"}), asked=asked)
    assert caught.value.kind == "script_error"


def test_a_script_that_has_run_out_names_its_last_line(tmp_path):
    """No reply is left for one more request."""
    with pytest.raises(ModelError, match=r"run out after line 2") as caught:
        play(script(tmp_path, "", {"text": "a"}), number=1)
    assert caught.value.kind == "script_error"


def test_a_transcript_is_a_script(tmp_path):
    """Lines of another type are passed over, and replies may hold more than a script's fields."""
    model = script(
        tmp_path,
        {"type": "started", "run_id": "r", "tools": []},
        {
            "type": "reply",
            "t": 0.1,
            "turn": 1,
            "content": [{"type": "text", "text": "a"}],
            "model": "m",
        },
        {"type": "tool_result", "text": "x"},
    )
    reply = play(model)
    assert blocks(reply)[0]["text"] == "a"
    assert reply.model == "m"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2"),
        ("[]", "line 2"),
        ('{"txt": "a"}', "line 2: no such field: txt"),
        ('{"text": 3}', "line 2"),
        ("{}", "line 2"),
        ('{"text": "a", "content": []}', "line 2"),
        ('{"content": [3]}', "line 2"),
        ('{"content": [{"text": "a"}]}', "line 2"),
        ('{"tool_use": [{"input": {}}]}', "line 2"),
        ('{"error": {"status": 200}}', "line 2"),
        ('{"delay_s": -1, "text": "a"}', "line 2"),
        ("[" * 100_000, "line 2"),
    ],
)
def test_a_line_that_is_not_valid_is_named(tmp_path, line, words):
    """With the file and the number of the line, before anything runs."""
    with pytest.raises(InputError, match=words) as caught:
        script(tmp_path, {"text": "a"}, line)
    assert "script.jsonl" in str(caught.value)


def test_a_file_that_cannot_be_played_is_named(tmp_path):
    """Missing, a folder, not UTF-8, empty: each is an error of the input."""
    (tmp_path / "latin").write_bytes(b'{"text": "\xe9"}')
    (tmp_path / "empty").write_bytes(b"\n")
    for name in ("missing", ".", "latin", "empty"):
        with pytest.raises(InputError, match=name if name != "." else str(tmp_path)):
            open_model(f"script:{tmp_path / name}", environ={})
    with pytest.raises(UsageError):
        open_model("script:", environ={})
