"""One scenario for each way in which a run can end: stop reason, exit code, what is printed."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support_cli import call, environment, processes_with, run, script, wait_until

SLEEP = call("bash", command="sleep 60")
STEP = {"text": "step", **call("bash", command="true")}
BLANK = {"content": [], "stop_reason": "end_turn"}


@dataclass(frozen=True)
class End:
    """A script, the flags that go with it, and the end that it must come to."""

    name: str
    lines: tuple[dict[str, Any], ...]
    stop_reason: str
    exit_code: int
    arguments: tuple[str, ...] = ()
    summary: str | None = None
    limit: str | None = None
    expect: dict[str, Any] = field(default_factory=dict)


ENDS = [
    End("completed", ({"text": "done"},), "completed", 0, summary="done"),
    End(
        "completed by the recovery turn",
        (BLANK, {"text": "asked for"}),
        "completed",
        0,
        summary="asked for",
        expect={"recovered": True},
    ),
    End("no summary at all", (BLANK, BLANK), "no_summary", 1, summary=""),
    End(
        "turns used up",
        (STEP, STEP, {"text": "as far as I came"}),
        "max_turns",
        53,
        ("--max-turns", "2"),
        summary="as far as I came",
        limit="turns",
        expect={"recovered": True, "turns": 2, "tool_calls": 2},
    ),
    End(
        "turns used up and no last words",
        (STEP, STEP, STEP),
        "max_turns",
        53,
        ("--max-turns", "2"),
        limit="turns",
        expect={"recovered": True, "tool_calls": 2},
    ),
    End(
        "tokens used up",
        (STEP | {"usage": {"input_tokens": 900, "output_tokens": 200}}, {"text": "short"}),
        "max_total_tokens",
        53,
        ("--max-total-tokens", "1000"),
        summary="short",
        limit="tokens",
        expect={"tool_calls": 0},
    ),
    End(
        "replies cut twice",
        (
            {"content": [{"type": "text", "text": "half"}], "stop_reason": "max_tokens"},
            {"content": [{"type": "text", "text": "half again"}], "stop_reason": "max_tokens"},
        ),
        "max_total_tokens",
        53,
        limit="output_tokens",
        expect={"recovered": True},
    ),
    End("wall clock", (SLEEP,), "timeout", 124, ("--timeout", "0.7"), limit="wall_clock"),
    End("silence", (SLEEP,), "idle_timeout", 124, ("--idle-timeout", "0.7"), limit="idle"),
    End(
        "refused",
        ({"content": [], "stop_reason": "refusal"},),
        "refused",
        11,
        summary="[the model refused this task]",
    ),
    End(
        "context full",
        ({"text": "part", **STEP}, {"content": [], "stop_reason": "model_context_window_exceeded"}),
        "context_exceeded",
        12,
        expect={"recovered": True, "tool_calls": 1},
    ),
    End(
        "prompt too long",
        (
            STEP,
            {
                "error": {
                    "status": 400,
                    "type": "invalid_request_error",
                    "message": "prompt is too long",
                }
            },
        ),
        "context_exceeded",
        12,
    ),
    End("script run out", (STEP,), "model_error", 11),
    End(
        "request refused",
        ({"error": {"status": 401, "type": "authentication_error", "message": "no"}},),
        "model_error",
        11,
    ),
    End(
        "model unavailable",
        ({"error": {"status": 529, "type": "overloaded_error", "retry_after_s": 80000}},),
        "model_unavailable",
        10,
    ),
]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.name)
def test_a_run_ends_as_it_must(end: End, tmp_path: Path) -> None:
    """Stop reason, exit code, summary and limit are those of the scenario, in one JSON line."""
    workspace = tmp_path / "ws"
    workspace.mkdir()
    model = script(tmp_path / "script.jsonl", *end.lines)
    done = run(
        *("spawn", "--prompt", "go", "--model", model, "--output-format", "json", *end.arguments),
        cwd=workspace,
        check=end.exit_code,
    )
    assert done.stdout.count(b"\n") == 1
    result = json.loads(done.stdout)
    assert result["type"] == "result"
    assert result["stop_reason"] == end.stop_reason
    assert (result["limit"] or {}).get("kind") == end.limit
    if end.summary is not None:
        assert result["summary"] == end.summary
    for name, value in end.expect.items():
        assert result[name] == value
    assert (result["error"] is None) == (end.exit_code in (0, 1, 53, 124))


@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_cancels(number: int, exit_code: int, tmp_path: Path) -> None:
    """A signal to the command line ends the run, which says so; nothing of it lives on."""
    workspace = tmp_path / "ws"
    workspace.mkdir()
    marker = f"61.{os.getpid()}{number}"
    model = script(tmp_path / "script.jsonl", call("bash", command=f"sleep {marker}"))
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "forkrun", "spawn", "--prompt", "go", "--model", model),
            *("--output-format", "json"),
        ],
        cwd=workspace,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    wait_until(lambda: len(processes_with(f"sleep\0{marker}")) == 1)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=20)
    assert process.returncode == exit_code, stderr
    result = json.loads(stdout)
    assert result["stop_reason"] == "cancelled"
    assert result["exit_signal"] == number
    assert not processes_with(marker)


BAD = [
    ("empty prompt", ("--prompt", ""), 2, "the prompt is empty"),
    ("blank prompt", ("--prompt", " \n"), 2, "the prompt is empty"),
    ("no prompt", (), 2, "--prompt"),
    ("two prompts", ("--prompt", "x", "--prompt-file", "y"), 2, "not allowed with"),
    ("missing prompt file", ("--prompt-file", "nowhere.txt"), 2, "nowhere.txt"),
    ("prompt file is a folder", ("--prompt-file", "."), 2, "Is a directory"),
    ("missing script", ("--prompt", "x", "--model", "script:nowhere.jsonl"), 65, "nowhere.jsonl"),
    ("no name of a script", ("--prompt", "x", "--model", "script:"), 2, "script:"),
    ("no name of a model", ("--prompt", "x", "--model", "two words"), 2, "two words"),
    ("unknown tool", ("--prompt", "x", "--tools", "bash,knife"), 2, "knife"),
    ("unknown flag", ("--prompt", "x", "--frobnicate"), 2, "--frobnicate"),
    ("not a number", ("--prompt", "x", "--max-turns", "many"), 2, "many"),
    ("zero turns", ("--prompt", "x", "--max-turns", "0"), 2, "--max-turns"),
    ("not a duration", ("--prompt", "x", "--timeout", "soon"), 2, "soon"),
    ("unknown workspace mode", ("--prompt", "x", "--workspace", "cloud"), 2, "cloud"),
    ("no such workspace", ("--prompt", "x", "--model", "offline", "--cwd", "gone"), 2, "gone"),
    ("workspace is a file", ("--prompt", "x", "--model", "offline", "--cwd", "f"), 2, "directory"),
    ("workspace is all", ("--prompt", "x", "--model", "offline", "--cwd", "/"), 2, "home"),
    ("unset variable", ("--prompt", "x", "--env", "NOT_SET"), 2, "NOT_SET"),
    ("no credential", ("--prompt", "x"), 78, "--model offline"),
    (
        "transcript nowhere",
        ("--prompt", "x", "--model", "offline", "--transcript", "no/such/place"),
        2,
        "no/such/place",
    ),
    (
        "budget without a price",
        ("--prompt", "x", "--model", "offline", "--max-budget-usd", "1"),
        78,
        "--max-total-tokens",
    ),
]


@pytest.mark.parametrize(("name", "arguments", "exit_code", "said"), BAD, ids=[b[0] for b in BAD])
def test_bad_input_is_one_clear_line(
    name: str, arguments: tuple[str, ...], exit_code: int, said: str, tmp_path: Path
) -> None:
    """A mistake is an error line and a hint on stderr, nothing on stdout, never a traceback."""
    workspace = tmp_path / "ws"
    workspace.mkdir()
    (workspace / "f").write_text("x")
    done = run("spawn", *arguments, cwd=workspace, check=exit_code)
    stderr = done.stderr.decode()
    assert done.stdout == b""
    assert said in stderr
    assert "Traceback" not in stderr
    assert stderr.startswith("forkrun: error: ")
    assert stderr.count("\n") <= 2


def test_a_script_that_is_no_json_names_its_line(tmp_path: Path) -> None:
    """A script error says which line of which file."""
    workspace = tmp_path / "ws"
    workspace.mkdir()
    path = tmp_path / "broken.jsonl"
    path.write_text('{"text":"fine"}\n{"text":\n')
    done = run("spawn", "--prompt", "x", "--model", f"script:{path}", cwd=workspace, check=65)
    assert b"broken.jsonl" in done.stderr
    assert b"2" in done.stderr


def test_a_workspace_that_cannot_be_read(tmp_path: Path) -> None:
    """A directory without rights is refused by name; root, which may read all, is made not to."""
    workspace = tmp_path / "ws"
    workspace.mkdir(mode=0o000)
    command = [sys.executable, "-m", "forkrun", "spawn", "--prompt", "x", "--model", "offline"]
    if os.geteuid() == 0:
        command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *command]
    done = subprocess.run(
        [*command, "--cwd", str(workspace)],
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    workspace.chmod(0o700)
    assert done.returncode == 2, done.stderr
    assert b"cannot be read" in done.stderr


def test_two_inputs_cannot_both_be_stdin(tmp_path: Path) -> None:
    """The prompt and the snapshot cannot both come from stdin; nothing is read then."""
    arguments = ("--prompt", "-", "--snapshot", "-", "--model", "offline")
    done = run("spawn", *arguments, cwd=tmp_path, stdin=b"x", check=2)
    assert b"stdin" in done.stderr


def test_text_prints_the_summary_and_nothing_else(tmp_path: Path) -> None:
    """stdout holds the last reply's text; chatter of earlier turns goes nowhere."""
    workspace = tmp_path / "ws"
    workspace.mkdir()
    model = script(
        tmp_path / "s.jsonl",
        {"text": "CHATTER", **call("bash", command="echo NOISE")},
        {"text": "FINAL"},
    )
    done = run("spawn", "--prompt", "go", "--model", model, "-q", cwd=workspace, check=0)
    assert done.stdout == b"FINAL\n"
    assert done.stderr == b""


