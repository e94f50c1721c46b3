"""What somebody hostile has planted in a workspace neither widens what a child may read, nor stalls
the parent, nor makes it write elsewhere."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from support_cli import call, environment, script


def spawn(cwd: Path, at: Path, *arguments: str, command: str = "true"):
    """Run one bash command in a subagent, its files beside the workspace."""
    model = script(at / "s.jsonl", call("bash", command=command), {"text": "done"})
    return subprocess.run(
        [
            *(sys.executable, "-m", "forkrun", "spawn", "--prompt", "go", "--model", model),
            *("--timeout", "10", *arguments),
        ],
        cwd=cwd,
        env=environment(at),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=20,
        check=False,
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository made by hand, with a directory `sub` to work in."""
    root = tmp_path / "repository"
    for name in ("sub", ".git/objects/info", ".git/refs"):
        (root / name).mkdir(parents=True)
    (root / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (root / "sub" / "a.txt").write_text("a\n")
    return root


def test_alternates_of_a_repository_show_nothing_of_another(
    repository: Path, tmp_path: Path
) -> None:
    """A path in objects/info/alternates is no permission to read what it names."""
    private = tmp_path / "private" / ".git" / "objects"
    private.mkdir(parents=True)
    (private / "secret").write_text("canary-51c2\n")
    (repository / ".git/objects/info/alternates").write_text(f"{private}\n")
    transcript = tmp_path / "t.jsonl"
    done = spawn(
        repository / "sub", tmp_path, "--transcript", str(transcript), command=f"cat {private}/*"
    )
    assert done.returncode == 0, done.stderr
    assert "canary-51c2" not in transcript.read_text()


def test_a_pipe_where_git_keeps_its_alternates_stalls_nothing(
    repository: Path, tmp_path: Path
) -> None:
    """Files of the workspace that the parent reads are opened without waiting for a writer."""
    os.mkfifo(repository / ".git/objects/info/alternates")
    assert spawn(repository / "sub", tmp_path).returncode == 0


def test_an_index_of_git_costs_no_more_than_its_size(repository: Path, tmp_path: Path) -> None:
    """Prefix compression (version 4) cannot make gigabytes of megabytes."""
    entry = b"\0" * 62 + b"\0" + b"a\0"  # strips nothing of the name before, and adds a letter
    count = 40_000
    (repository / ".git/index").write_bytes(b"DIRC" + struct.pack(">II", 4, count) + entry * count)
    (repository / ".gitignore").write_text("*.o\n")
    code = (
        "import re, sys\n"
        "from forkrun.workspace.gitfiles import find_repository\n"
        "find_repository(sys.argv[1]).tracks('x')\n"
        # Not ru_maxrss, which begins at what the process had before it became this program.
        "print(int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) // 1024)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, repository], capture_output=True, timeout=60, check=True
    )
    assert int(done.stdout) < 150


@pytest.mark.parametrize("flag", ["--transcript", "--patch"])
def test_a_link_from_an_earlier_run_is_not_written_through(flag: str, tmp_path: Path) -> None:
    """A child cannot choose where the next run's record goes."""
    workspace, victim = tmp_path / "ws", tmp_path / "victim"
    workspace.mkdir()
    victim.write_text("precious\n")
    spawn(workspace, tmp_path, command=f"ln -s {victim} out")
    assert (workspace / "out").is_symlink()
    spawn(workspace, tmp_path, flag, str(workspace / "out"), command="echo x > new")
    assert victim.read_text() == "precious\n"


def test_a_tool_name_cannot_steer_the_terminal(tmp_path: Path) -> None:
    """What the model calls a tool reaches stderr without its escapes."""
    workspace = tmp_path / "ws"
    workspace.mkdir()
    model = script(tmp_path / "s.jsonl", call("no\x1b[2Jsuch"), {"text": "done"})
    done = subprocess.run(
        [sys.executable, "-m", "forkrun", "spawn", "--prompt", "go", "--model", model],
        cwd=workspace,
        env=environment(tmp_path),
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=20,
        check=False,
    )
    assert b"such" in done.stderr
    assert b"\x1b" not in done.stderr


def test_a_snapshot_cannot_steer_the_terminal(tmp_path: Path) -> None:
    """What is wrong with a snapshot is said without its escapes."""
    workspace, snapshot = tmp_path / "ws", tmp_path / "snapshot.json"
    workspace.mkdir()
    snapshot.write_text(
        json.dumps(
            {"model": "m", "max_tokens": 9, "messages": [{"role": "\x1b[2J", "content": "x"}]}
        )
    )
    done = spawn(workspace, tmp_path, "--snapshot", str(snapshot))
    assert done.returncode == 65
    assert b"\x1b" not in done.stderr


def test_a_snapshot_with_a_tool_that_is_none_is_refused(tmp_path: Path) -> None:
    """65 and one line, no traceback."""
    workspace, snapshot = tmp_path / "ws", tmp_path / "snapshot.json"
    workspace.mkdir()
    messages = [{"role": "user", "content": "x"}]
    snapshot.write_text(
        json.dumps({"model": "m", "max_tokens": 9, "messages": messages, "tools": [5]})
    )
    done = spawn(workspace, tmp_path, "--snapshot", str(snapshot))
    assert b"Traceback" not in done.stderr
    assert done.returncode == 65
