"""The door: what a snapshot is made of, what it keeps, and what it refuses."""

import contextlib
import copy
import http.server
import json
import pathlib
import threading

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkrun.errors import InputError
from forkrun.models.base import Request
from forkrun.snapshot.fork import fork
from forkrun.snapshot.freeze import Snapshot

USER = {"role": "user", "content": "q"}
REPLY = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-x",
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 1, "output_tokens": 1},
    "content": [
        {"type": "thinking", "thinking": " é\u2028\n", "signature": "Ab+/=="},
        {"type": "redacted_thinking", "data": "ZZ=="},
        {"type": "text", "text": "look 😀", "citations": None},
        {"type": "block_from_2031", "z": [1, {"y": None}]},
        {"type": "tool_use", "id": "t1", "name": "bash", "input": {"z": 1e16, "a": [1.5, 10**20]}},
    ],
}


def test_later_changes_do_not_reach_it():
    """What the parent does with its lists and dicts afterwards changes nothing, and they are untouched."""
    messages = [
        copy.deepcopy(USER),
        {"role": "assistant", "content": [{"type": "text", "text": "a"}]},
    ]
    before = copy.deepcopy(messages)
    snapshot = Snapshot.of(model="m", messages=messages, system=[{"type": "text", "text": "s"}])
    frozen = snapshot.to_json()
    assert messages == before
    messages[1]["content"][0]["text"] = "changed"
    messages.append(USER)
    assert snapshot.to_json() == frozen
    with pytest.raises(AttributeError):
        snapshot.messages = ()


def test_json_keeps_every_byte():
    """Spaces, order of keys, numbers and escapes of each part come out as they went in."""
    message = r'{ "content" : [ {"x":1.50, "type" :"new","e":"\u00e9\/"} ], "role":"user" }'
    tools = '[ {"name":"b" , "input_schema":{ "type":"object"}} ]'
    snapshot = Snapshot.from_json(f'{{"tools":{tools},\n"messages":[ {message} ],"model":"m"}}')
    assert snapshot.messages == (message.encode(),)
    assert dict(snapshot.params) == {"tools": tools.encode(), "model": b'"m"'}
    assert Snapshot.from_json(snapshot.to_json()) == snapshot


def test_a_bare_list_of_messages_is_a_snapshot():
    """Where the model plays no part, the messages alone are enough."""
    assert Snapshot.from_json(json.dumps([USER])).messages == (json.dumps(USER).encode(),)


def test_what_belongs_to_the_transport_is_left_out():
    """Stream, timeout and headers do not become parameters; betas are kept wherever they stand."""
    given = {
        "model": "m",
        "messages": [USER],
        "betas": ["b-1"],
        "stream": True,
        "timeout": 5,
        "extra_headers": {"Anthropic-Beta": "b-2, b-1", "x-api-key": "secret"},
        "extra_query": {"a": "b"},
        "extra_body": {"new_param": {"y": 1}, "model": "n"},
        "thinking": {"type": "adaptive"},
        "tool_choice": {"type": "auto"},
    }
    for snapshot in (Snapshot.from_params(given), Snapshot.from_json(json.dumps(given))):
        assert snapshot.betas == ("b-1", "b-2")
        assert {name for name, _ in snapshot.params} == {
            "model",
            "new_param",
            "thinking",
            "tool_choice",
        }
        assert snapshot.param("model") == "n"
        assert b"secret" not in snapshot.to_json()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'{"messages":[{"role":"user","content":"\xff"}]}', "not UTF-8 at byte 39"),
        (b'{"messages":[', "not JSON at line 1"),
        (b'{"messages":[{"role":"user","content":"q","x":NaN}]}', "message 0: not JSON: NaN"),
        (
            b'[{"role":"user","content":"q"},{"role":"user","role":"user","content":""}]',
            "message 1: a key stands twice in one object: role",
        ),
        (b'{"model":"a","model":"b","messages":[]}', "a key stands twice in one object: model"),
        (b"[" * 100_000, "nested too deeply"),
        (b'"text"', "neither an object of parameters nor a list of messages"),
        (b'{"model":"m"}', "there are no messages"),
        (b'{"messages":{"role":"user"}}', "messages is not a list"),
        (b'{"messages":[3]}', "message 0: not an object"),
        (
            b'{"messages":[{"content":"x"}]}',
            "message 0: the role is neither user nor assistant: none",
        ),
        (b'[{"role":"tool","content":"x"}]', "the role is neither user nor assistant: tool"),
        (b'[{"role":"user"}]', "message 0: the content is neither text nor a list of blocks"),
        (b'[{"role":"user","content":["x"]}]', "message 0, block 0: not an object"),
        (
            b'[{"role":"user","content":[{"text":"x"}]}]',
            "message 0, block 0: a block without a type",
        ),
        (
            b'[{"role":"assistant","content":[{"type":"tool_use","name":"b","input":{}}]}]',
            "message 0, block 0: a tool_use without an id",
        ),
        (
            b'[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":["x"]}]}]',
            "message 0, block 0, content 0: not an object with a type",
        ),
        (
            b'[{"role":"user","content":[{"type":"tool_use","id":"t","name":"b","input":{}}]}]',
            "message 0, block 0: a tool_use in a user message",
        ),
    ],
)
def test_what_is_no_conversation_is_refused_with_its_place(text, said):
    """One clear error says what is wrong and where, and names the source."""
    with pytest.raises(InputError) as refused:
        Snapshot.from_json(text, source="talk.json")
    assert str(refused.value).startswith("talk.json: ")
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([USER, {"role": "user", "content": float("nan")}], "message 1: "),
        ([USER, {"role": "user", "content": [{"type": "x", "y": object()}]}], "message 1: object "),
        ([USER, {"role": "user", "content": b"x"}], "message 1: bytes "),
        ("q", "messages is not a list"),
        (None, "messages is not a list"),
    ],
)
def test_objects_that_cannot_be_sent_are_refused_with_their_place(messages, said):
    """The same for Python objects."""
    with pytest.raises(InputError, match=said):
        Snapshot.of(messages=messages)