def test_stream_json_is_events_and_one_result_at_the_end(tmp_path: Path) -> None:
    """Every line has type, run_id and a monotonic t; the one result comes last."""
    workspace = tmp_path / "ws"
    workspace.mkdir()
    model = script(tmp_path / "s.jsonl", STEP, {"text": "FINAL"})
    done = run(
        *("spawn", "--prompt", "go", "--model", model, "--output-format", "stream-json"),
        cwd=workspace,
        check=0,
    )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [e["type"] for e in events] == [
        *("started", "text", "turn", "tool_call", "tool_result", "text", "turn", "result")
    ]
    assert len({e["run_id"] for e in events}) == 1
    times = [e["t"] for e in events[:-1]]
    assert times == sorted(times)


def test_a_transcript_replays_as_a_script(tmp_path: Path) -> None:
    """A recorded run gives the same summary when its transcript is the model."""
    workspace = tmp_path / "ws"
    workspace.mkdir()
    model = script(tmp_path / "s.jsonl", STEP, {"text": "FINAL"})
    recorded = tmp_path / "recorded.jsonl"
    first = run(
        *("spawn", "--prompt", "go", "--model", model, "--transcript", recorded),
        cwd=workspace,
        check=0,
    )
    again = run("spawn", "--prompt", "go", "--model", f"script:{recorded}", cwd=workspace, check=0)
    assert first.stdout == again.stdout == b"FINAL\n"
    assert recorded.stat().st_mode & 0o777 == 0o600


