"""Snapshots from the field: what goes wrong with a conversation that somebody else has left behind.

Each test freezes a snapshot, forks it as a run does and looks at the body that would be sent.
"""

import base64
import json

import pytest
from support_strict import faults

from forkrun.conversation import Conversation
from forkrun.errors import InputError
from forkrun.snapshot.blocks import NO_OUTPUT
from forkrun.snapshot.fork import BOUNDARY, fork
from forkrun.snapshot.freeze import Snapshot
from forkrun.snapshot.pairs import PLACEHOLDER
from forkrun.snapshot.repair import repair
from forkrun.snapshot.start import MAX_REQUEST_BYTES

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\0" * 16).decode()
JPEG = base64.b64encode(b"\xff\xd8\xff\xe0" + b"\0" * 16).decode()


def call(call_id, **fields):
    return {"type": "tool_use", "id": call_id, "name": "bash", "input": {}} | fields


def result(name, content="ok", **fields):
    return {"type": "tool_result", "tool_use_id": name, "content": content} | fields


def text(words):
    return {"type": "text", "text": words}


def user(*blocks):
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks):
    return {"role": "assistant", "content": list(blocks)}


def image(data, media_type="image/png"):
    return {
        "type": "image",
        "source": {"type": "base64", "media_type": media_type, "data": data},
    }


@pytest.fixture(params=["objects", "json"])
def frozen(request):
    """Freeze messages on both roads: from Python objects and from JSON."""

    def freeze(messages, **params):
        given = {"model": "m", "max_tokens": 9, **params, "messages": messages}
        if request.param == "json":
            return Snapshot.from_json(json.dumps(given))
        return Snapshot.from_params(given)

    return freeze


def started(snapshot, task="x", **options):
    return Conversation.fork(fork(snapshot, task, **options))


def sent(conversation, number=0):
    """Give the body of a request, which must be one that the API accepts."""
    raw = b"".join(conversation.request(number).parts())
    body = json.loads(raw)
    assert faults(body, size=len(raw)) == []
    return body


def messages_of(snapshot, task="x", **options):
    return sent(started(snapshot, task, **options))["messages"]


def last_text(messages):
    return messages[-1]["content"][-1]["text"]


def test_A01_a_fork_in_mid_turn_closes_the_spawning_call_once(frozen):
    """The open call gets one fixed result, first; the task follows; the history keeps its bytes."""
    history = [
        {"role": "user", "content": "look into it"},
        assistant(
            text("delegating"), call("t1", name="spawn_agent", input={"task": "count files"})
        ),
    ]
    snapshot = frozen(history)
    start = fork(snapshot, "count files")
    messages = messages_of(snapshot, "count files")
    assert start.prefix == snapshot.messages
    assert messages[:2] == history
    assert messages[2]["content"][0] == result("t1", PLACEHOLDER)
    assert [b["type"] for b in messages[2]["content"]] == ["tool_result", "text"]
    assert last_text(messages).endswith("count files")
    assert start.repair.strategy == "placeholder"
    assert start.repair.tool_use_ids == ("t1",)


def test_A01_many_open_calls_get_the_same_result_in_their_order(frozen):
    """Parallel calls are closed by one constant text, so that siblings share it in the cache."""
    snapshot = frozen(
        [user(text("go")), assistant(call("t1"), call("t2"), call("t3")), user(result("t2"))]
    )
    content = messages_of(snapshot)[-1]["content"]
    assert [b.get("tool_use_id") for b in content] == ["t1", "t2", "t3", None]
    assert [b.get("content") for b in content[:3]] == [PLACEHOLDER, "ok", PLACEHOLDER]


def test_A01_cut_forks_one_step_earlier(frozen):
    """With `cut` the open turn is left out as a whole."""
    snapshot = frozen(
        [
            {"role": "user", "content": "go"},
            assistant(text("one"), call("t1")),
            user(result("t1")),
            assistant(text("two"), call("t2")),
        ]
    )
    messages = messages_of(snapshot, dangling="cut")
    assert [m["role"] for m in messages] == ["user", "assistant", "user"]
    assert messages[2]["content"][0] == result("t1")


def test_A03_a_result_without_its_call_is_never_sent(frozen):
    """The orphan goes, its empty message too, and the history still begins with the user."""
    messages = messages_of(
        frozen(
            [
                user(result("gone", "old output")),
                assistant(text("so")),
                {"role": "user", "content": "continue"},
            ]
        )
    )
    assert messages[0]["role"] == "user"
    assert "tool_result" not in json.dumps(messages)
    assert {"type": "text", "text": "so"} in messages[1]["content"]


