"""Hooks by commands and by callables: what each event may do, and what a failing hook does."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import support_cli
from support_cli import call, processes_with, script, wait_until
from support_embedding import Played, environ, results_in, run, workspace  # noqa: F401

from forkrun.errors import ConfigurationError
from forkrun.gate import Allow, Deny
from forkrun.hook_answers import HookOutcome
from forkrun.hooks import Hooks
from forkrun.job import Job
from forkrun.limits import Limits
from forkrun.runner import Runner


def calling(name: str, last: str = "", **fields: Any) -> Played:
    """A model that makes one call, then says what came of it."""

    def answer(messages):
        if len(messages) == 1:
            return {"tool_use": [(name, fields)]}
        return {"text": last or json.dumps(messages[-1]["content"])}

    return Played(answer)


def by_file(workspace: Path, event: str, *commands: Any, matcher: str | None = None) -> Hooks:
    """Hooks of one event, written as a file and read from it."""
    folder = workspace.parent / "user"
    folder.mkdir(exist_ok=True)
    hooks = [{"type": "command", **({"command": c} if isinstance(c, str) else c)} for c in commands]
    group = {"hooks": hooks} | ({"matcher": matcher} if matcher is not None else {})
    path = folder / "hooks.json"
    path.write_text(json.dumps({"hooks": {event: [group]}}))
    return Hooks.from_file(str(path))


def with_hooks(workspace: Path, hooks: Hooks, model: Any, **job: Any):
    return run(workspace, model, runner={"hooks": hooks}, **job)


TOUCH = calling("bash", command="touch made.txt", timeout=5)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("echo not on a Sunday >&2; exit 2", "not on a Sunday"),
        (
            """echo '{"hookSpecificOutput":{"hookEventName":"PreToolUse","permissionDecision":"deny",
            "permissionDecisionReason":"not today"}}'""",
            "not today",
        ),
        ("""echo '{"decision":"block","reason":"not at all"}'""", "not at all"),
        ("""echo '{"continue":false,"stopReason":"enough"}'""", "enough"),
        (
            """echo '{"hookSpecificOutput":{"permissionDecision":"ask"}}'""",
            "nobody can be asked here",
        ),
    ],
)
def test_a_command_denies_a_call(workspace, command: str, reason: str) -> None:
    """By exit code 2 or by JSON, as in Claude Code; the model reads the reason, nothing is run."""
    result = with_hooks(workspace, by_file(workspace, "PreToolUse", command), TOUCH)
    assert reason in result.denials[0].reason
    assert reason in result.summary
    assert not (workspace / "made.txt").exists()


@pytest.mark.parametrize(
    "command",
    [
        "true",
        "echo looks fine",
        """echo '{"hookSpecificOutput":{"permissionDecision":"allow"}}'""",
        """echo '{"decision":"approve"}'""",
        "echo '{}'",
    ],
)
def test_a_command_that_has_nothing_against_a_call_lets_it_run(workspace, command: str) -> None:
    """The control: the same call runs."""
    result = with_hooks(workspace, by_file(workspace, "PreToolUse", command), TOUCH)
    assert result.denials == ()
    assert (workspace / "made.txt").exists()


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("exit 1", "exit 1"),
        ("kill -9 $$", "exit -9"),
        ("/nowhere/such-hook", "exit 127"),
        ({"command": "/nowhere/such-hook", "args": []}, "FileNotFoundError"),
        ("echo '{broken'", "DecodeError"),
        ("""echo '{"decision":"perhaps"}'""", "decision that is not known"),
        ({"command": "sleep 60", "timeout": 0.3}, "did not answer within 0.3 s"),
        ("head -c 3000000 /dev/zero", "said more than"),
    ],
)
def test_a_pre_hook_that_fails_denies(workspace, command: Any, why: str) -> None:
    """Whatever goes wrong, the call does not run, and the reason says what went wrong."""
    began = time.monotonic()
    result = with_hooks(workspace, by_file(workspace, "PreToolUse", command), TOUCH)
    assert why in result.denials[0].reason
    assert not (workspace / "made.txt").exists()
    assert result.stop_reason == "completed"
    assert time.monotonic() - began < 20


