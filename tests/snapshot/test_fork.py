"""The fork: the parent's bytes first, whole, in every turn; marks; size; one directive."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support_strict import faults

from forkrun.conversation import Conversation
from forkrun.errors import ContextExceeded, UsageError
from forkrun.models.base import Request
from forkrun.snapshot import repair as repairing
from forkrun.snapshot.fork import fork
from forkrun.snapshot.freeze import Snapshot
from forkrun.snapshot.start import MAX_REQUEST_BYTES

MARK = {"cache_control": {"type": "ephemeral"}}
TOOLS = [{"name": "bash", "input_schema": {"type": "object"}}]


class Trie:
    """Remembers requests as a prompt cache does, byte by byte, and says how much it has seen."""

    def __init__(self):
        self.seen = []

    def add(self, body: bytes) -> int:
        """Give the length of the longest prefix that an earlier request began with."""
        longest = max((common(body, other) for other in self.seen), default=0)
        self.seen.append(body)
        return longest


def common(one: bytes, other: bytes) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


def talk(turns, *, marks=1):
    """A parent's history that ends with its assistant, as messages of bytes are built by a run."""
    messages = [{"role": "user", "content": "begin"}]
    for turn in range(turns):
        call = {"type": "tool_use", "id": f"p{turn}", "name": "bash", "input": {"n": turn}}
        found = {"type": "tool_result", "tool_use_id": f"p{turn}", "content": f"out {turn}"}
        messages += [
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [found | (MARK if turn >= turns - marks else {})]},
        ]
    return [*messages, {"role": "assistant", "content": [{"type": "text", "text": "now"}]}]


def body_of(snapshot: Snapshot) -> bytes:
    """What the parent itself sends next."""
    params = {name: msgspec.Raw(value) for name, value in snapshot.params}
    return b"".join(Request(params=params, messages=snapshot.messages).parts())


def turn(conversation, number, *, calls=1):
    """Play one turn with this many calls."""
    ids = [f"c{number}_{n}" for n in range(calls)]
    conversation.add_assistant(
        [
            json.dumps({"type": "tool_use", "id": i, "name": "bash", "input": {}}).encode()
            for i in ids
        ]
    )
    conversation.add_user(
        [
            json.dumps({"type": "tool_result", "tool_use_id": i, "content": "x"}).encode()
            for i in ids
        ]
    )


def test_every_turn_begins_with_all_that_the_parent_sent():
    """A trie over raw bytes finds all of the parent's in the fork, and twenty turns later still.

    Every byte up to the end of the parent's messages is shared; the parameters that follow them
    are the parent's as well.
    """
    snapshot = Snapshot.of(
        model="m",
        max_tokens=9,
        system="s",
        tools=TOOLS,
        thinking={"type": "adaptive"},
        messages=talk(30),
    )
    trie = Trie()
    parent = body_of(snapshot)
    trie.add(parent)
    prefix, after = parent.split(snapshot.messages[-1])
    conversation = Conversation.fork(fork(snapshot, "count"))
    for number in range(21):
        body = b"".join(conversation.request(number).parts())
        assert trie.add(body) >= len(prefix) + len(snapshot.messages[-1])
        assert body.endswith(after)
        turn(conversation, number)


def test_siblings_share_all_but_their_task():
    """Forks of one snapshot differ from the first byte of what is their own."""
    snapshot = Snapshot.of(model="m", max_tokens=9, messages=talk(3))
    one, other = (
        b"".join(Conversation.fork(fork(snapshot, task)).request(0).parts())
        for task in ("count", "sum")
    )
    assert common(one, other) == one.index(b"count")
    assert fork(snapshot, "count").prefix_sha256 == fork(snapshot, "sum").prefix_sha256


def test_the_repair_is_worked_out_once_for_all_siblings(monkeypatch):
    """Fifty forks look at the history once."""
    seen = []
    monkeypatch.setattr(repairing, "mend_media", lambda messages, notes: seen.append(len(messages)))
    snapshot = Snapshot.of(model="m", max_tokens=9, messages=talk(3))
    starts = [fork(snapshot, f"task {n}") for n in range(50)]
    assert len(seen) == 1
    assert all(
        a is b for start in starts for a, b in zip(start.prefix, starts[0].prefix, strict=True)
    )


