"""Programs that embed forkrun, run as processes of their own, and scripts for their models."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support_cli import environment

HANG_S = 60


def replies(path: Path, *lines: dict[str, Any]) -> str:
    """Write a script and give the name of the model that plays it."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return f"script:{path}"


def sleeping(path: Path, *, marker: str = "60") -> str:
    """A model that has the child run a long sleep of `marker` seconds, then another behind it."""
    command = f"setsid sleep {marker} & sleep {marker}"
    call = {"name": "bash", "input": {"command": command}}
    return replies(path, {"tool_use": [call]}, {"text": "slept"})


def program(
    code: str,
    *arguments: str,
    cwd: Path,
    flags: tuple[str, ...] = (),
    check: bool = True,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Run Python code as a program, as a host of ours would be; with `check` it must end with 0."""
    done = subprocess.run(
        [sys.executable, *flags, "-c", code, *arguments],
        cwd=cwd,
        env=options.pop("env", environment(cwd)),
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
        **options,
    )
    if check and done.returncode:
        raise AssertionError(f"exit {done.returncode}\n{done.stdout}\n--- stderr\n{done.stderr}")
    return done


def until(condition: Callable[[], Any], *, within_s: float = 20) -> Any:
    """Poll until a condition holds and give its value."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "the condition did not come"
        time.sleep(0.01)
    return value


def processes_named(word: str) -> list[int]:
    """Give the processes whose command line holds a word, wherever they hang."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                line = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            if word.encode() in line:
                found.append(int(name))
    return found