def test_a_hook_reads_the_call_in_the_terms_of_claude_code(workspace) -> None:
    """JSON on stdin: names, absolute paths and milliseconds as Claude Code has them."""
    keep = f"cat > {workspace.parent}/seen.json"
    with_hooks(workspace, by_file(workspace, "PreToolUse", keep), TOUCH, label="toucher")
    seen = json.loads((workspace.parent / "seen.json").read_text())
    assert (seen["hook_event_name"], seen["tool_name"]) == ("PreToolUse", "Bash")
    assert seen["tool_input"] == {"command": "touch made.txt", "timeout": 5000}
    assert (seen["cwd"], seen["agent_type"]) == (str(workspace), "toucher")
    assert seen["tool_use_id"].startswith("toolu_")
    read = calling("read_file", file_path="README.md")
    with_hooks(workspace, by_file(workspace, "PreToolUse", keep), read)
    seen = json.loads((workspace.parent / "seen.json").read_text())
    assert seen["tool_input"] == {"file_path": f"{workspace}/README.md"}


@pytest.mark.parametrize(
    ("matcher", "is_asked"),
    [
        (None, True),
        ("", True),
        ("*", True),
        ("Bash", True),
        ("bash", True),
        ("Edit|Bash", True),
        ("Edit, Bash", True),
        ("^Ba.*", True),
        ("Edit|Write", False),
        ("Bas", False),
        ("^mcp__.*", False),
    ],
)
def test_a_matcher_chooses_tools_by_either_name(workspace, matcher, is_asked: bool) -> None:
    """Exact names, lists of them, or a pattern; by Claude Code's names and by ours."""
    hooks = by_file(workspace, "PreToolUse", "exit 2", matcher=matcher)
    result = with_hooks(workspace, hooks, TOUCH)
    assert bool(result.denials) is is_asked


def test_a_hook_changes_an_input_and_the_rules_judge_what_it_made(workspace) -> None:
    """updatedInput is what runs, if the rules allow it."""
    command = """echo '{"hookSpecificOutput":{"updatedInput":{"command":"touch other.txt"}}}'"""
    hooks = by_file(workspace, "PreToolUse", command)
    with_hooks(workspace, hooks, TOUCH)
    assert (workspace / "other.txt").exists()
    assert not (workspace / "made.txt").exists()
    denied = with_hooks(workspace, hooks, TOUCH, deny=("bash(touch other.txt)",))
    assert len(denied.denials) == 1


def test_what_a_hook_says_after_a_call_is_read_by_the_model(workspace) -> None:
    """PostToolUse sees the response; exit 2, a block and additionalContext are told."""
    hooks = by_file(
        workspace,
        "PostToolUse",
        f"cat > {workspace.parent}/seen.json; echo mind the gap >&2; exit 2",
        """echo '{"hookSpecificOutput":{"additionalContext":"and the platform"}}'""",
        "exit 1",
    )
    result = with_hooks(workspace, hooks, calling("bash", command="echo out"))
    said = json.loads(result.summary)
    assert said[0]["type"] == "tool_result"
    assert [block["text"].rpartition("] ")[2] for block in said[1:]] == [
        "mind the gap",
        "and the platform",
    ]
    assert (
        "out" in json.loads((workspace.parent / "seen.json").read_text())["tool_response"]["text"]
    )


def test_a_start_hook_adds_to_the_prompt(workspace) -> None:
    """SubagentStart: what it says stands after the prompt; a failing one changes nothing."""
    hooks = by_file(workspace, "SubagentStart", "echo The build is red.", "exit 1")
    model = Played(lambda messages: {"text": messages[0]["content"][0]["text"]})
    assert with_hooks(workspace, hooks, model).summary == "go\n\nThe build is red."


