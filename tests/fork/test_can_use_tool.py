"""The caller's own judge, beside the rules: asked in the parent, before each call."""

import asyncio
import json
import threading
import time

import pytest
from support_cli import call, script

from forkrun.gate import Allow, Deny, Gate
from forkrun.job import Job
from forkrun.limits import Limits
from forkrun.policy import Policy
from forkrun.protocol import ToolCall
from forkrun.runner import Runner
from forkrun.snapshot.freeze import Snapshot

CALLS = (call("bash", command="echo hi > f"), call("read_file", file_path="f"), {"text": "done"})


def judged(tmp_path, judge, *lines, snapshot=None, **options):
    """Run a script under a judge; give its result and what became of the workspace."""
    ws = tmp_path / "ws"
    ws.mkdir(exist_ok=True)
    model = script(tmp_path / "s.jsonl", *(lines or CALLS))
    environ = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path / "st"),
    }
    events = []

    async def run():
        async with Runner(environ=environ) as runner, asyncio.timeout(60):
            job = Job(prompt="go", model=model, cwd=str(ws), **options)
            return await runner.run(
                job, can_use_tool=judge, snapshot=snapshot, on_event=events.append
            )

    return asyncio.run(run()), ws, events


def test_it_sees_each_call_and_allows(tmp_path):
    """By name and input, in order, on the event loop of the caller."""
    seen = []

    def judge(name, wanted):
        asyncio.get_running_loop()
        seen.append((name, dict(wanted), threading.current_thread()))
        return Allow()

    result, ws, _ = judged(tmp_path, judge)
    assert [(name, wanted) for name, wanted, _ in seen] == [
        ("bash", {"command": "echo hi > f"}),
        ("read_file", {"file_path": "f"}),
    ]
    assert {thread for _, _, thread in seen} == {threading.main_thread()}
    assert result.denials == () and (ws / "f").read_text() == "hi\n"


def no_bash(name, wanted):
    return Deny("not today") if name == "bash" else Allow()


async def no_bash_in_time(name, wanted):
    await asyncio.sleep(0)
    return no_bash(name, wanted)


@pytest.mark.parametrize("judge", [no_bash, no_bash_in_time])
def test_it_denies(tmp_path, judge):
    """A function or a coroutine function: the call does not run, the reason reaches everybody."""
    lines = (CALLS[0], {"expect": ["not today"], "text": "understood"})
    result, ws, events = judged(tmp_path, judge, *lines)
    assert result.summary == "understood"
    assert [(each.tool, each.reason) for each in result.denials] == [("bash", "not today")]
    assert [event.reason for event in events if type(event).__name__ == "DeniedEvent"] == [
        "not today"
    ]
    assert not (ws / "f").exists()


def fails(name, wanted):
    raise KeyError("secret")


async def fails_in_time(name, wanted):
    raise KeyError("secret")


@pytest.mark.parametrize(
    ("judge", "said"),
    [
        (fails, "failed: KeyError"),
        (fails_in_time, "failed: KeyError"),
        (lambda name, wanted: None, "neither Allow nor Deny: NoneType"),
        (lambda name, wanted: True, "neither Allow nor Deny: bool"),
        (lambda name, wanted: Allow, "neither Allow nor Deny"),
        (lambda name, wanted: Deny(""), "the caller denied this call"),
    ],
)
def test_whatever_is_not_allow_has_not_allowed(tmp_path, judge, said):
    """A judge that fails or answers something else denies; its secrets are not told."""
    result, ws, _ = judged(tmp_path, judge)
    assert result.stop_reason == "completed" and len(result.denials) == 2
    assert all(said in each.reason and "secret" not in each.reason for each in result.denials)
    assert not (ws / "f").exists()


def test_it_takes_no_right_that_the_rules_deny(tmp_path):
    """Allow does not overrule a rule, for commands and for paths."""
    result, ws, _ = judged(tmp_path, lambda name, wanted: Allow(), allow=("read_file(g)",))
    assert [each.tool for each in result.denials] == ["bash", "read_file"]
    assert not (ws / "f").exists()


def test_it_sees_the_call_of_ours_in_a_fork(tmp_path):
    """A parent's own name for the tool is no way around a judge of ours."""
    seen = []

    def judge(name, wanted):
        seen.append((name, dict(wanted)))
        return Deny("no")

    snapshot = Snapshot.of(
        model="m",
        max_tokens=9,
        tools=[{"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}],
        messages=[{"role": "user", "content": "x"}],
    )
    insert = call(
        "str_replace_based_edit_tool", command="insert", path="f", insert_line=0, insert_text="x"
    )
    result, _, _ = judged(tmp_path, judge, insert, {"text": "ok"}, snapshot=snapshot)
    edits = [{"after_line": 0, "new_string": "x"}]
    assert seen == [("edit_file", {"file_path": "f", "edits": edits})]
    assert result.denials[0].reason == "no"


def test_cancelling_does_not_wait_for_the_judge(tmp_path):
    """A judge that never answers does not keep a run from its end."""

    async def never(name, wanted):
        await asyncio.Event().wait()

    began = time.monotonic()
    result, _, _ = judged(tmp_path, never, limits=Limits(timeout_s=0.5))
    assert result.stop_reason == "timeout" and time.monotonic() - began < 20


def test_a_long_command_does_not_hold_up_the_loop():
    """While 60,000 characters are judged, which takes a second, the event loop goes on."""
    gate = Gate(Policy.parse(allow=["bash(echo:*)"], deny=["bash(rm:*)"]))
    command = "echo " + "a'b'\"c\" " * 7_000
    wanted = ToolCall(id="t", name="bash", input=json.dumps({"command": command}).encode())

    async def count():
        judging = asyncio.ensure_future(gate.refusal(wanted))
        ticks = 0
        while not judging.done():
            await asyncio.sleep(0.001)
            ticks += 1
        return ticks, judging.result()

    ticks, reason = asyncio.run(count())
    assert reason is None
    assert ticks > 5
