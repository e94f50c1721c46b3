"""Cases of kind e that concern the Messages API: overload, rate limits, cut streams, a full window.

Runs are whole runs, by the command line against a loopback server; where only the waiting between
tries is at issue, the retries alone are played, with shorter times.
"""

import asyncio
import json
import time
from email.utils import formatdate

import msgspec
import pytest
from messages_server import MessagesServer, Rules
from support_cli import environment, run
from support_models import KEY, ask, blocks, model_by, request

from forkrun.errors import ModelUnavailable
from forkrun.models.retry import RetryPolicy, reply_with_retries

LS = {"name": "bash", "input": {"command": "echo did it"}}


def spawn(tmp_path, server, *arguments, check):
    """Run `forkrun spawn` against this server; give the result, decoded."""
    workspace, home = tmp_path / "work", tmp_path / "home"
    for folder in (workspace, home):
        folder.mkdir(exist_ok=True)
    env = environment(home, ANTHROPIC_BASE_URL=server.url, ANTHROPIC_API_KEY=KEY)
    command = ("spawn", "--prompt", "go", "--output-format", "json", *arguments)
    return json.loads(run(*command, cwd=workspace, env=env, check=check).stdout)


async def retried(server, *, policy, left_s=60.0, retries=None):
    """Ask with retries by the plain road; give when the reply came."""
    async with model_by("plain", server.url) as model:
        await reply_with_retries(
            model,
            lambda attempt: request(number=attempt),
            policy=policy,
            deadline=time.monotonic() + left_s,
            heard=lambda _: None,
            on_retry=(retries if retries is not None else []).append,
        )
        return time.monotonic()


def test_E01_an_overload_that_ends_is_survived():
    """Three times 529, then an answer: the run has it."""
    lines = [{"error": {"status": 529, "type": "overloaded_error"}, "repeat": 3}, {"text": "here"}]
    with MessagesServer(lines) as server:
        asyncio.run(retried(server, policy=RetryPolicy(base_s=0.01)))
        assert [asked.status for asked in server.messages] == [529, 529, 529, 200]


def test_E01_an_overload_that_lasts_ends_at_the_budget():
    """After a thousand refusals it would still be there: the budget ends it, and it is no success."""
    lines = [{"error": {"status": 529, "type": "overloaded_error"}, "repeat": 1000}]
    policy = RetryPolicy(attempts=1000, base_s=0.05, cap_s=0.1, budget_s=0.5)
    with MessagesServer(lines) as server:
        started = time.monotonic()
        with pytest.raises(ModelUnavailable, match="retry budget") as caught:
            asyncio.run(retried(server, policy=policy))
    assert time.monotonic() - started < 2
    assert caught.value.kind == "overloaded_error"


def test_E01_what_was_done_before_the_overload_is_in_the_result(tmp_path):
    """The last text and the finished calls are not lost."""
    busy = {
        "error": {"status": 529, "type": "overloaded_error", "retry_after_s": 3600},
        "repeat": None,
    }
    with MessagesServer([{"text": "Half way there.", "tool_use": [LS]}, busy], key=KEY) as server:
        result = spawn(tmp_path, server, check=10)
    assert result["stop_reason"] == "model_unavailable"
    assert result["error"]["type"] == "overloaded_error"
    assert "Half way there." in result["summary"]
    assert (result["turns"], result["tool_calls"]) == (1, 1)


@pytest.mark.parametrize(
    ("header", "least_s"),
    [("1", 1.0), ("date", 0.0), ("abc", 0.0)],
)
def test_E03_five_children_wait_as_asked_and_not_in_step(header, least_s):
    """Each waits at least what the header says, and all knock at different times."""
    answered: list[float] = []

    def line(asked):
        value = formatdate(time.time() + 2, usegmt=True) if header == "date" else header
        if len(server.messages) <= 5:
            answered.append(time.monotonic())
            return {"error": {"status": 429}, "headers": {"retry-after": value}}
        return {"text": "here"}

    async def play():
        policy = RetryPolicy(base_s=1.0)
        return await asyncio.gather(*(retried(server, policy=policy) for _ in range(5)))

    with MessagesServer(line) as server:
        came = sorted(asyncio.run(play()))
    assert came[0] - max(answered) >= least_s - 0.05
    assert came[-1] - came[0] > 0.02  # five draws from a whole second