def test_exec_runs_a_job_of_json(tmp_path: Path) -> None:
    """`forkrun exec` takes a job on stdin and gives the result on stdout, with its exit code."""
    workspace = tmp_path / "ws"
    workspace.mkdir()
    model = script(tmp_path / "s.jsonl", {"text": "FINAL"})
    job = json.dumps({"prompt": "go", "model": model, "label": "one"}).encode()
    done = run("exec", cwd=workspace, stdin=job, check=0)
    result = json.loads(done.stdout)
    assert (result["summary"], result["label"]) == ("FINAL", "one")
    bad = run("exec", cwd=workspace, stdin=b'{"prompt": 3}', check=65)
    assert b"prompt" in bad.stderr


@pytest.mark.parametrize("snapshot", [None, {"messages": [{"role": "user", "content": "hello"}]}])
def test_exec_forks_a_snapshot(snapshot: object, tmp_path: Path) -> None:
    """A job that holds the parent's request, as JSON within the JSON, is its fork."""
    workspace = tmp_path / "ws"
    workspace.mkdir()
    model = script(tmp_path / "s.jsonl", {"text": "FINAL"})
    job = json.dumps({"prompt": "go", "model": model, "snapshot": snapshot}).encode()
    result = json.loads(run("exec", cwd=workspace, stdin=job, check=0).stdout)
    assert result["summary"] == "FINAL"
    assert (result["cache"]["prefix_sha256"] is not None) == (snapshot is not None)