def test_A05_results_of_one_turn_are_put_together(frozen):
    """Results that were stored one message each are merged in the order of the calls."""
    for order in (("t1", "t2"), ("t2", "t1")):
        history = [
            user(text("go")),
            assistant(call("t1"), call("t2")),
            *(user(result(i, i)) for i in order),
        ]
        content = messages_of(frozen(history))[-1]["content"]
        assert content[:2] == [result("t1", "t1"), result("t2", "t2")]
        assert len(content) == 3


def test_A06_results_come_before_all_else(frozen):
    """Texts and pictures between results move behind them and keep their order; the task is last."""
    history = [
        user(text("go")),
        assistant(call("t1"), call("t2")),
        user(text("reminder"), result("t1", "one"), image(PNG), text("aside"), result("t2", "two")),
    ]
    content = messages_of(frozen(history), "the task")[-1]["content"]
    assert content[:2] == [result("t1", "one"), result("t2", "two")]
    assert content[2:5] == [text("reminder"), image(PNG), text("aside")]
    assert content[5]["text"].endswith("the task")


def test_A07_exact_copies_of_a_call_collapse(frozen):
    """The same call twice is one call."""
    history = [user(text("go")), assistant(call("t1"), call("t1")), user(result("t1", "one"))]
    messages = messages_of(frozen(history))
    assert messages[1]["content"] == [call("t1")]


@pytest.mark.parametrize("apart", [False, True])
def test_A07_different_calls_under_one_id_are_refused(frozen, apart):
    """Nobody can tell whose result it is: refused, naming message and block."""
    calls = [call("t1"), call("t1", input={"command": "rm"})]
    turns = [[calls[0]], [calls[1]]] if apart else [calls]
    history = [user(text("go"))]
    for turn in turns:
        history += [assistant(*turn), user(result("t1"))]
    place = "message 3, block 0" if apart else "message 1, block 1"
    with pytest.raises(InputError, match=place):
        fork(frozen(history), "x")


def test_A09_blank_text_is_left_out(frozen):
    """A blank turn vanishes and its neighbours join; signed and unknown blocks keep their blanks."""
    messages = messages_of(
        frozen(
            [
                {"role": "user", "content": "hi"},
                assistant(text("\n\n")),
                {"role": "user", "content": "still there?"},
                assistant(
                    {"type": "thinking", "thinking": " \n", "signature": "s"},
                    {"type": "block_from_2031", "text": " "},
                    text("\u2003"),
                    text("yes"),
                ),
            ]
        )
    )
    assert messages[0]["content"] == [text("hi"), text("still there?")]
    assert [b["type"] for b in messages[1]["content"]] == ["thinking", "block_from_2031", "text"]
    assert messages[1]["content"][0]["thinking"] == " \n"
    assert messages[1]["content"][1]["text"] == " "


def test_A10_an_empty_result_stays_a_result(frozen):
    """All pairs survive; what is blank says so; `is_error` is kept."""
    history = [
        user(text("go")),
        assistant(call("t1"), call("t2"), call("t3"), call("t4")),
        user(
            result("t1", ""),
            result("t2", [], is_error=True),
            result("t3", [text("  \n")]),
            result("t4", [text(" "), text("out")]),
        ),
    ]
    content = messages_of(frozen(history))[-1]["content"]
    assert content[:4] == [
        result("t1", NO_OUTPUT),
        result("t2", NO_OUTPUT, is_error=True),
        result("t3", NO_OUTPUT),
        result("t4", [text("out")]),
    ]


def test_A11_empty_turns_vanish_and_roles_alternate(frozen):
    """User messages around empty turns merge in order."""
    history = [{"role": "user", "content": "a"}, assistant(), {"role": "user", "content": "b"}]
    history += [{"role": "assistant", "content": ""}, {"role": "user", "content": "c"}]
    (only,) = messages_of(frozen(history))
    assert only["content"][:3] == [text("a"), text("b"), text("c")]


def test_A12_an_answer_at_the_end_stays_as_it_is(frozen):
    """The answer keeps its trailing blanks and its bytes; the task follows as a user message."""
    history = [{"role": "user", "content": "q"}, assistant(text("a full answer   \n"))]
    messages = messages_of(frozen(history), "the task")
    assert messages[:2] == history
    assert last_text(messages).endswith("the task")