def test_E03_a_wait_beyond_the_run_ends_it_at_once(tmp_path):
    """A day of waiting is not waited; the reason is named."""
    day = {"error": {"status": 429}, "headers": {"retry-after": "86400"}, "repeat": None}
    with MessagesServer([day], key=KEY) as server:
        started = time.monotonic()
        result = spawn(tmp_path, server, "--timeout", "300", check=10)
        assert len(server.messages) == 1
    assert time.monotonic() - started < 30
    assert result["stop_reason"] == "model_unavailable"
    assert "beyond the end of the run" in result["error"]["message"]


def test_E04_a_stream_cut_inside_a_call_runs_no_tool(tmp_path):
    """The turn is asked for again from the same history, and the half call is nowhere."""
    removal = {"name": "bash", "input": {"command": "rm -rf build; echo removed > trace"}}
    lines = [
        {"text": "I will clean up.", "tool_use": [removal], "cut_after_events": 8},
        {"text": "all done"},
    ]
    with MessagesServer(lines, key=KEY) as server:
        result = spawn(tmp_path, server, check=0)
        first, second = server.messages
    assert first.body == second.body
    assert result["summary"] == "all done"
    assert result["tool_calls"] == 0
    assert not (tmp_path / "work" / "trace").exists()


def test_E04_a_stream_that_is_always_cut_ends_with_its_reason():
    """After the last try: unavailable, because the stream was cut."""
    lines = [{"tool_use": [LS], "cut_after_events": 4, "repeat": None}]
    with (
        MessagesServer(lines) as server,
        pytest.raises(ModelUnavailable, match=r"stream cut: .*after 3 tries") as caught,
    ):
        asyncio.run(retried(server, policy=RetryPolicy(attempts=3, base_s=0.01)))
    assert caught.value.kind == "stream_cut"


@pytest.mark.parametrize(
    "full",
    [
        {"error": {"status": 400, "message": "prompt is too long: 210000 tokens > 200000 maximum"}},
        {"text": "and then", "stop_reason": "model_context_window_exceeded"},
    ],
    ids=["refused", "stopped"],
)
def test_E20_a_full_window_keeps_what_was_done(tmp_path, full):
    """An end of its own, the finished calls and the text kept, and the same body never sent twice."""
    lines = [{"tool_use": [LS]}, {"text": "Found two.", "tool_use": [LS]}, {"tool_use": [LS]}, full]
    with MessagesServer(lines, key=KEY) as server:
        result = spawn(tmp_path, server, check=12)
        bodies = [asked.body for asked in server.messages]
    assert result["stop_reason"] == "context_exceeded"
    assert result["tool_calls"] == 3
    assert "Found two." in result["summary"] or "and then" in result["summary"]
    assert len(set(bodies)) == len(bodies)


def test_A26_a_request_that_is_too_large_is_sent_once(tmp_path):
    """413 is a typed end; the same body is not sent again."""
    with MessagesServer([], key=KEY, rules=Rules(max_bytes=1000)) as server:
        result = spawn(tmp_path, server, check=11)
        assert [asked.status for asked in server.messages] == [413]
    assert result["stop_reason"] == "model_error"
    assert result["error"]["type"] == "request_too_large"


def test_E16_inputs_that_are_text_are_objects_in_the_next_request(tmp_path):
    """What the model sent as text is an object in the history; the empty one is refused."""
    calls = [
        {"type": "tool_use", "id": "t1", "name": "bash", "input": '{"command":"echo hi"}'},
        {"type": "tool_use", "id": "t2", "name": "bash", "input": ""},
    ]
    script = tmp_path / "script.jsonl"
    lines = [{"content": calls}, {"expect": ["hi"], "text": "ok"}]
    script.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with MessagesServer([]) as server:
        result = spawn(tmp_path, server, "--model", f"script:{script}", check=0)
    assert result["summary"] == "ok"
    assert result["tool_calls"] == 2


def test_E16_inputs_that_are_text_on_the_wire_are_objects_in_the_reply():
    """The same by the API: a start that holds text, and deltas that spell a string."""
    text = json.dumps('{"command":"echo hi"}')
    start = {"type": "tool_use", "id": "t1", "name": "bash", "input": {}}
    events = [
        {"type": "message_start", "message": {}},
        {"type": "content_block_start", "index": 0, "content_block": start},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "input_json_delta", "partial_json": text},
        },
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": start | {"id": "t2", "input": ""},
        },
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
        {"type": "message_stop"},
    ]

    async def play():
        with MessagesServer([{"events": events}]) as server:
            async with model_by("plain", server.url) as model:
                return await ask(model)

    reply = asyncio.run(play())
    assert [block["input"] for block in blocks(reply)] == [{"command": "echo hi"}, {}]
    assert all(msgspec.json.decode(block)["type"] == "tool_use" for block in reply.content)
