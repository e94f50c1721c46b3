"""Runs that start runs: rights, order, the shared budget, and what stands in the result."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

import pytest
from support_cli import processes_with, wait_until
from support_embedding import Played, environ, prompt_of, results_in, run, workspace  # noqa: F401

from forkrun.job import Job
from forkrun.limits import Limits
from forkrun.result import Subrun
from forkrun.runner import Runner

DEEP = Limits(max_depth=1)


def tasks(*prompts: str) -> dict:
    return {"tool_use": [("task", {"prompt": prompt}) for prompt in prompts]}


def parent_of(*prompts: str, child, last: str = "done") -> Played:
    """A parent that hands out these tasks in one turn; `child` answers for each of them."""

    def answer(messages):
        if prompt_of(messages) != "go":
            return child(messages)
        return tasks(*prompts) if len(messages) == 1 else {"text": last}

    return Played(answer)


def echo(messages) -> dict:
    return {"text": f"did {prompt_of(messages)}"}


def test_a_child_may_be_given_task(workspace: Path) -> None:
    """A call of task is a run of its own; its summary is the result of the call."""
    model = parent_of("look", child=echo)
    events: list = []
    result = run(workspace, model, limits=DEEP, events=events)
    assert (result.stop_reason, result.summary) == ("completed", "done")
    (given,) = results_in([json.loads(m) for m in model.requests[-1].messages])
    assert "did look" in given["content"]
    assert "completed" in given["content"]
    assert "is_error" not in given
    (sub,) = result.subruns
    assert (sub.stop_reason, sub.depth, sub.turns) == ("completed", 1, 1)
    assert sub.run_id != result.run_id
    kinds = [type(event).__name__ for event in events]
    assert kinds.count("ResultEvent") == 1
    assert kinds[-1] == "ResultEvent"
    assert "ToolResultEvent" in kinds


def test_by_default_nothing_can_be_started(workspace: Path) -> None:
    """Without max_depth the tool is not shown, and a call of it is refused with the numbers."""
    model = parent_of("look", child=echo)
    result = run(workspace, model)
    assert b'"task"' not in bytes(model.requests[0].params["tools"])
    assert result.subruns == ()
    (denial,) = result.denials
    assert "nested 0 deep" in denial.reason


def test_the_deepest_run_is_not_shown_the_tool(workspace: Path) -> None:
    """A run that may start none has no tool for it; its parent's tools are its own."""
    model = parent_of("look", child=echo)
    run(workspace, model, limits=DEEP, tools=("grep",))
    names = [
        [tool["name"] for tool in json.loads(bytes(request.params["tools"]))]
        for request in model.requests
    ]
    assert names == [["grep", "task"], ["grep"], ["grep", "task"]]


def test_parallel_tasks_answer_in_the_order_of_their_calls(workspace: Path) -> None:
    """Tasks of one turn run at the same time; each call has its own result, in call order."""

    def child(messages):
        number = int(prompt_of(messages))
        return {"text": f"did {number}", "delay_s": 1.0 - number / 10}

    model = parent_of(*map(str, range(8)), child=child)
    began = time.monotonic()
    result = run(workspace, model, limits=DEEP)
    assert time.monotonic() - began < 6
    given = results_in([json.loads(m) for m in model.requests[-1].messages])
    assert [block["content"].splitlines()[2] for block in given] == [f"did {n}" for n in range(8)]
    assert len(result.subruns) == 8


def test_usage_is_a_tree_whose_leaves_sum_to_the_root(workspace: Path) -> None:
    """Tokens of the root are its own and those of all below, at each depth."""

    def answer(messages):
        depth = int(prompt_of(messages)) if prompt_of(messages) != "go" else 0
        used = {"usage": {"input_tokens": 100 + depth, "output_tokens": 10 + depth}}
        if len(messages) == 1 and depth < 2:
            return tasks(str(depth + 1), str(depth + 1)) | used
        return {"text": "done", **used}

    result = run(workspace, Played(answer), limits=Limits(max_depth=2))

    def own(node) -> list[int]:
        return [node.own_usage.total_tokens, *(n for sub in node.subruns for n in own(sub))]

    def check(node) -> None:
        below = sum(sub.usage.total_tokens for sub in node.subruns)
        assert node.usage.total_tokens == node.own_usage.total_tokens + below
        for sub in node.subruns:
            check(sub)

    check(result)
    assert len(own(result)) == 7
    assert sum(own(result)) == result.usage.total_tokens == 2 * 110 + 4 * 112 + 4 * 114


def test_the_budget_is_that_of_the_whole_tree(workspace: Path) -> None:
    """What nested runs spend counts for the root, and ends both."""

    def child(messages):
        if len(messages) < 20:
            return {"tool_use": [("glob", {"pattern": "*"})], "usage": {"input_tokens": 100}}
        return {"text": "never"}

    model = parent_of("spend", child=child)
    result = run(workspace, model, limits=Limits(max_depth=1, max_total_tokens=500))
    assert result.stop_reason == "max_total_tokens"
    (sub,) = result.subruns
    assert sub.stop_reason == "max_total_tokens"
    # Five replies reach the bound; then each of the two runs has its last words.
    assert result.usage.total_tokens <= 500 + 3 * 100
    assert result.limit is not None
    assert result.limit.used >= 500


