"""The life of a server: what ends it, what it prints, what it refuses to start with."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support_api import processes_named
from support_cli import call, environment, run, wait_until
from support_mcp import HANG_S, inspector, server_argv, wired

pytest.importorskip("mcp", reason="the package mcp is not installed")

MARKER = "62.4242"
SLEEPS = (call("bash", command=f"setsid sleep {MARKER} & sleep {MARKER}"), {"text": "slept"})


def test_a_host_that_is_gone_ends_everything(tmp_path: Path) -> None:
    """End of file on stdin ends the run in the middle, then the server, with nothing left."""
    with wired(tmp_path, *SLEEPS) as wire:
        wire.call()
        wait_until(lambda: processes_named(MARKER))
        wire.process.stdin.close()
        assert wire.process.wait(HANG_S) == 0
        assert not processes_named(MARKER)
        assert wire.process.stderr.read() == b""


def test_a_host_that_dies_ends_everything(tmp_path: Path) -> None:
    """Where nobody reads the progress any more, the run ends; then the server, as quietly."""
    with wired(tmp_path, *SLEEPS) as wire:
        wire.call()
        wait_until(lambda: processes_named(MARKER))
        wire.process.stdout.close()
        wait_until(lambda: not processes_named(MARKER))
        wire.process.stdin.close()
        assert wire.process.wait(HANG_S) == 0
        assert wire.process.stderr.read() == b""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_everything(tmp_path: Path, number: int) -> None:
    """A signal ends the run in the middle, then the server, though stdin is open."""
    with wired(tmp_path, *SLEEPS) as wire:
        wire.call()
        wait_until(lambda: processes_named(MARKER))
        os.kill(wire.process.pid, number)
        assert wire.process.wait(HANG_S) == 128 + number
        assert not processes_named(MARKER)


def test_a_server_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    """SIGKILL of the server ends the run with it."""
    with wired(tmp_path, *SLEEPS) as wire:
        wire.call()
        wait_until(lambda: processes_named(MARKER))
        wire.process.kill()
        wait_until(lambda: not processes_named(MARKER))


def test_a_cancelled_notification_is_not_answered(tmp_path: Path) -> None:
    """After notifications/cancelled the run is dead and the call gets no answer; others do."""
    with wired(tmp_path, *SLEEPS) as wire:
        number = wire.call()
        wait_until(lambda: processes_named(MARKER))
        wire.send("notifications/cancelled", answered=False, requestId=number)
        wait_until(lambda: not processes_named(MARKER))
        later = wire.send("tools/list")
        while (message := wire.read()).get("id") != later:
            assert message.get("id") != number
            assert message["method"] == "notifications/progress"


def test_stdout_holds_the_protocol_alone(tmp_path: Path) -> None:
    """Garbage in gives no garbage out: every line of stdout is a message."""
    with wired(tmp_path, {"text": "done"}) as wire:
        wire.process.stdin.write(b"not json\n\xff\xfe\n[]\n")
        answer = wire.answer_to(wire.call())
        assert answer["result"]["structuredContent"]["stop_reason"] == "completed"
        unknown = wire.answer_to(wire.send("tools/call", name="other", arguments={}))
        assert "unknown tool: other" in unknown["error"]["message"]


def test_flags_that_cannot_be_meant_end_it_at_once(tmp_path: Path) -> None:
    """A wrong flag is one line on stderr and exit code 2, not a server whose calls all fail."""
    workspace = tmp_path / "ws"
    workspace.mkdir()
    for arguments in (("--tools", "knife"), ("--cwd", str(tmp_path / "gone")), ("--prompt", "x")):
        done = run("mcp", *arguments, cwd=workspace, check=2)
        assert done.stdout == b""
        assert b"Traceback" not in done.stderr
    run("mcp", "--allow", "bash(", cwd=workspace, check=65)


def test_without_the_sdk_it_says_what_to_install(tmp_path: Path) -> None:
    """Where the package mcp is missing the error names it and the remedy."""
    code = (
        "import sys; sys.modules['mcp'] = None;"
        "from forkrun.cli import main; sys.exit(main(['mcp', '--model', 'offline']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "pip install 'mcp" in done.stderr


@pytest.mark.slow
def test_the_inspector_finds_no_fault(tmp_path: Path) -> None:
    """The official inspector lists the tool in its strict mode and calls it."""
    command = inspector()
    env = environment(tmp_path)
    server = server_argv(tmp_path, {"text": "found it"})
    pairs = [text for name, value in env.items() for text in ("-e", f"{name}={value}")]

    def inspect(*arguments: str) -> dict:
        done = subprocess.run(
            [*command, *arguments, *pairs, *server],
            cwd=tmp_path,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    (tool,) = inspect("--method", "tools/list", "--strict")["tools"]
    assert tool["name"] == "task"
    done = inspect("--method", "tools/call", "--tool-name", "task", "--tool-arg", "prompt=go")
    assert done["structuredContent"]["summary"] == "found it"
