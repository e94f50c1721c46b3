"""Both roads to the Messages API, against a server that refuses what the API refuses."""

import asyncio
import gc
import threading
import time
from email.utils import formatdate

import msgspec
import pytest
from messages_server import MessagesServer, Rules
from support_models import KEY, ROADS, ask, blocks, model_by, request

from forkrun.errors import ContextExceeded, ModelError, ModelUnavailable
from forkrun.models import http_road, open_model
from forkrun.models.base import Usage

BLOCKS = [
    {"type": "thinking", "thinking": "let me see — 😀", "signature": "c2lnbmVk"},
    {"type": "redacted_thinking", "data": "b3BhcXVl"},
    {
        "type": "text",
        "text": "It is pytest.\n\nSee é 😀.",
        "citations": [{"type": "char_location", "cited_text": "x", "start_char_index": 0}],
    },
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "a"}},
    {
        "type": "web_search_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": [{"type": "x", "n": 1.5}],
    },
    {"type": "of_next_year", "payload": {"deep": [1, 2, {"é": None}]}},
    {
        "type": "tool_use",
        "id": "toolu_1",
        "name": "bash",
        "input": {"command": "echo 'é'", "n": 1e3},
    },
    {"type": "tool_use", "id": "toolu_2", "name": "bash", "input": {}},
]


def one(line, *, road, asked=None, rules=None, heard=None):
    """Play one line of a script on one road; give the reply and the recorded request."""

    async def play():
        with MessagesServer([line], key=KEY, rules=rules) as server:
            async with model_by(road, server.url) as model:
                return await ask(model, asked, heard=heard), server.requests[0]

    return asyncio.run(play())


def refused(line, *, road, asked=None, rules=None):
    """Play one line that ends in an error; give the error."""
    with pytest.raises(ModelError) as caught:
        one(line, road=road, asked=asked, rules=rules)
    return caught.value


def refusals(lines, *, road):
    """Play lines that all end in an error; give each with its error."""

    async def play():
        found = []
        with MessagesServer(lines, key=KEY) as server:
            async with model_by(road, server.url) as model:
                for line in lines:
                    with pytest.raises(ModelError) as caught:
                        await ask(model)
                    found.append((line, caught.value))
        return found

    return asyncio.run(play())


@pytest.mark.parametrize("road", ROADS)
def test_a_reply_comes_back_block_by_block_as_it_was(road):
    """Text, thinking, citations, server tools and unknown types all come back as they were."""
    usage = {"input_tokens": 9, "output_tokens": 7, "cache_read_input_tokens": 5}
    usage["cache_creation_input_tokens"] = 3
    heard: list[str] = []
    reply, _ = one({"content": BLOCKS, "usage": usage, "model": "claude-x"}, road=road, heard=heard)
    assert blocks(reply) == BLOCKS
    assert reply.stop_reason == "tool_use"
    assert reply.usage == Usage(**usage)
    assert reply.model == "claude-x"
    assert reply.request_id is not None
    assert "".join(heard) == BLOCKS[2]["text"]


@pytest.mark.parametrize("road", ROADS)
def test_the_details_of_a_refusal_come_along(road):
    """`stop_details` is the JSON of that field."""
    line = {
        "content": [],
        "stop_reason": "refusal",
        "stop_details": {"type": "refusal", "category": "cyber"},
    }
    reply, _ = one(line, road=road)
    assert reply.stop_reason == "refusal"
    assert msgspec.json.decode(reply.stop_details)["category"] == "cyber"


HALF_STREAMS = [
    {"cut_after_events": 0},
    {"cut_after_events": 4},
    {"cut_after_bytes": 900},
    {"end_after_events": 0},
    {"end_after_events": 6},
    {"end_after_events": 8},
    {"error_after_events": [3, {"type": "overloaded_error", "message": "busy"}]},
    {"error_after_events": [3, {"type": "api_error", "message": "inner"}]},
    {"events": [{"type": "message_start", "message": {}}, {"type": "message_stop"}]},
    {"events": [{"type": "content_block_delta", "index": 3, "delta": {"type": "x_delta"}}]},
]


@pytest.mark.parametrize("road", ROADS)
def test_a_stream_that_is_not_whole_is_unavailable(road):
    """A reply counts only with message_stop and a stop_reason; anything less can be tried again."""
    text = {"text": "a text of several words, so that there are deltas"}
    for fault, error in refusals([text | fault for fault in HALF_STREAMS], road=road):
        assert type(error) is ModelUnavailable, fault


