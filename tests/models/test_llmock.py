"""Against a server that is not ours: `llmock`, which also judges how its client took its faults."""

import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from importlib.util import find_spec

import msgspec
import pytest
from support_models import ROADS, ask, blocks, model_by, request

from forkrun.errors import ContextExceeded, ModelError, ModelUnavailable
from forkrun.models.retry import RetryPolicy, reply_with_retries

pytestmark = [
    pytest.mark.skipif(find_spec("llmock") is None, reason="the package llmock is not installed"),
    pytest.mark.parametrize("road", ROADS),
]
# Paced as a model is: the server then notices that its client has stopped reading.
SERVE = """
import os, sys
os.environ["LLMOCK_STREAM_CHUNK_DELAY_MS"] = "4"
from llmock.testing import LLMockServer
with LLMockServer() as server:
    print(server.url, flush=True)
    sys.stdin.read()
"""
POLICY = RetryPolicy(base_s=0.1, cap_s=0.5)


class Mock:
    """The server at its address: told what to do, and asked what it saw, by HTTP."""

    def __init__(self, url):
        self.url = url

    def call(self, path, **body):
        data = json.dumps(body).encode() if body else None
        method = "POST" if body or path == "reset" else "GET"
        with urllib.request.urlopen(
            urllib.request.Request(f"{self.url}/_llmock/{path}", data=data, method=method)
        ) as answer:
            return json.load(answer)

    def behave(self, *behaviors):
        self.call("reset")
        self.call("scenario", behaviors=list(behaviors))


@pytest.fixture(scope="module")
def server():
    with subprocess.Popen(
        [sys.executable, "-c", SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Mock(process.stdout.readline().strip())
        process.stdin.close()
        process.wait(10)


def answer(mock, road, *, asked=None, policy=POLICY):
    """Ask with retries; give the reply and the retries."""
    retries = []
    first = asked or request("What is the weather?")

    async def play():
        async with model_by(road, f"{mock.url}/anthropic") as model:
            return await reply_with_retries(
                model,
                lambda attempt: msgspec.structs.replace(first, number=attempt),
                policy=policy,
                deadline=time.monotonic() + 20,
                heard=lambda _: None,
                on_retry=retries.append,
            )

    return asyncio.run(play()), retries


def verdict(mock):
    """What the server thinks of us: the codes of its findings, errors and warnings."""
    return [finding["code"] for finding in mock.call("verdict")["findings"]]


def test_a_text_comes_back(server, road):
    """The plainest reply."""
    server.behave({"type": "reply", "text": "It is sunny."})
    reply, _ = answer(server, road)
    assert blocks(reply) == [{"type": "text", "text": "It is sunny."}]
    assert reply.stop_reason == "end_turn"
    assert reply.usage.input_tokens > 0


def test_a_tool_call_comes_back(server, road):
    """With its input, whole."""
    call = {"name": "bash", "arguments": {"command": "echo 'a b'", "n": [1, 2]}}
    server.behave({"type": "reply", "tool_calls": [call]})
    tools = [{"name": "bash", "input_schema": {"type": "object"}}]
    reply, _ = answer(server, road, asked=request("go", tools=tools))
    found = [block for block in blocks(reply) if block["type"] == "tool_use"]
    assert [(block["name"], block["input"]) for block in found] == [("bash", call["arguments"])]
    assert reply.stop_reason == "tool_use"


@pytest.mark.parametrize(
    "fault",
    [
        {"type": "fail", "status": 529},
        {"type": "fail", "status": 429, "retry_after": 0.3},
        {"type": "fail", "status": 503},
        {"type": "stream_fault", "kind": "disconnect", "after_chunks": 2},
        {"type": "stream_fault", "kind": "truncate", "after_chunks": 3},
        {"type": "stream_fault", "kind": "malformed", "after_chunks": 2},
    ],
    ids=lambda fault: str(fault.get("status") or fault["kind"]),
)
def test_a_fault_is_survived_to_the_servers_satisfaction(server, road, fault):
    """The reply comes in the end, and the server finds nothing wrong with how we tried again."""
    server.behave(fault)
    reply, retries = answer(server, road)
    assert reply.stop_reason == "end_turn"
    assert len(retries) == fault.get("times", 1)
    assert verdict(server) == []


def test_what_cannot_help_is_not_tried_again(server, road):
    """One attempt, then the typed error."""
    for status, wanted in ((400, ModelError), (401, ModelError), (404, ModelError)):
        server.behave({"type": "fail", "status": status})
        with pytest.raises(ModelError) as caught:
            answer(server, road)
        assert type(caught.value) is wanted
        assert server.call("verdict")["attempts"] == 1
    server.behave({"type": "fail", "status": 400, "message": "prompt is too long: 9 > 8"})
    with pytest.raises(ContextExceeded):
        answer(server, road)


def test_a_stall_ends_when_the_run_does(server, road):
    """Whoever waits for a silent stream can leave it at once."""
    server.behave({"type": "stream_fault", "kind": "stall", "after_chunks": 2, "stall_seconds": 3})

    async def play():
        async with model_by(road, f"{server.url}/anthropic") as model, asyncio.timeout(0.5):
            await ask(model)

    started = time.monotonic()
    with pytest.raises(TimeoutError):
        asyncio.run(play())
    assert time.monotonic() - started < 2


def test_an_outage_ends_as_unavailable(server, road):
    """After the last try, with the status of the last answer."""
    server.behave({"type": "fail", "status": 529, "times": None})
    with pytest.raises(ModelUnavailable, match=r"after 2 tries") as caught:
        answer(server, road, policy=RetryPolicy(attempts=2, base_s=0.1))
    assert (caught.value.status, caught.value.kind) == (529, "overloaded_error")
