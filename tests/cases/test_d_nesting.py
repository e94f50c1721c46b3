"""Cases of subagents that start subagents; each test has its case's id."""

from __future__ import annotations

import json
from pathlib import Path

import support_cli
from support_cli import call, script
from support_embedding import Played, run, workspace  # noqa: F401

from forkrun.limits import Limits
from forkrun.result import Subrun


def nodes(node) -> list[Subrun]:
    return [node, *(below for sub in node.subruns for below in nodes(sub))]


def test_D26_depth_and_number_of_runs_hold_for_the_whole_tree(workspace: Path) -> None:
    """A model that starts runs in every turn, in every run: both bounds hold, and the call that is
    refused says the numbers."""
    refused: list[str] = []

    def answer(messages):
        for block in messages[-1]["content"]:
            if block["type"] == "tool_result" and block.get("is_error"):
                refused.append(str(block["content"]))
        if len(messages) > 4:
            return {"text": "enough"}
        return {"tool_use": [("task", {"prompt": "go on"}), ("task", {"prompt": "go on"})]}

    limits = Limits(max_depth=2, max_runs=7)
    result = run(workspace, Played(answer), limits=limits)
    tree = nodes(result)
    assert result.stop_reason == "completed"
    assert len(tree) == 7
    assert max(sub.depth for sub in tree[1:]) == 2
    assert any(
        "nested 2 deep (max_depth), and this one would be 3 deep" in text for text in refused
    )
    assert any("7 of 7 runs of this tree (max_runs)" in text for text in refused)


def test_D26_by_the_command_line(workspace: Path) -> None:
    """The same for a script that every run plays: two levels, and one refusal in the last."""
    model = script(
        workspace.parent / "s.jsonl", call("task", prompt="again"), {"text": "that was all"}
    )
    arguments = ("--prompt", "go", "--model", model, "--output-format", "json")
    more = ("--max-depth", "2", "--max-runs", "9")
    done = support_cli.run("spawn", *arguments, *more, cwd=workspace, check=0)
    result = json.loads(done.stdout)
    (first,) = result["subruns"]
    (second,) = first["subruns"]
    assert (first["depth"], second["depth"], second["subruns"]) == (1, 2, [])
    assert (result["denials"], first["denials"], second["denials"]) == ([], 0, 1)


def test_D26_a_command_that_starts_a_run_finds_no_way(workspace: Path) -> None:
    """A child that calls forkrun itself has no key, and no network to ask for a reply by."""
    command = "python3 -m forkrun spawn --prompt x --model claude-haiku-4-5 2>&1; echo exit $?"

    def answer(messages):
        if len(messages) == 1:
            return {"tool_use": [("bash", {"command": command})]}
        return {"text": str(messages[-1]["content"][0]["content"])}

    result = run(
        workspace,
        Played(answer),
        env={"ANTHROPIC_API_KEY": "sk-secret"},
        limits=Limits(max_depth=3),
    )
    assert "exit 0" not in result.summary
    assert result.subruns == ()
