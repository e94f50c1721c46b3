"""examples/session_memory.py, run as it stands: with a script, offline, and over HTTP."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from messages_server import MessagesServer
from support_cli import environment, processes_with

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
EXAMPLE = EXAMPLES / "session_memory.py"


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    ws = tmp_path / "ws"
    ws.mkdir()
    for name in ("README.md", "LICENSE"):
        (ws / name).write_bytes((ROOT / name).read_bytes())
    return ws


def example(ws: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the example; it must end well, and only the notes may be new."""
    before = {path.name: path.read_bytes() for path in ws.iterdir()}
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", str(EXAMPLE), *arguments],
        cwd=ws,
        env=environment(ws.parent, **env),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    after = {path.name: path.read_bytes() for path in ws.iterdir()}
    notes = after.pop("session-memory.md").decode()
    before.pop("session-memory.md", None)
    assert after == before
    assert notes.startswith("# Session memory\n") and done.stdout.endswith(notes + "\n")
    assert "unchanged since each fork: True" in done.stderr
    assert "session-memory.md was changed: True" in done.stderr
    assert not processes_with(str(ws.parent))
    return done


def test_it_runs_offline_with_no_key(ws):
    """The embedded model talks and takes notes of what was read."""
    done = example(ws)
    assert "> What is this project about?" in done.stdout
    assert "### Files read" in done.stdout and "- README.md" in done.stdout


def test_it_runs_with_scripts(ws):
    """One script for the agent, one for its forks; the talk goes on while notes are taken."""
    done = example(
        ws,
        *("--model", f"script:{EXAMPLES}/session_memory.agent.jsonl"),
        *("--notes-model", f"script:{EXAMPLES}/session_memory.notes.jsonl"),
    )
    assert "Apache-2.0: we decided to keep it." in done.stdout
    assert "- Asked: what the project is about." in done.stdout
    told = done.stderr
    assert told.index("the talk goes on") < told.index("notes: completed")


def test_thresholds_decide(ws):
    """With few tokens or few calls no notes are taken, and the example says so by its exit code."""
    for threshold in (("--notes-after-tokens", "1000000"), ("--notes-after-calls", "99")):
        done = subprocess.run(
            [sys.executable, str(EXAMPLE), *threshold],
            cwd=ws,
            env=environment(ws.parent),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1 and "forked" not in done.stderr
        assert (ws / "session-memory.md").read_text() == "# Session memory\n"


def test_it_runs_with_a_model_behind_the_api(ws):
    """Over HTTP, as with Claude: the fork's requests begin with the agent's own request."""
    read = {"tool_use": [{"name": "read_file", "input": {"file_path": "README.md"}}]}
    edit = {"file_path": "session-memory.md", "old_string": "# Session memory\n"}
    edit |= {"new_string": "# Session memory\n\n- noted\n"}

    def answer(request):
        last = request.json["messages"][-1]["content"]
        said = json.dumps(last)
        if "Your task:" in said:
            return {"tool_use": [{"name": "edit_file", "input": edit}]}
        if "replaced 1 in session-memory.md" in said:
            return {"text": "I noted it."}
        return {"text": "It is a runner."} if "tool_result" in said else read

    with MessagesServer(answer) as server:
        env = {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": "k"}
        done = example(ws, "--model", "claude-test", "What is this?", "And now?", **env)
        bodies = [request.body for request in server.messages]
    assert "- noted" in done.stdout and "'I noted it.'" in done.stderr
    own = [body for body in bodies if b"Your task:" not in body]
    forks = [body for body in bodies if b"Your task:" in body]
    assert forks
    for body in forks:
        # An agent's request ends its messages with "]}]" or '"}]'; the fork's goes on from there.
        assert any(body.startswith(each[: each.index(b'],"model"') - 2]) for each in own)