def test_the_task_joins_a_user_message_at_the_end():
    """Where the parent's last message is the user's, its bytes stay and the task follows in it."""
    last = {"role": "user", "content": [{"type": "text", "text": "and?"} | MARK]}
    snapshot = Snapshot.of(model="m", max_tokens=9, messages=[*talk(2), last])
    start = fork(snapshot, "count")
    assert start.prefix == snapshot.messages[:-1]
    assert start.opening.startswith(snapshot.messages[-1].removesuffix(b"]}"))
    body = json.loads(b"".join(Conversation.fork(start).request(0).parts()))
    assert faults(body) == []
    assert [b["type"] for b in body["messages"][-1]["content"]] == ["text", "text"]


@settings(max_examples=150, deadline=None)
@given(
    fixed=st.integers(0, 5),
    in_tools=st.integers(0, 3),
    marks=st.integers(0, 5),
    calls=st.lists(st.integers(1, 25), max_size=4),
    automatic=st.booleans(),
)
def test_marks_never_exceed_four_and_the_parents_bytes_stay(
    fixed, in_tools, marks, calls, automatic
):
    """Whatever the parent marked: at most four, its last mark kept, no more taken off than needed."""
    system = [{"type": "text", "text": "s"} | MARK for _ in range(fixed)]
    tools = [{"name": f"t{n}", "input_schema": {"type": "object"}} | MARK for n in range(in_tools)]
    params = {"system": system, "tools": tools} | (MARK if automatic else {})
    snapshot = Snapshot.of(model="m", max_tokens=9, messages=talk(6, marks=marks), **params)
    conversation = Conversation.fork(fork(snapshot, "count"))
    for number, count in enumerate([*calls, 1]):
        body = json.loads(b"".join(conversation.request(number).parts()))
        assert faults(body) == []
        if fixed + in_tools + automatic <= 4:
            assert body["system"] == system
            assert body["tools"] == tools
        if fixed + in_tools + marks + automatic < 4:
            assert conversation.request(number).messages[:14] == list(snapshot.messages)
        if fixed + in_tools <= 3 and not automatic:
            assert "cache_control" in body["messages"][-1]["content"][-1]
        if marks and fixed + in_tools + automatic <= 2:
            assert "cache_control" in body["messages"][12]["content"][0]
        turn(conversation, number, calls=count)


def test_a_fresh_conversation_marks_what_never_changes_and_its_end():
    """System and the last two user messages carry marks; what is in between carries none."""
    conversation = Conversation.fresh(model="m", max_tokens=9, system="s", tools=TOOLS, prompt="go")
    for number in range(4):
        turn(conversation, number)
    body = json.loads(b"".join(conversation.request(0).parts()))
    marked = [
        at for at, message in enumerate(body["messages"]) if "cache_control" in json.dumps(message)
    ]
    assert faults(body) == []
    assert marked == [6, 8]
    assert "cache_control" in body["system"][0]


def test_what_is_added_later_does_not_change_a_request():
    """A request that is being sent is safe from the turns that follow."""
    conversation = Conversation.fresh(model="m", max_tokens=9, prompt="go")
    request = conversation.request(0)
    before = b"".join(request.parts())
    turn(conversation, 0)
    conversation.add_user([b'{"type":"text","text":"more"}'])
    assert b"".join(request.parts()) == before


def test_a_request_that_is_too_large_is_not_sent():
    """The size is known before anything is sent, and is about that of the body."""
    conversation = Conversation.fresh(model="m", max_tokens=9, prompt="go")
    size = len(b"".join(conversation.request(0).parts()))
    assert 0 <= size - conversation.size_bytes < 200
    conversation.add_user([msgspec.json.encode({"type": "text", "text": "x" * MAX_REQUEST_BYTES})])
    with pytest.raises(ContextExceeded) as refused:
        conversation.request(1)
    assert refused.value.status == 413


def test_a_pause_goes_on_in_the_same_turn():
    """After `pause_turn` the reply goes back as it is, and what follows joins it."""
    conversation = Conversation.fresh(model="m", max_tokens=9, prompt="go")
    conversation.add_assistant([b'{"type":"text","text":"a"}'])
    assert (
        conversation.request(1).messages[-1]
        == b'{"role":"assistant","content":[{"type":"text","text":"a"}]}'
    )
    conversation.add_assistant([b'{"type":"text","text":"b"}'])
    assert len(conversation.request(2).messages) == 2


def test_ids_of_the_parents_calls_are_known():
    """A run can see to it that no call of its own takes one of them."""
    assert fork(Snapshot.of(messages=talk(2)), "x").call_ids == {"p0", "p1"}


def test_an_empty_task_is_refused():
    """There is nothing to do for a child without a task."""
    with pytest.raises(UsageError):
        fork(Snapshot.of(messages=talk(1)), " \n")
