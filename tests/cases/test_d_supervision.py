"""Cases of process supervision that the command line must hold; each test has its case's id."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support_cli import (
    call,
    environment,
    processes_with,
    run,
    script,
    spawn,
    wait_until,
)

COMMAND = [sys.executable, "-m", "forkrun", "spawn"]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "ws"
    path.mkdir()
    return path


@pytest.fixture
def marker(request) -> str:
    """A number of seconds that nobody else sleeps."""
    return f"305.{os.getpid()}{abs(hash(request.node.name)) % 100_000}"


def start(workspace: Path, *lines, arguments=(), **options) -> subprocess.Popen:
    model = script(workspace.parent / "script.jsonl", *lines)
    return subprocess.Popen(
        [*COMMAND, "--prompt", "go", "--model", model, *arguments],
        cwd=workspace,
        env=environment(workspace.parent),
        **options,
    )


@pytest.mark.parametrize("sandbox", ["required", "none"])
def test_D01_a_parent_killed_hard_leaves_no_survivor(
    sandbox: str, workspace: Path, marker: str
) -> None:
    """Within two seconds of kill -9 neither the child nor its command lives."""
    process = start(
        workspace,
        call("bash", command=f"sleep {marker}"),
        arguments=("--sandbox", sandbox),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: processes_with(f"sleep\0{marker}"))
    process.kill()
    process.wait()
    wait_until(lambda: not processes_with(marker), timeout_s=2)


def test_D03_a_parent_that_dies_at_once_leaves_no_survivor(workspace: Path, marker: str) -> None:
    """Whichever moment the parent is killed in, the child hears of it."""
    for round_number in range(20):
        process = start(
            workspace,
            call("bash", command=f"sleep {marker}"),
            arguments=("--label", marker),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(round_number * 0.01)
        process.kill()
        process.wait()
    # The children of the killed parents are this interpreter too, and name no marker.
    wait_until(lambda: not processes_with(marker), timeout_s=3)
    wait_until(lambda: not workers_of_nobody(), timeout_s=3)


def workers_of_nobody() -> list[int]:
    """Workers on this machine whose parent is gone."""
    orphans = []
    for pid in processes_with("from forkrun.worker import main"):
        try:
            stat = Path("/proc", str(pid), "stat").read_text()
        except OSError:
            continue
        if stat.rpartition(")")[2].split()[1] == "1":
            orphans.append(pid)
    return orphans


def test_D05_large_prompts_work_and_stand_in_no_argument_list(workspace: Path) -> None:
    """200 KB of system prompt, 200 KB of task, 5 MB of snapshot; `ps` shows nothing of it."""
    secret = "THE-TASK-" + "x" * 200_000
    prompt = workspace.parent / "prompt.txt"
    prompt.write_text(secret)
    seen = (
        "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $f; done | grep -c 'THE[-]TASK' || true"
    )
    lines = (call("bash", command=seen), {"text": "done"})
    model = script(workspace.parent / "s.jsonl", *lines)
    transcript = workspace.parent / "t.jsonl"
    flags = ("--model", model, "--transcript", transcript, "--output-format", "json")
    snapshot = workspace.parent / "snapshot.json"
    history = [{"role": "user", "content": "y" * 5_000_000}]
    tools = [{"name": "bash", "input_schema": {"type": "object"}}]
    parent = {"model": "m", "max_tokens": 9, "tools": tools, "messages": history}
    snapshot.write_text(json.dumps(parent))
    for context in (("--append-system-prompt", "s" * 100_000), ("--snapshot", snapshot)):
        done = run("spawn", "--prompt-file", prompt, *flags, *context, cwd=workspace, check=0)
        assert json.loads(done.stdout)["summary"] == "done"
        results = [json.loads(line) for line in transcript.read_text().splitlines()]
        assert [r["text"] for r in results if r["type"] == "tool_result"] == ["0"]


def test_D11_a_summary_of_megabytes_in_one_line(workspace: Path) -> None:
    """It is cut at the documented cap, says so, and the whole stands in the file that is named."""
    text = "word " * 600_000
    result = spawn(workspace, {"text": text})
    assert result["stop_reason"] == "completed"
    assert len(result["summary"].encode()) <= 256 * 1024
    assert "cut at 256 KiB" in result["summary"]
    assert Path(result["summary_file"]).read_text() == text
    assert Path(result["summary_file"]).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_D12_a_reader_that_has_gone_is_no_traceback(unbuffered: str, workspace: Path) -> None:
    """The same documented exit code both times, and nothing of Python's on stderr."""
    model = script(workspace.parent / "s.jsonl", {"text": "done"})
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*COMMAND, "--prompt", "go", "--model", model, "-q"],
        cwd=workspace,
        env=environment(workspace.parent, PYTHONUNBUFFERED=unbuffered),
        stdout=write,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(write)
    assert done.returncode == 128 + signal.SIGPIPE
    assert done.stderr == b""


def test_D17_ctrl_c_on_a_terminal_ends_everything_once(workspace: Path, marker: str) -> None:
    """The whole foreground group gets the signal; the run is cancelled once and nothing lives."""
    pid, terminal = pty.fork()
    if pid == 0:
        model = script(workspace.parent / "s.jsonl", call("bash", command=f"sleep {marker}"))
        os.chdir(workspace)
        command = [*COMMAND, "--prompt", "go", "--model", model, "--output-format", "json"]
        os.execve(command[0], command, environment(workspace.parent, TERM="dumb"))
    wait_until(lambda: processes_with(f"sleep\0{marker}"))
    os.write(terminal, b"\x03")
    output = read_all(terminal)
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 130
    assert output.count(b'"stop_reason":"cancelled"') == 1
    assert b"Traceback" not in output
    assert not processes_with(marker)


def read_all(fd: int) -> bytes:
    """Read a terminal until nobody holds its other side."""
    chunks = []
    while True:
        try:
            chunk = os.read(fd, 65536)
        except OSError:
            break
        if not chunk:
            break
        chunks.append(chunk)
    return b"".join(chunks)


DAEMONS = """\
bash -c 'sleep {0}1 & disown; exec sh -c "sleep {0}2 & exit"'
python3 -c 'import os
if os.fork()==0:
 os.setsid()
 if os.fork(): os._exit(0)
 os.execlp("sleep","sleep","{0}3")'
"""


@pytest.mark.parametrize("sandbox", ["required", "none"])
def test_D21_no_descendant_survives_a_run(sandbox: str, workspace: Path, marker: str) -> None:
    """Disowned, orphaned and daemonised commands are gone when the run is."""
    result = spawn(
        workspace,
        call("bash", command=DAEMONS.format(marker)),
        {"text": "done"},
        arguments=("--sandbox", sandbox),
    )
    assert result["stop_reason"] == "completed"
    assert not processes_with(f"sleep\0{marker}")


def test_D28_a_test_run_cut_by_its_timeout_leaves_nothing(workspace: Path, marker: str) -> None:
    """pytest-timeout ends its process without running fixtures; the child hears of it."""
    model = script(workspace.parent / "s.jsonl", call("bash", command=f"sleep {marker}"))
    test = workspace.parent / "test_cut.py"
    test.write_text(
        "import forkrun\n"
        f"def test_hangs():\n    forkrun.run_sync('go', model={model!r}, cwd={str(workspace)!r})\n"
    )
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=4"),
            *("--timeout-method=thread", str(test)),
        ],
        cwd=workspace.parent,
        env=environment(workspace.parent),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: processes_with(f"sleep\0{marker}"))
    process.wait(timeout=30)
    wait_until(lambda: not processes_with(marker), timeout_s=2)
