"""However a run fails, the workspace stays byte for byte as it was, and the patch is kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from support_cli import call, environment, processes_with, wait_until
from support_trees import WORK, changed

WORKED = call("bash", command=WORK)
TOUCHED = {
    *("src/a.py", "src/crlf.txt", "run.sh", "link", "dangling", "src/hard", "src/b.txt"),
    *("new", "new/dir", "new/dir/f", "new/blob", "new/\udce9", "locked/key", "src/deep", "sparse"),
}
SLEEP = call("bash", command="sleep 60 & echo $! > /tmp/pid; wait")

ENDS = {
    "timeout": ((WORKED, SLEEP), ("--timeout", "2.5"), 124),
    "idle": ((WORKED, SLEEP), ("--idle-timeout", "1"), 124),
    "turns": ((WORKED, WORKED, {"text": "so far"}), ("--max-turns", "1"), 53),
    "model error": ((WORKED,), (), 11),
    "refusal": ((WORKED, {"content": [], "stop_reason": "refusal"}), (), 11),
    "model away": (
        (WORKED, {"error": {"status": 529, "type": "overloaded_error", "retry_after_s": 80000}}),
        (),
        10,
    ),
    "check": ((WORKED, {"text": "done"}), ("--check", "exit 1"), 65),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_run_that_fails_leaves_the_tree_as_it_was(site, end):
    """Contents, modes, owners, times, links and holes are the same, and the patch is the work."""
    lines, flags, exits = ENDS[end]
    before = site.picture()
    result = site.spawn(*lines, flags=flags, exits=exits)
    assert site.picture() == before
    assert not result["committed"]
    patch = result["patch"]
    assert site.residue(patch) == []
    site.forkrun("apply", patch)
    assert_worked(site, before)


def assert_worked(site, before):
    """The work of WORK is in the tree, and nothing else was touched."""
    after = site.picture()
    assert changed(before, after) <= TOUCHED
    tree = site.tree
    assert (tree / "src/a.py").read_text() == "one\ntwo\nthree\nfour\n"
    assert not os.path.lexists(tree / "src/crlf.txt")
    assert not os.path.lexists(tree / "dangling")
    assert not os.path.lexists(tree / "src/deep")
    assert os.readlink(tree / "link") == "src/b.txt"
    assert (tree / "run.sh").stat().st_mode & 0o777 == 0o600
    assert (tree / "new/dir/f").read_text() == "n\n"
    assert (tree / "new/blob").read_bytes() == b"\0x"
    assert (tree / "new/\udce9").read_text() == "y"
    assert (tree / "locked/key").read_text() == "secret\nk\n"
    assert (tree / "sparse").stat().st_size == 20 * 1024 * 1024 + 7
    assert (tree / "sparse").stat().st_blocks * 512 < 1024 * 1024


def test_a_run_that_completes_commits_its_work_and_nothing_else(site):
    """After success the tree is the view; what the run did not touch keeps its times and holes."""
    before = site.picture()
    result = site.spawn(WORKED, {"text": "done"})
    assert result["committed"]
    assert_worked(site, before)
    assert site.residue() == []
    said = {each["path"] for each in result["changes"]}
    assert "new/\\xe9" in said


def test_a_denied_run_changes_nothing(site):
    """Where writing is denied, nothing is written, whoever tries."""
    before = site.picture()
    lines = (call("write_file", file_path="src/a.py", content="x"), WORKED, {"text": "done"})
    result = site.spawn(*lines, flags=("--allow", "read", "bash"))
    assert site.picture() == before
    assert result["changes"] == []
    assert {each["reason"] for each in result["withheld"]} == {"no rule allows writing it"}
    assert site.residue() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_cancelled_run_leaves_the_tree_as_it_was(site, number):
    """Ctrl-C and SIGTERM end the run, keep the patch, and leave nothing else."""
    before = site.picture()
    running = start(site)
    wait_until(lambda: sleeping(site))
    os.kill(program_of(running), number)
    out, _ = running.communicate(timeout=30)
    assert running.returncode == 128 + number
    result = json.loads(out)
    assert result["stop_reason"] == "cancelled"
    assert site.picture() == before
    assert site.residue(result["patch"]) == []
    site.forkrun("apply", result["patch"])
    assert_worked(site, before)


def test_a_worker_that_is_killed_leaves_the_tree_as_it_was(site):
    """SIGKILL of the child is a crash with a patch, not a commit."""
    before = site.picture()
    running = start(site)
    sleeper = wait_until(lambda: sleeping(site))
    # The command's shell is in the sandbox; its parent there is the worker.
    worker = parent_of(parent_of(sleeper))
    os.kill(worker, signal.SIGKILL)
    out, _ = running.communicate(timeout=30)
    result = json.loads(out)
    assert result["stop_reason"] == "crashed"
    assert site.picture() == before
    assert site.residue(result["patch"]) == []
    site.forkrun("apply", result["patch"])
    assert_worked(site, before)


def test_a_parent_that_is_killed_leaves_the_tree_as_it_was(site):
    """After SIGKILL of the parent the child is gone, and the next run sweeps what is left."""
    before = site.picture()
    running = start(site)
    sleeper = wait_until(lambda: sleeping(site))
    os.kill(program_of(running), signal.SIGKILL)
    running.communicate(timeout=30)
    wait_until(lambda: not os.path.exists(f"/proc/{sleeper}"))
    assert site.picture() == before
    site.spawn({"text": "nothing to do"})
    assert site.picture() == before
    assert site.residue() == []


def start(site) -> subprocess.Popen[bytes]:
    """Start a run that works and then sleeps."""
    return subprocess.Popen(
        site.command(*site.arguments(WORKED, call("bash", command=f"sleep 61{os.getpid()}"))),
        cwd=site.workspace,
        env=environment(site.home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def sleeping(site) -> int | None:
    """The process that sleeps in the sandbox, as soon as it is there."""
    found = [
        pid
        for pid in processes_with(f"61{os.getpid()}")
        if Path(f"/proc/{pid}/comm").read_text() == "sleep\n"
    ]
    return found[0] if found else None


def program_of(running: subprocess.Popen[bytes]) -> int:
    """The process of forkrun itself (nsenter executes it in its own place)."""
    return running.pid


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