def test_a_list_that_holds_itself_is_refused():
    """Neither a traceback nor a crash."""
    content = []
    content.append({"type": "x", "content": content})
    with pytest.raises(InputError, match="message 0: "):
        Snapshot.of(messages=[{"role": "user", "content": content}])


def test_too_much_is_refused_before_it_is_read():
    """The cap is on the input as it comes."""
    with pytest.raises(InputError, match="larger than 10 bytes: 32"):
        Snapshot.from_json(b" " * 32, max_bytes=10)


def test_parameters_can_be_replaced():
    """Another model, and more; the messages and the old snapshot stay."""
    snapshot = Snapshot.of(model="m", max_tokens=9, messages=[USER])
    changed = snapshot.with_params(model="n", system="s")
    assert dict(changed.params) == {"model": b'"n"', "max_tokens": b"9", "system": b'"s"'}
    assert changed.messages is snapshot.messages
    assert snapshot.param("model") == "m"


class Recorder(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.server.bodies.append(self.rfile.read(int(self.headers["content-length"])))
        self.server.betas.append(self.headers.get("anthropic-beta"))
        answer = json.dumps(REPLY).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


@pytest.fixture
def recorder():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Recorder) as server:
        server.bodies, server.betas = [], []
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_it_sends_what_the_sdk_sends(recorder, tmp_path: pathlib.Path):
    """Replies of the SDK, dicts and files mixed become the very bytes that the SDK would have sent."""
    anthropic = pytest.importorskip("anthropic")
    picture = tmp_path / "a.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n")
    source = {"type": "base64", "media_type": "image/png", "data": picture}
    url = f"http://127.0.0.1:{recorder.server_port}"
    with anthropic.Anthropic(base_url=url, api_key="k", max_retries=0) as client:
        first = client.messages.create(model="m", max_tokens=9, messages=[USER])
        params = {
            "model": "m",
            "max_tokens": 9,
            "system": [{"type": "text", "text": "é"}],
            "messages": [
                USER,
                {"role": "assistant", "content": first.content},
                {
                    "role": "user",
                    "content": (
                        {"type": "tool_result", "tool_use_id": "t1", "content": first.content[2:3]},
                        {"type": "image", "source": source},
                    ),
                },
            ],
            "tools": ({"name": "b", "input_schema": {"type": "object"}},),
        }
        snapshot = Snapshot.of(**params, stop_sequences=anthropic.NOT_GIVEN)
        client.beta.messages.create(**params, betas=["b-1"])
    sent = recorder.bodies[1]
    assert b'"messages":[' + b",".join(snapshot.messages) + b"]" in sent
    for name, value in snapshot.params:
        assert json.dumps(name).encode() + b":" + value in sent
    assert json.loads(sent).keys() == {"messages", *(name for name, _ in snapshot.params)}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "role", "content", "id", "tool_use_id", "text", "input", "source"]
            ),
            inner
            | st.sampled_from(["text", "tool_use", "tool_result", "image", "user", "assistant"]),
            max_size=4,
        )
    ),
    max_leaves=12,
)
BLOCKS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image", "tool_use", "tool_result", "document", "thinking"])},
    optional=dict.fromkeys(("id", "tool_use_id", "text", "content", "source", "input"), VALUES),
)
TALKS = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system"])},
        optional={"content": st.lists(BLOCKS, max_size=3) | VALUES},
    ),
    max_size=4,
)


@settings(max_examples=150, deadline=None)
@given(text=st.binary(max_size=60) | VALUES.map(json.dumps) | TALKS.map(json.dumps))
def test_whatever_comes_in_is_taken_or_refused_in_one_way(text):
    """There is no third way: a snapshot that can be forked, or an InputError."""
    with contextlib.suppress(InputError):
        snapshot = Snapshot.from_json(text)
        assert Snapshot.from_json(snapshot.to_json()).messages == snapshot.messages
        fork(snapshot, "count")


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize(
    "names",
    [
        ("max_tokens", "messages", "model", "stream", "tools"),
        ("model", "max_tokens", "tools", "messages", "stream"),
        ("messages", "stream", "tools", "model", "max_tokens"),
        ("stream", "model", "tools", "messages", "max_tokens"),
    ],
)
def test_json_is_written_again_as_it_was(separators, names):
    """A request body goes out again as the very bytes that it was, whatever wrote it."""
    wanted = {
        "model": "m",
        "max_tokens": 9,
        "tools": [{"name": "bash", "input_schema": {"type": "object"}}],
        "messages": [USER, {"role": "assistant", "content": "é: [1, 2]"}, USER],
        "stream": True,
    }
    body = json.dumps({name: wanted[name] for name in names}, separators=separators).encode()
    snapshot = Snapshot.from_json(body)
    params = {name: msgspec.Raw(value) for name, value in snapshot.params}
    request = Request(params=params, messages=snapshot.messages, layout=snapshot.layout)
    assert b"".join(request.parts()) == body
    assert Snapshot.from_json(snapshot.to_json()).messages == snapshot.messages
    assert "stream" not in json.loads(snapshot.to_json())
