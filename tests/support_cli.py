"""Runs the command line as a process of its own, with an environment that tests know."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

HANG_S = 60


def environment(home: Path, **extra: str) -> dict[str, str]:
    """The least that a command line needs; nothing of the machine's own configuration."""
    return {
        "PATH": os.environ["PATH"],
        "TMPDIR": tempfile.gettempdir(),
        "HOME": str(home),
        "XDG_STATE_HOME": str(home / "state"),
        **extra,
    }


def run(
    *arguments: str | Path,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    check: int | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run `forkrun ARGUMENTS` in `cwd`; with `check`, the exit code must be this one."""
    home = cwd.parent / "home"
    home.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "forkrun", *map(str, arguments)]
    done = subprocess.run(
        command,
        cwd=cwd,
        env=dict(env) if env is not None else environment(home),
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        timeout=HANG_S,
        check=False,
    )
    if check is not None and done.returncode != check:
        raise AssertionError(report(command, done, wanted=check))
    return done


def report(command: list[str], done: subprocess.CompletedProcess[bytes], *, wanted: int) -> str:
    """Everything about a command that failed, in one block."""
    return (
        f"exit {done.returncode}, wanted {wanted}: {' '.join(command)}\n"
        f"--- stdout\n{done.stdout.decode(errors='replace')[-4000:]}\n"
        f"--- stderr\n{done.stderr.decode(errors='replace')[-4000:]}"
    )


def processes_with(marker: str) -> list[int]:
    """Give the process ids of this machine whose command line holds the marker."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                command = Path("/proc", entry, "cmdline").read_bytes()
            except OSError:
                continue
            if marker.encode() in command:
                found.append(int(entry))
    return found


def wait_until(condition: Callable[[], Any], *, timeout_s: float = 20) -> Any:
    """Wait until a condition holds and give its value; fail the test when it never does."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError("it never came true")
        time.sleep(0.01)
    return value


def script(path: Path, *lines: dict[str, Any]) -> str:
    """Write a script and give the name of the model that plays it."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return f"script:{path}"


def call(name: str, **fields: Any) -> dict[str, Any]:
    """A script line with one tool call."""
    return {"tool_use": [{"name": name, "input": fields}]}


def spawn(workspace: Path, *lines: dict[str, Any], arguments: tuple[str, ...] = (), **options: Any):
    """Run `forkrun spawn` on a workspace with these replies; give the result, decoded."""
    model = script(workspace.parent / "script.jsonl", *lines)
    done = run(
        *("spawn", "--prompt", "go", "--model", model, "--output-format", "json", *arguments),
        cwd=workspace,
        **options,
    )
    return json.loads(done.stdout)
