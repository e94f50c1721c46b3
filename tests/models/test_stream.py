"""From bytes to a reply: whatever the pieces, whatever is in them."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from messages_server import events_of

from forkrun.errors import ModelError, ModelUnavailable
from forkrun.models import stream
from forkrun.models.stream import EventReader, ReplyBuilder

TEXTS = st.text(max_size=60)
JSONS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
BLOCKS = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}),
    st.fixed_dictionaries({"type": st.just("thinking"), "thinking": TEXTS, "signature": TEXTS}),
    st.fixed_dictionaries({"type": st.just("odd"), "payload": JSONS}),
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(["tool_use", "server_tool_use"]),
            "id": st.just("t"),
            "name": st.just("n"),
            "input": st.dictionaries(TEXTS, JSONS, max_size=3),
        }
    ),
)


def bytes_of(*events):
    return b"".join(
        f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events
    )


def read(content, *, size=10_000):
    """Read a stream in pieces of `size` bytes; give the reply and what was heard."""
    reader, builder, heard = EventReader(), ReplyBuilder(model="m"), []
    for start in range(0, len(content), size):
        for event in reader.feed(content[start : start + size]):
            heard.append(builder.take(event))
    return builder.reply(), [text for text in heard if text]


def around(*events):
    """Put the beginning and the end of an answer around events."""
    return bytes_of(
        {"type": "message_start", "message": {"model": "m", "usage": {"input_tokens": 3}}},
        *events,
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"output_tokens": 2},
        },
        {"type": "message_stop"},
    )


def grown(block, *deltas):
    """Read one block that grows by these deltas; give its JSON."""
    events = [{"type": "content_block_start", "index": 0, "content_block": block}]
    events += [{"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas]
    reply, _ = read(around(*events))
    return reply.content[0]


@settings(max_examples=60, deadline=None)
@given(st.lists(BLOCKS, max_size=4), st.integers(1, 200))
def test_any_content_survives_any_cutting(content, size):
    """What is streamed comes out as it was, in whatever pieces the bytes come."""
    usage = {"input_tokens": 1, "output_tokens": 2}
    message = {"model": "m", "content": content, "stop_reason": "end_turn", "stop_sequence": None}
    reply, heard = read(bytes_of(*events_of(message | {"usage": usage})), size=size)
    assert [json.loads(block) for block in reply.content] == content
    assert "".join(heard) == "".join(b["text"] for b in content if b["type"] == "text")


def test_a_block_without_deltas_keeps_its_very_bytes():
    """Spaces, escapes, the form of numbers: nothing is encoded again."""
    block = '{ "type":"odd" ,"n": 1.50, "s":"\\u00e9\\/" }'
    event = f'{{"type":"content_block_start","index":0,"content_block":{block}}}'
    content = around().replace(
        b"event: message_delta",
        f"event: content_block_start\ndata: {event}\n\nevent: message_delta".encode(),
    )
    reply, _ = read(content)
    assert reply.content == (block.encode(),)


def test_an_input_keeps_the_bytes_that_the_model_wrote():
    """The JSON of a tool input is joined, not read and written again."""
    block = {"type": "tool_use", "id": "t", "name": "n", "input": {}}
    pieces = ['{"a": 1.50,', ' "b":"\\u00e9"}']
    json_of = grown(block, *({"type": "input_json_delta", "partial_json": p} for p in pieces))
    assert b'"input":{"a": 1.50, "b":"\\u00e9"}' in json_of


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("", {}),
        ('{"command":"rm -rf bu', {}),
        ('{"a": NaN}', {}),
        ("[1]", {}),
        ('"text"', {}),
        ('"{\\"command\\": \\"echo hi\\"}"', {"command": "echo hi"}),
        ("[" * 100_000, {}),
    ],
)
def test_an_input_that_is_no_object_becomes_one(written, wanted):
    """History must hold objects: a request that holds anything else is refused."""
    block = {"type": "tool_use", "id": "t", "name": "n", "input": {}}
    json_of = grown(block, {"type": "input_json_delta", "partial_json": written})
    assert json.loads(json_of)["input"] == wanted


def test_halves_of_a_character_come_together():
    """Some servers cut an emoji in two escapes; what stays half becomes a replacement mark."""
    deltas = [{"type": "text_delta", "text": t} for t in ("a\ud83d", "\ude00b", "\ud83d")]
    assert json.loads(grown({"type": "text", "text": ""}, *deltas))["text"] == "a😀b\ufffd"


def test_unknown_deltas_grow_or_replace_the_field_of_their_name():
    """Text grows, anything else replaces; nothing is lost."""
    block = {"type": "compaction", "content": "a", "extra": 1}
    deltas = [{"type": "compaction_delta", "content": "b"}, {"type": "x_delta", "extra": {"n": 2}}]
    assert json.loads(grown(block, *deltas)) == {
        "type": "compaction",
        "content": "ab",
        "extra": {"n": 2},
    }


def test_unknown_events_comments_and_other_fields_are_passed_over():
    """A stream may say more than we know."""
    odd = b": comment\n\nid: 7\nretry: 10\n\nevent: ping\ndata: {}\n\n"
    reply, _ = read(odd + around({"type": "of_next_year", "index": 0}))
    assert reply.stop_reason == "end_turn"


def test_lines_may_end_with_crlf_and_data_may_have_several_lines():
    """The rules of server-sent events, beyond what the API makes use of."""
    content = around().replace(b'"delta": ', b'\ndata:"delta":').replace(b"\n", b"\r\n")
    assert read(content, size=7)[0].stop_reason == "end_turn"


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[1]",
        b"\xff\xfe",
        b'{"type":"content_block_start","index":0,"content_block":[]}',
        b"[" * 99_999,
        b'{"type":"content_block_delta","index":0}',
        b'{"type":"message_delta","delta":{"stop_reason":3}}',
    ],
)
def test_an_event_that_is_none_can_be_tried_again(data):
    """Garbage on the wire is a broken stream, not a crash."""
    with pytest.raises(ModelUnavailable, match="garbled"):
        read(b"data: " + data + b"\n\n" + around())


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (
            b'{"type":"error","error":{"type":"overloaded_error","message":"busy"}}',
            ModelUnavailable,
        ),
        (b'{"error":{"type":"invalid_request_error","message":"busy"}}', ModelError),
        (b'{"error":"busy"}', ModelUnavailable),
        (b'{"type":"error"}', ModelUnavailable),
        (b'{"type":"error","error":{"type":"of_next_year","message":"busy"}}', ModelUnavailable),
    ],
)
def test_an_error_event_counts_in_every_form(data, wanted):
    """Local servers leave out the type, or give the message alone."""
    with pytest.raises(ModelError) as caught:
        read(b"data: " + data + b"\n\n" + around())
    assert type(caught.value) is wanted


def test_usage_counts_are_totals_so_far():
    """A later count replaces an earlier one; one that is missing, null or odd does not."""
    events = [
        {
            "type": "message_start",
            "message": {"usage": {"input_tokens": 5, "cache_read_input_tokens": 7}},
        },
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"output_tokens": 4, "cache_read_input_tokens": None, "input_tokens": "x"},
        },
        {"type": "message_stop"},
    ]
    usage = read(bytes_of(*events))[0].usage
    assert (usage.input_tokens, usage.output_tokens, usage.cache_read_input_tokens) == (5, 4, 7)


def test_events_and_replies_are_bounded(monkeypatch):
    """Neither an endless line nor an endless reply is kept in memory."""
    monkeypatch.setattr(stream, "MAX_EVENT_BYTES", 1000)
    reader = EventReader()
    with pytest.raises(ModelError, match="larger than 1000 bytes"):
        for _ in range(30):
            list(reader.feed(b"data: " + b"x" * 100))
    monkeypatch.setattr(stream, "MAX_EVENT_BYTES", 10_000)
    monkeypatch.setattr(stream, "MAX_REPLY_BYTES", 2000)
    with pytest.raises(ModelError, match="larger than 2000 bytes"):
        grown({"type": "text", "text": ""}, *[{"type": "text_delta", "text": "x" * 100}] * 30)


def test_pings_cost_no_memory(monkeypatch):
    """Signs of life do not count towards the size of a reply."""
    monkeypatch.setattr(stream, "MAX_REPLY_BYTES", 2000)
    assert read(around(*[{"type": "ping"}] * 1000))[0].stop_reason == "end_turn"


def test_a_reply_is_valid_json_whatever_came():
    """Blocks are checked for what a later request needs: valid UTF-8 and JSON."""
    reply, _ = read(
        around(
            {
                "type": "content_block_start",
                "index": 0,
                "content_block": {"type": "text", "text": "é"},
            }
        )
    )
    assert msgspec.json.decode(reply.content[0]) == {"type": "text", "text": "é"}