def test_A13_signed_thinking_is_sent_as_it_came():
    """Signed and redacted thinking keep every byte, however they were written, and their place."""
    thinking = r'{ "type":"thinking","thinking":" lead  \n\u2028tail \/ ","signature":"Ab+/==" }'
    redacted = '{"data":"ZZ==","type":"redacted_thinking"}'
    called = '{"type":"tool_use","id":"t1","name":"bash","input":{"command":"ls","z":1.50,"a":1e2}}'
    body = (
        '{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":[%s, %s, %s]}]}'
    )
    conversation = started(Snapshot.from_json(body % (thinking, redacted, called)))
    assert f"[{thinking}, {redacted}, {called}]".encode() in b"".join(
        conversation.request(0).parts()
    )


def test_A13_a_repair_beside_signed_thinking_leaves_it_alone(frozen):
    """Where a block beside it is repaired, thinking still equals that of the snapshot."""
    thinking = {"type": "thinking", "thinking": " lead  \n\u2028tail ", "signature": "Ab+/=="}
    history = [user(text("q")), assistant(thinking, text(" "), call("t1", input=""))]
    messages = messages_of(frozen(history))
    assert messages[1]["content"] == [thinking, call("t1")]


def test_A15_thinking_without_a_signature_is_left_out(frozen):
    """The signed block stays, the cut one goes, and no signature is made up."""
    signed = {"type": "thinking", "thinking": "done", "signature": "Z29vZA=="}
    history = [
        user(text("q")),
        assistant(signed, text("part"), {"type": "thinking", "thinking": "cut"}),
        user(text("go on")),
    ]
    snapshot = frozen(history)
    assert messages_of(snapshot)[1]["content"] == [signed, text("part")]
    assert (
        "message 1, block 2: thinking without a signature was left out"
        in repair(snapshot).repair.notes
    )


def test_A16_blocks_that_nobody_knows_pass(frozen):
    """Server tools and blocks of later years reach the request with the same keys and values."""
    blocks = [
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
        {"type": "mcp_tool_use", "id": "m1", "name": "n", "server_name": "s", "input": {}},
        {"type": "mcp_tool_result", "tool_use_id": "m1", "is_error": False, "content": []},
        {"type": "future_tool_use", "id": "f1", "input": None},
        {"type": "future_tool_result", "tool_use_id": "f1"},
        {"type": "block_from_2031", "z": [1, {"y": None}]},
        text("ok"),
    ]
    history = [{"role": "user", "content": "q"}, assistant(*blocks)]
    snapshot = frozen(history)
    assert messages_of(snapshot)[:2] == history
    assert repair(snapshot).repair.notes == ()


def test_A18_a_server_call_without_a_result_is_taken_out(frozen):
    """No client result is sent for it, the text stays and the record says what was done."""
    open_call = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    snapshot = frozen([{"role": "user", "content": "q"}, assistant(text("searching"), open_call)])
    messages = messages_of(snapshot)
    assert messages[1]["content"] == [text("searching")]
    assert "srvtoolu_1" not in json.dumps(messages)
    assert repair(snapshot).repair.notes == (
        "message 1, block 1: a server call without a result was left out",
    )


def test_A19_there_are_never_more_than_four_marks(frozen):
    """Nested marks count, the oldest goes first, the parent's last stays, the parent is not changed."""
    mark = {"cache_control": {"type": "ephemeral"}}
    history = [
        user(text("one") | mark),
        assistant(call("t1")),
        user(result("t1", [text("nested") | mark])),
        assistant(text("two") | mark),
        user(text("three") | mark),
        assistant(text("four")),
    ]
    before = json.dumps(history)
    snapshot = frozen(history, system=[text("be brief") | mark])
    conversation = started(snapshot)
    for number in range(10):
        body = sent(conversation, number)
        assert body["system"] == [text("be brief") | mark]
        assert json.dumps(body).count('"cache_control"') == 4
        assert "cache_control" not in json.dumps(body["messages"][:3])
        assert body["messages"][4]["content"][0] == text("three") | mark
        assert "cache_control" in body["messages"][-1]["content"][-1]
        conversation.add_assistant([json.dumps(call(f"n{number}")).encode()])
        conversation.add_user([json.dumps(result(f"n{number}")).encode()])
    assert json.dumps(history) == before


def test_A20_half_a_surrogate_pair_becomes_one_replacement(frozen):
    """Encoding does not raise; real pairs stay, also where they came as two halves."""
    history = [
        {"role": "user", "content": "hi 😀"},
        assistant(call("t1")),
        user(result("t1", "x\ud83dy \udcff \ud83d\ude00 \\ud83d")),
    ]
    snapshot = frozen(history)
    messages = messages_of(snapshot)
    assert messages[0]["content"] == "hi 😀"
    assert messages[2]["content"][0]["content"] == "x\ufffdy \ufffd 😀 \\ud83d"
    assert snapshot.notes == ("halves of surrogate pairs that became U+FFFD: 2",)