@pytest.mark.parametrize("road", ROADS)
def test_an_error_in_a_stream_counts_by_its_type(road):
    """The status is 200 by then; the type says whether trying again helps."""
    busy = {"error_after_events": [2, {"type": "overloaded_error", "message": "busy"}]}
    error = refused({"text": "x", **busy}, road=road)
    assert (error.kind, error.status, error.exit_code) == ("overloaded_error", 529, 10)
    wrong = {"error_after_events": [2, {"type": "invalid_request_error", "message": "no"}]}
    error = refused({"text": "x", **wrong}, road=road)
    assert (error.kind, error.exit_code) == ("invalid_request_error", 11)


STATUSES = [
    (400, "invalid_request_error", "messages: no", ModelError),
    (400, "invalid_request_error", "prompt is too long: 9 tokens > 8 maximum", ContextExceeded),
    (400, "invalid_request_error", "exceed context limit: the context window", ContextExceeded),
    (401, "authentication_error", "no", ModelError),
    (403, "permission_error", "no", ModelError),
    (404, "not_found_error", "model: claude-nope", ModelError),
    (408, "timeout_error", "late", ModelUnavailable),
    (409, "api_error", "conflict", ModelUnavailable),
    (413, "request_too_large", "Request exceeds the maximum size", ModelError),
    (413, "invalid_request_error", "Prompt is too long", ContextExceeded),
    (422, "invalid_request_error", "no", ModelError),
    (429, "rate_limit_error", "slow down", ModelUnavailable),
    (500, "api_error", "inner", ModelUnavailable),
    (502, "api_error", "gateway", ModelUnavailable),
    (503, "api_error", "gone", ModelUnavailable),
    (529, "overloaded_error", "busy", ModelUnavailable),
]


@pytest.mark.parametrize("road", ROADS)
def test_each_status_says_whether_trying_again_helps(road):
    """One table of statuses, the same on every road."""
    lines = [{"error": {"status": s, "type": k, "message": m}} for s, k, m, _ in STATUSES]
    outcomes = refusals(lines, road=road)
    for (status, kind, message, wanted), (_, error) in zip(STATUSES, outcomes, strict=True):
        assert (type(error), error.status, error.kind) == (wanted, status, kind)
        assert message in str(error)
        assert error.request_id


WAITS = [
    ({"retry-after": "2"}, 2, 2),
    ({"retry-after": "0.5"}, 0.5, 0.5),
    ({"retry-after": "86400"}, 86400, 86400),
    ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5, 1.5),
    ({"retry-after": formatdate(4102444800, usegmt=True)}, 1e9, 4e9),
    ({"retry-after": formatdate(0, usegmt=True)}, 0, 0),
    ({"retry-after": "abc"}, None, None),
    ({"retry-after": "-3"}, None, None),
    ({"retry-after": "nan"}, None, None),
    ({}, None, None),
]


@pytest.mark.parametrize("road", ROADS)
def test_what_the_server_asks_to_wait_is_read(road):
    """Seconds, milliseconds or a date; junk is as good as nothing."""
    lines = [{"error": {"status": 429}, "headers": headers} for headers, _, _ in WAITS]
    outcomes = refusals(lines, road=road)
    for (headers, low, high), (_, error) in zip(WAITS, outcomes, strict=True):
        wait_s = error.retry_after_s
        assert wait_s is None if low is None else low <= wait_s <= high, headers


@pytest.mark.parametrize("road", ROADS)
def test_nobody_there_is_unavailable(road):
    """A refused connection can be tried again."""

    async def play():
        with MessagesServer([]) as server:
            url = server.url
        async with model_by(road, url) as model:
            await ask(model)

    with pytest.raises(ModelUnavailable):
        asyncio.run(play())


@pytest.mark.parametrize("road", ROADS)
def test_a_message_never_holds_the_credential(road):
    """Also where a server repeats what it was sent."""
    error = refused({"error": {"status": 401, "message": f"bad key {KEY}!"}}, road=road)
    assert KEY not in str(error)
    assert "bad key [credential]!" in str(error)


@pytest.mark.parametrize("road", ROADS)
def test_cancelling_ends_a_call_at_once(road):
    """The task ends at once and the server sees the connection go, however silent it was."""

    async def play():
        with MessagesServer([{"text": "x", "stall_after_events": 2}, {"text": "y"}]) as server:
            async with model_by(road, server.url) as model:
                began = asyncio.Event()
                task = asyncio.create_task(model.reply(request(), lambda _: began.set()))
                await began.wait()
                started = time.monotonic()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert time.monotonic() - started < 0.5
                assert blocks(await ask(model)) == [{"type": "text", "text": "y"}]

    asyncio.run(play())


