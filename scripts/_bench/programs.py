"""Programs that send one request: ours, the floor, and scripts with the SDK. Each with its argv."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from _bench.server import ModelServer

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PYTHON = sys.executable
PROMPT = "Say done."
REQUEST_S = 60.0
END_S = 3.0

SDK_SCRIPT = """
import anthropic
client = anthropic.Anthropic()
reply = client.messages.create(
    model="claude-bench", max_tokens=100, messages=[{"role": "user", "content": "Say done."}])
print(reply.content[0].text)
"""

HTTP_SCRIPT = """
import http.client, os
host, port = os.environ["ANTHROPIC_BASE_URL"].removeprefix("http://").split(":")
connection = http.client.HTTPConnection(host, int(port))
body = b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"Say done."}]}'
connection.request("POST", "/v1/messages", body, {"content-type": "application/json"})
print(connection.getresponse().read())
"""


@dataclass(frozen=True, kw_only=True)
class Program:
    """A command that sends one request to the server; `cwd` is a directory that is its own."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "/"


def environment(server: ModelServer, home: str) -> dict[str, str]:
    """Give the least that a program needs; every credential in it is made up."""
    return {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "HOME": home,
        "LANG": "C.UTF-8",
        "ANTHROPIC_API_KEY": "sk-bench",
        "ANTHROPIC_BASE_URL": server.url,
        "OPENAI_API_KEY": "sk-bench",
        "OPENAI_BASE_URL": f"{server.url}/v1",
    }


def ours(folder: str, *, sandbox: str = "required") -> Program:
    """Give `forkrun spawn` from this checkout, in a workspace of its own."""
    workspace = os.path.join(folder, "workspace")
    os.makedirs(workspace, exist_ok=True)
    argv = [os.path.join(ROOT, "scripts", "forkrun"), "spawn", "--prompt", PROMPT]
    argv += ["--model", "claude-bench", "-q"]
    if sandbox != "required":
        argv += ["--sandbox", sandbox, "--workspace", "live"]
    return Program(argv=argv, cwd=workspace)


def until_request(program: Program, server: ModelServer, *, home: str) -> Callable[[], float]:
    """Give what measures the time from the start of a program to its first request, in ms."""
    env = {**environment(server, home), **program.env}

    log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as there are measurements

    def once() -> float:
        log.seek(0)
        log.truncate()
        server.forget()
        began = time.monotonic()
        process = subprocess.Popen(
            program.argv,
            env=env,
            cwd=program.cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            came = _first_request(server, process)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=END_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if came is None:
            log.seek(0)
            words = log.read().decode(errors="replace").strip()[-300:]
            raise RuntimeError(f"no request came: {words}")
        return (came - began) * 1000

    return once


def _first_request(server: ModelServer, process: subprocess.Popen[bytes]) -> float | None:
    """Wait for the first request; None where the program ends without one."""
    deadline = time.monotonic() + REQUEST_S
    while time.monotonic() < deadline:
        with contextlib.suppress(queue.Empty):
            return server.first(timeout_s=0.2)
        if process.poll() is not None and server.arrivals.empty():
            return None
    return None


def until_end(argv: Sequence[str]) -> Callable[[], float]:
    """Give what measures the whole life of a command, in ms."""

    def once() -> float:
        began = time.monotonic()
        subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=True)
        return (time.monotonic() - began) * 1000

    return once