def test_a_state_directory_that_cannot_be_made(tmp_path: Path) -> None:
    """One line that names it, and a hint; nothing is run."""
    workspace = tmp_path / "ws"
    workspace.mkdir()
    (tmp_path / "file").write_text("")
    env = environment(tmp_path) | {"XDG_STATE_HOME": str(tmp_path / "file")}
    model = script(tmp_path / "s.jsonl", {"text": "FINAL"})
    done = run("spawn", "--prompt", "go", "--model", model, cwd=workspace, env=env, check=78)
    assert b"state directory" in done.stderr
    assert b"XDG_STATE_HOME" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("full", ["stdout", "transcript"])
def test_an_output_that_is_full_is_said(full: str, tmp_path: Path) -> None:
    """A full stdout is an error, a full transcript a warning; neither is a traceback."""
    workspace = tmp_path / "ws"
    workspace.mkdir()
    model = script(tmp_path / "s.jsonl", {"text": "FINAL"})
    command = [sys.executable, "-m", "forkrun", "spawn", "--prompt", "go", "--model", model]
    with open("/dev/full", "wb") as no_room:
        done = subprocess.run(
            [*command, *(["--transcript", "/dev/full"] if full == "transcript" else [])],
            cwd=workspace,
            env=environment(tmp_path),
            stdin=subprocess.DEVNULL,
            stdout=no_room if full == "stdout" else subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert done.returncode == (1 if full == "stdout" else 0)
    assert b"No space left" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_do_no_harm(closed: str, tmp_path: Path) -> None:
    """No descriptor of ours takes the number of a stream that is closed."""
    workspace = tmp_path / "ws"
    workspace.mkdir()
    model = script(
        tmp_path / "s.jsonl", call("write_file", file_path="a", content="b"), {"text": "F"}
    )
    command = [sys.executable, "-m", "forkrun", "spawn", "--prompt", "go", "--model", model]
    shell = ["bash", "-c", f'"$@" {closed}', "bash", *command]
    done = subprocess.run(shell, cwd=workspace, env=environment(tmp_path), timeout=60, check=False)
    assert done.returncode == 0
    assert (workspace / "a").read_text() == "b"