def test_cancelling_frees_the_thread():
    """A thread whose call was cancelled is idle again, though the server stays silent."""

    async def play():
        with MessagesServer([{"text": "x", "delay_s": 30}]) as server:
            async with model_by("plain", server.url) as model:
                task = asyncio.create_task(ask(model))
                await asyncio.to_thread(server.wait_for, 1)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                threads = model._threads
                for _ in range(200):
                    if threads._idle == threads._threads:
                        return
                    await asyncio.sleep(0.01)
                raise AssertionError("the thread is still in the call")

    asyncio.run(play())


@pytest.mark.parametrize("road", ROADS)
def test_who_listens_may_fail(road):
    """An error of the listener ends the call and reaches whoever waits for it."""

    def listener(_):
        raise BrokenPipeError("nobody reads")

    async def play():
        with MessagesServer([{"text": "x"}]) as server:
            async with model_by(road, server.url) as model:
                await model.reply(request(), listener)

    with pytest.raises((BrokenPipeError, ModelError), match="nobody reads"):
        asyncio.run(play())


def test_connections_are_used_again():
    """A second request does not connect again, after an error either."""

    async def play():
        lines = [{"text": "a"}, {"error": {"status": 529}}, {"text": "b"}, {"text": "c"}]
        with MessagesServer(lines) as server:
            async with model_by("plain", server.url) as model:
                await ask(model)
                with pytest.raises(ModelUnavailable):
                    await ask(model)
                await ask(model)
                await ask(model)
                return server.connections

    assert asyncio.run(play()) == 1


def test_a_connection_that_the_server_closed_meanwhile_is_not_used():
    """A kept connection that has ended is noticed before the request is sent."""

    async def play():
        with MessagesServer([{"text": "a"}]) as first:
            port = int(first.url.rpartition(":")[2])
            async with model_by("plain", first.url) as model:
                await ask(model)
                first.__exit__(None, None, None)
                with MessagesServer([{"text": "b"}], port=port):
                    return blocks(await ask(model))

    assert asyncio.run(play()) == [{"type": "text", "text": "b"}]


def test_many_calls_run_at_once_and_leave_no_thread():
    """Calls do not wait for each other; closing the model ends its threads."""

    async def play():
        together = threading.Barrier(40, timeout=20)

        def line(_):
            together.wait()
            return {"text": "x"}

        with MessagesServer(line) as server:
            async with model_by("plain", server.url) as model:
                await asyncio.gather(*(ask(model) for _ in range(40)))

    before = threading.active_count()
    asyncio.run(play())
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_more_calls_than_threads_wait_their_turn(monkeypatch):
    """The pool is bounded: what is beyond the bound waits."""
    monkeypatch.setattr(http_road, "MAX_CALLS", 2)

    async def play():
        with MessagesServer([{"text": "x", "repeat": None}]) as server:
            async with model_by("plain", server.url) as model:
                await asyncio.gather(*(ask(model) for _ in range(12)))
                return model._threads._threads, server.connections

    threads, connections = asyncio.run(play())
    assert threads <= 2
    assert connections <= 2


def test_a_name_server_that_never_answers_ends_at_the_connect_limit(monkeypatch):
    """The wait for an address is bounded, and nobody waits for the thread that hangs in it."""
    hang = threading.Event()
    monkeypatch.setattr("forkrun.models.calls.CONNECT_S", 0.1)
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: hang.wait(20) and [])

    async def play():
        async with model_by("plain", "http://nowhere.test") as model:
            await ask(model)

    try:
        with pytest.raises(ModelUnavailable, match=r"no connection to nowhere\.test"):
            asyncio.run(play())
    finally:
        hang.set()


@pytest.mark.parametrize("road", ROADS)
def test_a_large_request_arrives_whole(road):
    """Ten megabytes arrive byte for byte, with their length announced."""
    asked = request(*["x" * 1_000_000, {"role": "assistant", "content": "y"}] * 10, "é" * 1000)
    _, recorded = one({"text": "ok"}, road=road, asked=asked)
    assert recorded.body == b"".join(asked.parts())
    assert recorded.header("content-length") == str(len(recorded.body))


@pytest.mark.parametrize("road", ["plain", "sdk"])
def test_a_request_that_is_too_large_is_refused_for_good(road):
    """413 is a refusal: the same body would never be taken."""
    error = refused(
        {"text": "no"}, road=road, asked=request("x" * 5000), rules=Rules(max_bytes=4000)
    )
    assert type(error) is ModelError
    assert (error.status, error.kind) == (413, "request_too_large")


