"""Repair: idempotent, bytes before the first change kept, and always accepted."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from messages_server import problem_with
from support_strict import faults

from forkrun.conversation import Conversation, text_block
from forkrun.errors import InputError
from forkrun.snapshot.fork import fork
from forkrun.snapshot.freeze import Snapshot
from forkrun.snapshot.repair import repair

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAAB"
IDS = ("t1", "t2", "t3", "call:4", "")
TEXTS = ("hello", "", " \n\u2028", "a\x00b", "😀", "half \ud83d a pair")
MARKS = st.one_of(st.just({}), st.just({"cache_control": {"type": "ephemeral"}}))


def block(kind, **fields):
    fixed = {name: st.just(value) for name, value in fields.items() if not hasattr(value, "map")}
    drawn = {name: value for name, value in fields.items() if hasattr(value, "map")}
    plain = st.fixed_dictionaries({"type": st.just(kind)} | fixed | drawn)
    return st.tuples(plain, MARKS).map(lambda pair: pair[0] | pair[1])


TEXT = block("text", text=st.sampled_from(TEXTS))
IMAGE = block(
    "image",
    source=st.fixed_dictionaries(
        {
            "type": st.just("base64"),
            "media_type": st.sampled_from(["image/png", "image/jpeg", "image/bmp"]),
            "data": st.sampled_from([PNG, "/9j/4AAQ", "x", "", "data:image/png;base64," + PNG]),
        }
    ),
)
RESULT = block(
    "tool_result",
    tool_use_id=st.sampled_from(IDS),
    content=st.one_of(
        st.sampled_from(["out", "", " ", None]), st.lists(st.one_of(TEXT, IMAGE), max_size=3)
    ),
)
SERVER_RESULT = block(
    "web_search_tool_result", tool_use_id=st.sampled_from(["s1", "s2"]), content=[]
)
UNKNOWN = block("block_from_2031", z=[1, {"y": None}])
USER_BLOCKS = st.lists(st.one_of(TEXT, IMAGE, RESULT, RESULT, UNKNOWN), max_size=5)


@st.composite
def call(draw):
    name = draw(st.sampled_from([*IDS[:-1]]))
    made = {
        "type": "tool_use",
        "id": name,
        "name": draw(st.sampled_from(["bash", "a.b", "mcp__x"])),
    }
    made["input"] = draw(
        st.sampled_from([{"c": name}, {"c": name}, {"c": name}, "", None, [], '{"a":1}'])
    )
    return made


ASSISTANT_BLOCKS = st.lists(
    st.one_of(
        TEXT,
        call(),
        call(),
        block("thinking", thinking="  hm\n", signature=st.sampled_from(["Ab+/==", "Ab+/==", ""])),
        block("redacted_thinking", data="ZZ=="),
        block("server_tool_use", id=st.sampled_from(["s1", "s2"]), name="web_search", input={}),
        SERVER_RESULT,
        UNKNOWN,
    ),
    max_size=5,
)
MESSAGES = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {"role": st.just("user"), "content": st.one_of(st.sampled_from(TEXTS), USER_BLOCKS)}
        ),
        st.fixed_dictionaries(
            {
                "role": st.just("assistant"),
                "content": st.one_of(st.sampled_from(TEXTS), ASSISTANT_BLOCKS),
            }
        ),
    ),
    max_size=8,
)
SYSTEMS = st.one_of(
    st.just("be brief"),
    st.lists(MARKS.map(lambda m: {"type": "text", "text": "be brief"} | m), max_size=5),
)
DANGLING = st.sampled_from(["placeholder", "cut"])


def repaired_or_refused(snapshot, dangling):
    """Only two calls that share an id may be refused: that cannot be mended with certainty."""
    try:
        return repair(snapshot, dangling=dangling)
    except InputError as refusal:
        assert "another call has the same id" in str(refusal)
        assert "message " in str(refusal)
        assert "block " in str(refusal)
        return None


@settings(max_examples=200, deadline=None)
@given(messages=MESSAGES, system=SYSTEMS, dangling=DANGLING)
def test_repairing_twice_is_repairing_once(messages, system, dangling):
    """A repaired snapshot is left alone: no byte changes and nothing is noted."""
    once = repaired_or_refused(Snapshot.of(model="m", system=system, messages=messages), dangling)
    if once:
        twice = repair(once.snapshot, dangling=dangling)
        assert twice.snapshot == once.snapshot
        assert twice.repair.notes == ()
        assert twice.repair.strategy == "none"


@settings(max_examples=200, deadline=None)
@given(messages=MESSAGES, system=SYSTEMS, dangling=DANGLING)
def test_every_repaired_snapshot_is_accepted(messages, system, dangling):
    """A fork of whatever there is, and a turn after it, pass a strict validator."""
    snapshot = Snapshot.of(model="m", max_tokens=9, system=system, messages=messages)
    if not repaired_or_refused(snapshot, dangling):
        return
    conversation = Conversation.fork(fork(snapshot, "count", dangling=dangling))
    for number in range(3):
        raw = b"".join(conversation.request(number).parts())
        assert faults(json.loads(raw), size=len(raw)) == []
        assert problem_with(json.loads(raw)) is None  # what the strict server answers 400 to
        conversation.add_assistant(
            [
                json.dumps(
                    {"type": "tool_use", "id": f"n{number}", "name": "bash", "input": {}}
                ).encode()
            ]
        )
        conversation.add_user(
            [
                json.dumps(
                    {"type": "tool_result", "tool_use_id": f"n{number}", "content": "x"}
                ).encode()
            ]
        )


@settings(max_examples=200, deadline=None)
@given(messages=MESSAGES, dangling=DANGLING)
def test_bytes_before_the_first_repaired_message_stay(messages, dangling):
    """Messages before the first one that a note names are the same objects as in the snapshot."""
    snapshot = Snapshot.of(model="m", messages=messages)
    done = repaired_or_refused(snapshot, dangling)
    if not done:
        return
    named = [
        int(note.split()[1].rstrip(":,"))
        for note in done.repair.notes
        if note.startswith("message ")
    ]
    first = min(named, default=len(messages))
    # A message that joins the one before it changes that one too; so does a cut or a result at the end.
    kept = max(0, min(first - 1, len(done.snapshot.messages) - 2))
    for before, after in zip(snapshot.messages[:kept], done.snapshot.messages[:kept], strict=True):
        assert after is before


def sound_history(*, turns: int, seed: int = 1) -> list[dict]:
    """A history that needs no repair, as an agent leaves it."""
    rng = random.Random(seed)
    messages = [{"role": "user", "content": "begin"}]
    for turn in range(turns):
        ids = [f"toolu_{turn}_{n}" for n in range(rng.randint(1, 3))]
        calls = [
            {"type": "tool_use", "id": i, "name": "bash", "input": {"command": "ls"}} for i in ids
        ]
        thinking = {"type": "thinking", "thinking": f" {turn}\n", "signature": "Ab+/=="}
        results = [{"type": "tool_result", "tool_use_id": i, "content": f"out of {i}"} for i in ids]
        messages.append({"role": "assistant", "content": [thinking, *calls]})
        messages.append({"role": "user", "content": results})
    messages.append({"role": "assistant", "content": [{"type": "text", "text": "done so far"}]})
    return messages


def test_a_sound_snapshot_is_not_touched():
    """What the API accepts keeps every byte, spaces and order of keys included."""
    messages = sound_history(turns=6)
    text = json.dumps({"model": "m", "messages": messages, "max_tokens": 5}, indent=1)
    snapshot = Snapshot.from_json(text)
    done = repair(snapshot)
    assert done.repair.notes == ()
    assert all(a is b for a, b in zip(done.snapshot.messages, snapshot.messages, strict=True))
    assert all(message.decode() in text for message in done.snapshot.messages)


def test_results_far_from_their_calls_come_back():
    """A result that stands turns later moves to the message after its call."""
    done = repair(
        Snapshot.of(
            messages=[
                {"role": "user", "content": "go"},
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "t1", "name": "b", "input": {}}],
                },
                {"role": "user", "content": "wait"},
                {"role": "assistant", "content": "ok"},
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "r"}],
                },
            ]
        )
    )
    sent = [json.loads(m) for m in done.snapshot.messages]
    assert [m["role"] for m in sent] == ["user", "assistant", "user", "assistant"]
    assert [b["type"] for b in sent[2]["content"]] == ["tool_result", "text"]


def test_a_lost_result_in_the_middle_is_said_to_be_lost():
    """A call that was interrupted long ago gets a constant result that says so."""
    done = repair(
        Snapshot.of(
            messages=[
                {"role": "user", "content": "go"},
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "t1", "name": "b", "input": {}}],
                },
                {"role": "user", "content": "never mind"},
                {"role": "assistant", "content": "fine"},
            ]
        )
    )
    result = json.loads(done.snapshot.messages[2])["content"][0]
    assert result["tool_use_id"] == "t1"
    assert result["is_error"] is True
    assert done.repair.strategy == "none"


def test_cut_keeps_what_the_user_said_after_the_open_call():
    """`cut` leaves out the open turn and its results, not other words."""
    messages = [
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": i, "name": "b", "input": {}} for i in ("t1", "t2")
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "r"},
                {"type": "text", "text": "hurry"},
            ],
        },
    ]
    done = repair(Snapshot.of(messages=messages), dangling="cut")
    assert done.repair.tool_use_ids == ("t2",)
    (only,) = done.snapshot.messages
    assert [b["text"] for b in json.loads(only)["content"]] == ["go", "hurry"]


@pytest.mark.parametrize("dangling", ["placeholder", "cut"])
def test_a_call_made_by_an_open_server_call_goes_with_it(dangling):
    """What code on the server called cannot be answered when that code has no result."""
    messages = [
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "running"},
                {
                    "type": "server_tool_use",
                    "id": "srvtoolu_1",
                    "name": "code_execution",
                    "input": {},
                },
                {
                    "type": "tool_use",
                    "id": "t1",
                    "name": "b",
                    "input": {},
                    "caller": {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"},
                },
            ],
        },
    ]
    done = repair(Snapshot.of(messages=messages), dangling=dangling)
    assert [b["type"] for b in json.loads(done.snapshot.messages[1])["content"]] == ["text"]
    assert len(done.repair.notes) == 2


def test_thinking_at_the_end_of_a_turn_keeps_its_bytes():
    """The API refuses a turn that ends with thinking: a constant text follows, thinking stays."""
    thinking = {"type": "thinking", "thinking": " x ", "signature": "Ab+/=="}
    done = repair(
        Snapshot.of(
            messages=[
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": [thinking]},
            ]
        )
    )
    blocks = json.loads(done.snapshot.messages[1])["content"]
    assert blocks[0] == thinking
    assert blocks[1]["type"] == "text"


def test_a_reply_of_the_run_is_mended_too():
    """Blank text, half a pair and thinking at the end do not poison the turns of a run."""
    conversation = Conversation.fresh(model="m", max_tokens=9, prompt="go")
    conversation.add_assistant([b'{"type":"text","text":" "}', b'{"type":"text","text":"\\ud83d"}'])
    conversation.add_user([b'{"type":"text","text":"on"}'])
    conversation.add_assistant([b'{"type":"thinking","thinking":"t","signature":"s"}'])
    conversation.add_user([text_block("on")])
    body = json.loads(b"".join(conversation.request(0).parts()))
    assert faults(body) == []
    assert body["messages"][1]["content"][0]["text"] == "\ufffd"