def test_a_nested_run_has_no_more_rights(workspace: Path) -> None:
    """Deny rules of the parent hold in the run that it starts, by tool and by kernel."""
    (workspace / "secret.txt").write_text("hidden words")

    def child(messages):
        if len(messages) == 1:
            return {
                "tool_use": [
                    ("read_file", {"file_path": "secret.txt"}),
                    ("bash", {"command": "cat secret.txt README.md"}),
                ]
            }
        return {"text": "|".join(str(block["content"]) for block in results_in(messages))}

    model = parent_of("read it", child=child)
    result = run(workspace, model, limits=DEEP, deny=("read(secret.txt)",))
    given = str(results_in([json.loads(m) for m in model.requests[-1].messages]))
    assert result.subruns[0].stop_reason == "completed"
    assert "The version is 7." in given
    assert "hidden words" not in given


@pytest.mark.parametrize(
    ("rules", "starts"),
    [
        ({"deny": ("task",)}, False),
        ({"deny": ("Task",)}, False),
        ({"allow": ("read",)}, False),
        ({"allow": ("read", "task")}, True),
        ({"deny": ("bash",)}, True),
    ],
)
def test_rules_judge_task_as_any_tool(workspace: Path, rules, starts: bool) -> None:
    """A rule may forbid the start of a run, and a list of what is allowed must name it."""
    result = run(workspace, parent_of("look", child=echo), limits=DEEP, **rules)
    assert bool(result.subruns) is starts
    assert bool(result.denials) is not starts


@pytest.mark.parametrize("mode", ["commit", "discard", "read-only"])
def test_what_a_nested_run_writes_is_thrown_away(workspace: Path, mode: str) -> None:
    """Only the summary of a nested run comes back; the parent's own changes are its own."""

    def child(messages):
        if len(messages) == 1:
            return {"tool_use": [("bash", {"command": "echo x > nested.txt; ls"})]}
        return {"text": str(results_in(messages)[0]["content"])}

    def answer(messages):
        if prompt_of(messages) != "go":
            return child(messages)
        if len(messages) == 1:
            return {"tool_use": [("bash", {"command": "echo y > mine.txt"})]}
        return tasks("write") if len(messages) == 3 else {"text": "done"}

    run(workspace, Played(answer), limits=DEEP, workspace=mode)
    there = sorted(os.listdir(workspace))
    assert there == (["README.md", "mine.txt"] if mode == "commit" else ["README.md"])


def test_cancelling_the_root_ends_the_tree(workspace: Path) -> None:
    """No process of a nested run outlives the root, and its tokens are accounted for."""
    marker = f"306.{os.getpid()}"

    def child(messages):
        return {"tool_use": [("bash", {"command": f"sleep {marker}"})]}

    async def whole():
        async with Runner(model=parent_of("a", "b", child=child), environ=environ(workspace)) as r:
            run = r.spawn(Job(prompt="go", cwd=str(workspace), limits=DEEP))
            ending = asyncio.ensure_future(run.result())
            while len(processes_with(marker)) < 2:
                await asyncio.sleep(0.02)
            run.cancel()
            return await ending

    result = asyncio.run(asyncio.wait_for(whole(), 30))
    assert result.stop_reason == "cancelled"
    assert [sub.stop_reason for sub in result.subruns] == ["cancelled", "cancelled"]
    assert result.usage.total_tokens == 3 * 11
    wait_until(lambda: not processes_with(marker), timeout_s=2)


def test_time_is_shared(workspace: Path) -> None:
    """A nested run has no more time than is left to the root."""

    def child(messages):
        return {"tool_use": [("bash", {"command": "sleep 307"})]}

    began = time.monotonic()
    result = run(
        workspace, parent_of("wait", child=child), limits=Limits(max_depth=1, timeout_s=2.5)
    )
    assert result.stop_reason == "timeout"
    assert time.monotonic() - began < 8


def test_a_root_that_waits_for_a_run_is_not_idle(workspace: Path) -> None:
    """The silence of a run that waits for another is not idleness."""

    def child(messages):
        return {"text": "late", "delay_s": 1.2 if len(messages) == 1 else 0}

    model = parent_of("slow", child=child)
    limits = Limits(max_depth=1, idle_timeout_s=2.0)
    assert run(workspace, model, limits=limits).stop_reason == "completed"


def test_a_task_that_cannot_be_meant_is_told_to_the_model(workspace: Path) -> None:
    """A call without a prompt is an error of that call alone."""

    def answer(messages):
        if len(messages) == 1:
            return {"tool_use": [("task", {"description": "nothing"}), ("task", {"prompt": " "})]}
        return {"text": str([block.get("is_error") for block in results_in(messages)])}

    result = run(workspace, Played(answer), limits=DEEP)
    assert result.summary == "[True, True]"


def test_a_fork_starts_runs_by_its_parents_own_tool(workspace: Path) -> None:
    """A fork's tool list stays; the parent's Task is ours where nesting is allowed."""

    from forkrun.snapshot.freeze import Snapshot

    parent = {
        "model": "m",
        "max_tokens": 100,
        "tools": [{"name": "Task", "input_schema": {"type": "object"}}],
        "messages": [{"role": "user", "content": "hello"}],
    }

    def answer(messages):
        text = str(messages[0]["content"])
        if "look" in text:
            return {"text": "did look"}
        if len(messages) == 1:
            return {"tool_use": [("Task", {"prompt": "look", "subagent_type": "any"})]}
        return {"text": "done"}

    model = Played(answer)
    snapshot = Snapshot.from_json(json.dumps(parent).encode())
    result = run(workspace, model, snapshot=snapshot, limits=DEEP, prompt="fork")
    assert [sub.stop_reason for sub in result.subruns] == ["completed"]
    assert json.loads(bytes(model.requests[0].params["tools"])) == parent["tools"]


def test_the_account_of_a_run_is_small() -> None:
    """A subrun holds no summary: what it said went to its parent, which decides what stays."""
    assert "summary" not in Subrun.__struct_fields__