def test_a_stop_hook_sends_a_run_on(workspace) -> None:
    """SubagentStop with a reason: the model reads it and goes on; stop_hook_active says so."""
    log = workspace.parent / "log.jsonl"
    hooks = by_file(
        workspace,
        "SubagentStop",
        f"""cat >> {log}; echo >> {log}
        if [ "$(wc -l < {log})" -lt 2 ]; then echo write the changelog too >&2; exit 2; fi""",
    )
    model = Played(lambda messages: {"text": "first" if len(messages) == 1 else "second"})
    result = with_hooks(workspace, hooks, model)
    assert (result.stop_reason, result.summary, result.turns) == ("completed", "second", 2)
    assert b"write the changelog too" in model.requests[1].messages[-1]
    asked = [json.loads(line) for line in log.read_text().splitlines() if line]
    assert [each["stop_hook_active"] for each in asked] == [False, True]
    assert [each["last_assistant_message"] for each in asked] == ["first", "second"]


def test_a_stop_hook_that_never_yields_ends_at_the_bound(workspace) -> None:
    """Turns bound it, and the end that no hook can change is told too."""
    seen: list[str] = []
    hooks = Hooks()

    def stop(asked):
        seen.append(asked.stop_reason)
        return Deny("more")

    hooks.add("SubagentStop", stop)
    model = Played(lambda messages: {"text": "done"})
    result = with_hooks(workspace, hooks, model, limits=Limits(max_turns=3))
    assert result.stop_reason == "max_turns"
    assert seen == ["completed", "completed", "completed", "max_turns"]


def test_a_stop_hook_sends_on_an_answer_given_by_a_tool(workspace) -> None:
    """The call of final_answer has its result when the run goes on."""

    def answer(messages):
        if len(messages) > 1:
            assert results_in(messages)
        return {"tool_use": [("final_answer", {"n": len(messages)})]}

    hooks = Hooks()
    hooks.add("SubagentStop", lambda asked: None if asked.stop_hook_active else Deny("again"))
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    result = with_hooks(workspace, hooks, Played(answer), json_schema=schema)
    assert result.structured_output == {"n": 3}


async def _slow(asked) -> None:
    await asyncio.sleep(60)


@pytest.mark.parametrize(
    ("hook", "reason"),
    [
        (lambda asked: Deny("no"), "no"),
        (lambda asked: HookOutcome(block="no"), "no"),
        (lambda asked: 1 / 0, "ZeroDivisionError"),
        (lambda asked: "yes", "returns None, Allow, Deny or a HookOutcome, not str"),
        (_slow, "did not answer within 0.3 s"),
    ],
)
def test_a_callable_denies_or_fails(workspace, hook: Any, reason: str) -> None:
    """Python hooks have the same effect, time limit included."""
    hooks = Hooks()
    hooks.add("PreToolUse", hook, matcher="Bash", timeout_s=0.3)
    result = with_hooks(workspace, hooks, TOUCH)
    assert reason in result.denials[0].reason
    assert not (workspace / "made.txt").exists()


@pytest.mark.parametrize("hook", [lambda asked: None, lambda asked: Allow()])
def test_a_callable_lets_a_call_run(workspace, hook: Any) -> None:
    """The control."""
    hooks = Hooks()
    hooks.add("PreToolUse", hook)
    with_hooks(workspace, hooks, TOUCH)
    assert (workspace / "made.txt").exists()


def test_hooks_stand_in_the_events(workspace) -> None:
    """Each hook that was asked is an event, with what came of it."""
    events: list = []
    hooks = by_file(workspace, "PreToolUse", "true", "exit 2")
    with_hooks(workspace, hooks, TOUCH, events=events)
    told = [event for event in events if type(event).__name__ == "HookEvent"]
    assert [event.outcome for event in told] == ["passed", "blocked"]


