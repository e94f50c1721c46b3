"""Forks that keep notes in one file: nothing else changes, and two at once do not mix."""

import asyncio
import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support_cli import call, environment, processes_with, script, wait_until
from support_tree import tree

from forkrun.events import ToolResultEvent
from forkrun.job import Job
from forkrun.runner import Runner
from forkrun.snapshot.freeze import Snapshot

RULE = ("edit_file(session-memory.md)",)
PARENT = {
    "model": "claude-test",
    "max_tokens": 900,
    "system": "You are the parent.",
    "tools": [
        {"name": "Bash", "input_schema": {"type": "object"}},
        {"name": "Edit", "input_schema": {"type": "object"}},
        {"name": "Write", "input_schema": {"type": "object"}},
        {"name": "Task", "input_schema": {"type": "object"}},
    ],
    "messages": [
        {"role": "user", "content": "fix the tests"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
                {"type": "tool_use", "id": "toolu_a", "name": "Bash", "input": {"command": "ls"}},
            ],
        },
    ],
}


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    ws = tmp_path / "ws"
    ws.mkdir()
    (ws / "session-memory.md").write_text("# Notes\nstart\n")
    (ws / "code.py").write_text("x = 1\n")
    return ws


def forks(ws: Path, *models: str, snapshot: Snapshot, on_event=None, **options):
    """Run forks of one snapshot at once, one for each model; give their results."""
    home = ws.parent
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(home), "XDG_STATE_HOME": str(home / "state")}

    async def run():
        async with Runner(environ=environ) as runner, asyncio.timeout(100):
            jobs = [
                Job(prompt="note it", model=model, cwd=str(ws), allow=RULE, **options)
                for model in models
            ]
            runs = (runner.run(job, snapshot=snapshot, on_event=on_event) for job in jobs)
            return await asyncio.gather(*runs)

    return asyncio.run(run())


def test_nothing_of_the_parent_changes_whatever_the_child_tries(ws):
    """Messages, other files and environment are byte-identical, though the child tried all else."""
    parent = copy.deepcopy(PARENT)
    before, env_before = tree(ws), dict(os.environ)
    outside = ws.parent / "outside"
    outside.write_text("o")
    model = script(
        ws.parent / "s.jsonl",
        call("Bash", command="rm -rf . ; echo x > code.py; export HOME=/; kill -9 $PPID"),
        call("Write", file_path="code.py", content="x = 2"),
        call("Edit", file_path="code.py", old_string="1", new_string="2"),
        call("Edit", file_path="../outside", old_string="o", new_string="2"),
        call("Write", file_path="session-memory.md", content="all gone"),
        call("Task", prompt="do it for me"),
        call("Edit", file_path="session-memory.md", old_string="start", new_string="start\nnoted"),
        {"text": "noted"},
    )
    snapshot = Snapshot.from_params(parent)
    frozen = snapshot.to_json()
    (result,) = forks(ws, model, snapshot=snapshot)
    assert (result.stop_reason, result.summary, result.committed) == ("completed", "noted", True)
    assert parent == PARENT and snapshot.to_json() == frozen
    assert dict(os.environ) == env_before
    after = tree(ws)
    assert after.pop("session-memory.md")[1] == b"# Notes\nstart\nnoted\n"
    before.pop("session-memory.md")
    assert after == before and outside.read_text() == "o"
    assert [each.tool for each in result.denials] == [
        "bash",
        "write_file",
        "edit_file",
        "edit_file",
        "write_file",
        "Task",
    ]
    assert "cannot start subagents" in result.denials[-1].reason
    assert [change.path for change in result.changes] == ["session-memory.md"]


def noting(path: Path, word: str, *, delay_s: float = 0.0) -> str:
    edit = {
        "file_path": "session-memory.md",
        "old_string": "start\n",
        "new_string": f"start\n{word}\n",
    }
    return script(
        path, {"tool_use": [{"name": "Edit", "input": edit}]}, {"text": word, "delay_s": delay_s}
    )


def test_two_forks_at_once_end_as_one_and_a_conflict(ws):
    """Both edit the same version: one commits, the other is a conflict with its patch kept."""
    models = [noting(ws.parent / f"{word}.jsonl", word, delay_s=1.0) for word in ("left", "right")]
    results = forks(ws, *models, snapshot=Snapshot.from_params(PARENT))
    assert sorted(each.stop_reason for each in results) == ["completed", "conflict"]
    done = next(each for each in results if each.committed)
    lost = next(each for each in results if not each.committed)
    assert (ws / "session-memory.md").read_text() == f"# Notes\nstart\n{done.summary}\n"
    assert lost.exit_code == 73 and lost.summary != done.summary
    assert f"+{lost.summary}\n" in Path(lost.patch).read_text()  # nothing is lost


def test_two_forks_one_after_the_other_both_commit(ws):
    """The second sees what the first has noted."""
    for word in ("left", "right"):
        (result,) = forks(
            ws, noting(ws.parent / "s.jsonl", word), snapshot=Snapshot.from_params(PARENT)
        )
        assert result.committed
    assert (ws / "session-memory.md").read_text() == "# Notes\nstart\nright\nleft\n"


def test_two_forks_in_a_live_file_both_end_well(ws):
    """Without a view each writes in place: what is not there in the end has failed aloud."""
    models = [noting(ws.parent / f"{word}.jsonl", word) for word in ("left", "right")]
    edits = []

    def on_event(event):
        if isinstance(event, ToolResultEvent):
            edits.append(event)

    results = forks(
        ws, *models, snapshot=Snapshot.from_params(PARENT), on_event=on_event, workspace="live"
    )
    assert [each.stop_reason for each in results] == ["completed"] * 2
    lines = (ws / "session-memory.md").read_text().splitlines()
    assert lines[:2] == ["# Notes", "start"]
    failed = [edit.head for edit in edits if edit.is_error]
    assert len(edits) == 2 and len(lines) == 2 + 2 - len(failed)
    assert all("changed meanwhile" in head for head in failed)


def test_two_command_lines_at_once(ws):
    """The same by two processes: exit codes 0 and 73, and the place of the patch is printed."""
    snapshot = ws.parent / "parent.json"
    snapshot.write_text(json.dumps(PARENT))
    command = [sys.executable, "-m", "forkrun", "spawn", "--prompt", "note it"]
    command += ["--snapshot", str(snapshot), "--output-format", "json", "--allow", *RULE]
    env = environment(ws.parent)
    running = [
        subprocess.Popen(
            [*command, "--model", noting(ws.parent / f"{word}.jsonl", word, delay_s=2.0)],
            cwd=ws,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for word in ("left", "right")
    ]
    results = [json.loads(process.communicate(timeout=60)[0]) for process in running]
    assert sorted(process.returncode for process in running) == [0, 73]
    assert [each["stop_reason"] for each in results].count("conflict") == 1
    kept = next(each["patch"] for each in results if each["stop_reason"] == "conflict")
    assert Path(kept).exists()
    assert len((ws / "session-memory.md").read_text().splitlines()) == 3
    wait_until(lambda: not processes_with(str(ws.parent)))