def test_A20_half_a_pair_in_the_task_is_replaced_too():
    """The task goes through the same door."""
    messages = messages_of(Snapshot.of(messages=[{"role": "user", "content": "q"}]), "count \ud83d")
    assert last_text(messages).endswith("count \ufffd")


def test_A23_NUL_is_kept_everywhere(frozen):
    """NUL is a character like others, in the snapshot and in the task."""
    messages = messages_of(frozen([{"role": "user", "content": "a\0b"}]), "say \0 hi")
    assert messages[0]["content"][0]["text"] == "a\0b"
    assert last_text(messages).endswith("say \0 hi")


def test_A24_a_picture_of_another_kind_is_corrected_or_replaced(frozen):
    """The type follows the magic bytes; what is no picture becomes a text; nested ones too."""
    page = base64.b64encode(b"<html>no</html>").decode()
    history = [
        user(text("go"), image(JPEG), image(page)),
        assistant(call("t1")),
        user(result("t1", [image(JPEG), text("and")])),
    ]
    messages = messages_of(frozen(history))
    assert messages[0]["content"][1] == image(JPEG, "image/jpeg")
    assert messages[0]["content"][2] == text("[image/png left out: the data is something else]")
    assert messages[2]["content"][0]["content"] == [image(JPEG, "image/jpeg"), text("and")]


def test_A25_data_that_cannot_be_decoded_becomes_a_text(frozen):
    """The text names type and reason, and each has its note."""
    document = {
        "type": "document",
        "source": {
            "type": "base64",
            "media_type": "application/pdf",
            "data": "data:application/pdf;base64,JVBERi0=",
        },
    }
    snapshot = frozen([user(image("iVBORw0KG"), document, text("see"))])
    content = messages_of(snapshot)[0]["content"]
    assert content[0]["text"].startswith("[image/png left out: ")
    assert content[1]["text"].startswith("[application/pdf left out: ")
    assert content[2] == text("see")
    assert len(repair(snapshot).repair.notes) == 2


def test_A26_the_oldest_pictures_go_until_the_request_fits(frozen):
    """Forty pictures of a megabyte do not fit: the oldest become texts, the newest stay."""
    large = PNG + "A" * (1024 * 1024 - len(PNG))
    blocks = [block for _ in range(40) for block in (text("look"), image(large))]
    snapshot = frozen([user(*blocks), assistant(text("seen"))])
    conversation = started(snapshot)
    content = sent(conversation)["messages"][0]["content"]
    kinds = [block["type"] for block in content[1::2]]
    assert kinds == sorted(kinds, reverse=True)  # texts, then images
    assert kinds.count("image") >= 28
    assert conversation.size_bytes < MAX_REQUEST_BYTES


def test_A26_what_cannot_fit_is_refused():
    """Text is never left out: a typed error instead of a request that can only fail."""
    snapshot = Snapshot.of(messages=[{"role": "user", "content": "x" * MAX_REQUEST_BYTES}])
    with pytest.raises(InputError, match="larger than"):
        fork(snapshot, "x")


def test_A27_an_input_that_is_no_object_becomes_one(frozen):
    """Empty, or the object that a string holds; the pairs stay."""
    inputs = ["", None, [], 3, '{"command": "ls"}', "{broken"]
    ids = [f"t{n}" for n, _ in enumerate(inputs)]
    history = [
        user(text("go")),
        assistant(*(call(i, input=given) for i, given in zip(ids, inputs, strict=True))),
        user(*(result(i) for i in ids)),
    ]
    messages = messages_of(frozen(history))
    assert [b["input"] for b in messages[1]["content"]] == [{}, {}, {}, {}, {"command": "ls"}, {}]


def test_A29_the_task_stands_once_after_a_boundary(frozen):
    """The boundary is fixed; the task is the end of the last user message and is nowhere else."""
    history = [
        {"role": "user", "content": "first do A, then B, then deploy"},
        assistant(text("A is done, B next")),
    ]
    task = "only count the lines of x.txt"
    conversation = started(
        frozen(history), task, persona="a counter", restrictions="read only", workspace="/w"
    )
    body = sent(conversation)
    words = last_text(body["messages"])
    assert json.dumps(body).count(task) == 1
    assert words.startswith(BOUNDARY)
    assert words.endswith(task)
    assert body["messages"][:2] == history
    assert all(given in words for given in ("a counter", "read only", "/w"))