def test_what_is_no_stream_is_named():
    """A page of some other server is no reply, and no reason to try again."""
    error = refused(
        {"raw": "<html>log in</html>", "headers": {"content-type": "text/html"}}, road="plain"
    )
    assert type(error) is ModelError
    assert "does not speak the Messages API" in str(error)


def test_a_local_server_without_usage_and_ids_is_enough():
    """Usage, model, ids and pings may be missing."""
    events = [
        {"type": "message_start", "message": {}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "a"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "b"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        {"type": "message_stop"},
    ]
    heard: list[str] = []
    reply, _ = one({"events": events}, road="plain", heard=heard)
    assert blocks(reply) == [{"type": "text", "text": "ab"}]
    assert reply.usage == Usage()
    assert "".join(heard) == "ab"


# Header by header: what the plain road sends differently from the package, and why.
DECIDED = {
    "host": "same",
    "content-length": "same",
    "accept": "same",
    "content-type": "same",
    "anthropic-version": "same",
    "authorization": "same",
    "anthropic-beta": "same",
    "user-agent": "ours: the server may know who asks",
    "accept-encoding": "identity: a stream of small events gains nothing by compression",
    "connection": "not sent: HTTP/1.1 keeps connections by default",
    "x-stainless-": "not sent: they describe the package, its runtime and its retries",
}


def test_the_plain_road_sends_what_the_package_sends():
    """Header by header and byte by byte, for the same call."""
    import anthropic

    params = {
        "model": "claude-test",
        "max_tokens": 64,
        "system": [
            {"type": "text", "text": "Être bref. 😀", "cache_control": {"type": "ephemeral"}}
        ],
        "tools": [
            {"name": "bash", "description": 'd\u2028"\\/\x7f', "input_schema": {"type": "object"}}
        ],
        "thinking": {"type": "disabled"},
        "stop_sequences": ["a\tb"],
    }
    asked = request("why? \u0001", betas=("one-2026-01-01", "two-2026-01-01"), **params)

    async def play():
        with MessagesServer([{"text": "x", "repeat": None}], key=KEY) as server:
            async with model_by("plain", server.url) as model:
                await ask(model, asked)
            async with anthropic.AsyncAnthropic(api_key=KEY, base_url=server.url) as client:
                stream = await client.messages.create(
                    messages=[{"role": "user", "content": "why? \u0001"}],
                    stream=True,
                    extra_headers={"anthropic-beta": "one-2026-01-01,two-2026-01-01"},
                    **params,
                )
                async for _ in stream:
                    pass
            return server.requests

    ours, theirs = asyncio.run(play())
    assert (ours.method, ours.path) == (theirs.method, theirs.path)
    assert ours.body == theirs.body
    sent = [{name.lower(): value for name, value in one.headers} for one in (ours, theirs)]
    for name in sent[0].keys() | sent[1].keys():
        decision = DECIDED.get("x-stainless-" if name.startswith("x-stainless-") else name)
        assert decision is not None, f"{name}: nobody has decided about this header"
        if decision == "same":
            assert sent[0].get(name) == sent[1].get(name), name
        elif decision.startswith("not sent"):
            assert name not in sent[0]


@pytest.mark.parametrize("variable", ["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"])
def test_a_key_and_a_token_travel_as_with_the_package(variable, monkeypatch):
    """The header that carries the credential is the one that the package chooses."""
    import anthropic

    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, KEY)
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "X-Team: red\nAccept: application/x")

    async def play():
        with MessagesServer([{"text": "x", "repeat": None}], key=KEY) as server:
            import os

            model = open_model("claude-test", environ=os.environ, base_url=server.url)
            await ask(model)
            await model.close()
            async with anthropic.AsyncAnthropic(base_url=server.url) as client:
                await client.messages.create(
                    model="m", max_tokens=1, messages=[{"role": "user", "content": "x"}]
                )
            return server.requests

    ours, theirs = asyncio.run(play())
    for name in ("authorization", "x-api-key", "x-team", "accept"):
        assert ours.header(name) == theirs.header(name)
    assert ours.header("authorization") == f"Bearer {KEY}"


def test_a_call_leaves_no_descriptor_behind_when_it_fails():
    """Errors of every kind close or keep their connection, and the model closes what it kept."""

    async def play():
        lines = [
            {"error": {"status": 400}},
            {"text": "x", "cut_after_events": 3},
            {"raw": "x"},
            {"text": "x", "end_after_events": 3},
        ]
        with MessagesServer(lines) as server:
            async with model_by("plain", server.url) as model:
                for _ in lines:
                    with pytest.raises(ModelError):
                        await ask(model)

    asyncio.run(play())
    gc.collect()  # an unclosed socket would warn, and a warning fails the test
