"""Hosts that treat what ends in ways of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from support_api import program, replies

HOST = """
import asyncio, os, signal, sys, threading, time
from forkrun import Job, Runner

def wait_for_whatever_ends():
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            time.sleep(0.001)

if sys.argv[3] == "ignores":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
elif sys.argv[3] == "waits":
    threading.Thread(target=wait_for_whatever_ends, daemon=True).start()

async def main():
    async with Runner(start=sys.argv[1]) as runner:
        for _ in range(3):
            result = await runner.run(Job(prompt="go", model=sys.argv[2], cwd="ws"))
            print(result.stop_reason, result.summary, result.error)

asyncio.run(main())
"""


@pytest.mark.parametrize("host", ["leaves", "ignores", "waits"])
def test_a_host_may_wait_for_whatever_ends(start: str, host: str, tmp_path: Path) -> None:
    """Who ignores SIGCHLD, or reaps every child, takes from us how a child ended, and no more."""
    (tmp_path / "ws").mkdir()
    model = replies(tmp_path / "s", {"text": "done"})
    told = program(HOST, start, model, host, cwd=tmp_path)
    assert told.stdout.splitlines() == ["completed done None"] * 3
    assert told.stderr == ""