def test_nested_runs_have_the_hooks_of_their_parent(workspace) -> None:
    """A run that another starts is asked for too."""

    def answer(messages):
        if messages[0]["content"][0]["text"] == "go":
            return (
                {"tool_use": [("task", {"prompt": "sub"})]} if len(messages) == 1 else {"text": "."}
            )
        if len(messages) == 1:
            return {"tool_use": [("bash", {"command": "true"})]}
        return {"text": "done"}

    asked: list[str] = []
    hooks = Hooks()
    hooks.add("PreToolUse", lambda a: asked.append(a.tool))
    result = with_hooks(workspace, hooks, Played(answer), limits=Limits(max_depth=1))
    assert asked == ["task", "bash"]
    assert result.stop_reason == "completed"


def test_a_cancel_ends_a_hook_and_what_it_started(workspace) -> None:
    """Cancelling a run in the middle of a hook leaves no process of it."""
    marker = f"308.{os.getpid()}"
    hooks = by_file(workspace, "PreToolUse", f"sleep {marker} & sleep {marker}")

    async def whole():
        async with Runner(model=TOUCH, environ=environ(workspace), hooks=hooks) as runner:
            run = runner.spawn(Job(prompt="go", cwd=str(workspace)))
            ending = asyncio.ensure_future(run.result())
            while not processes_with(marker):
                await asyncio.sleep(0.02)
            run.cancel()
            return await ending

    assert asyncio.run(asyncio.wait_for(whole(), 30)).stop_reason == "cancelled"
    wait_until(lambda: not processes_with(marker), timeout_s=2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "not JSON"),
        ("[]", "must be a JSON object"),
        ('{"PreToolUse": 3}', "PreToolUse"),
        ('{"PreToolUse": [{"hooks": [{"type": "prompt", "prompt": "x"}]}]}', "prompt"),
        ('{"PreToolUse": [{"hooks": [{"type": "command", "command": "x", "if": "y"}]}]}', "if"),
        (
            '{"PreToolUse": [{"matcher": "(", "hooks": [{"type": "command", "command": "x"}]}]}',
            "pattern",
        ),
        (
            '{"PreToolUse": [{"hooks": [{"type": "command", "command": "x", "timeout": 0}]}]}',
            "timeout",
        ),
    ],
)
def test_a_file_that_is_not_understood_is_refused(workspace, text: str, said: str) -> None:
    """No hook is passed over in silence: 78, with the place."""
    path = workspace.parent / "hooks.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=said):
        Hooks.from_file(str(path))


def test_hooks_never_come_from_the_workspace(workspace) -> None:
    """A file that a subagent could have written, or a cloned project brought, is refused."""
    path = workspace / "hooks.json"
    path.write_text("{}")
    model = script(workspace.parent / "s.jsonl", {"text": "hi"})
    arguments = ("spawn", "--prompt", "go", "--model", model)
    done = support_cli.run(*arguments, "--hooks", path, cwd=workspace, check=78)
    assert b"lie in the workspace" in done.stderr
    (workspace / ".claude").mkdir()
    (workspace / ".claude" / "settings.json").write_text(
        json.dumps(
            {"hooks": {"SubagentStart": [{"hooks": [{"type": "command", "command": "exit 2"}]}]}}
        )
    )
    support_cli.run(*arguments, cwd=workspace, check=0)


def test_the_flag_reads_a_settings_file(workspace) -> None:
    """--hooks takes a whole settings file; events that do not exist here are said on stderr."""
    path = workspace.parent / "settings.json"
    group = [{"matcher": "Bash", "hooks": [{"type": "command", "command": "echo no >&2; exit 2"}]}]
    path.write_text(json.dumps({"model": "x", "hooks": {"PreToolUse": group, "Stop": []}}))
    model = script(
        workspace.parent / "s.jsonl", call("bash", command="touch made.txt"), {"text": "done"}
    )
    arguments = ("--prompt", "go", "--model", model, "--output-format", "json")
    done = support_cli.run("spawn", *arguments, "--hooks", path, cwd=workspace, check=0)
    assert json.loads(done.stdout)["denials"][0]["reason"] == "no"
    assert b"Stop" in done.stderr
