"""Who is left when a run is ended, and how long that takes; beside killpg and psutil."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from _bench.measure import Row, Table
from _bench.victims import KINDS

VICTIMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "victims.py")
SETTLE_S = 0.5
READY_S = 20.0
PYTHON = os.path.realpath(sys.executable)
WHERE = ("the main thread", "a worker thread", "asyncio")


class Calling:
    """A model that has one command run."""

    name = "offline"

    def __init__(self) -> None:
        self.command = ""

    async def reply(self, request: Any, heard: Any) -> Any:
        from forkrun.models.base import Reply, Usage

        call = {"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": self.command}}
        return Reply(
            content=(json.dumps(call).encode(),),
            stop_reason="tool_use",
            usage=Usage(),
            model=self.name,
        )

    async def close(self) -> None:
        """Hold nothing."""


def tables(options: argparse.Namespace) -> Iterator[Table]:
    rounds = options.rounds or 3
    left: dict[str, list[float]] = {}
    took: dict[str, list[float]] = {}
    from _bench.api import Bench

    with Bench() as bench:
        model = Calling()
        runner = bench.runner(model, start="warm")
        ways: dict[str, Callable[[str], tuple[int, float]]] = {
            "forkrun": lambda kind: bench.loop.run(_by_forkrun(bench, runner, model, kind)),
            "killpg": lambda kind: _by(kind, _killpg, bench.workspace),
            "psutil": lambda kind: _by(kind, _psutil, bench.workspace),
        }
        for _ in range(rounds):
            for kind in KINDS:
                for way, end in ways.items():
                    survivors, ms = end(kind)
                    left.setdefault(f"{kind}, {way}", []).append(survivors)
                    if not survivors:
                        took.setdefault(f"{kind}, {way}", []).append(ms)
        for where in WHERE:
            for way in ("forkrun", "subprocess"):
                name = f"parent SIGKILLed, started from {where}, {way}"
                left[name] = [_orphans(bench, where, way) for _ in range(rounds)]
    rows = [Row(name=name, values=values) for name, values in left.items()]
    yield Table(title="Survivors of the end of a run", unit="processes", rows=rows)
    rows = [Row(name=name, values=values) for name, values in took.items()]
    yield Table(title="Time until nothing was left, where nothing was", unit="ms", rows=rows)


def _command(kind: str, mark: str, ready: str) -> list[str]:
    return [PYTHON, "-I", "-S", VICTIMS, kind, ready, mark]


def _marked(mark: str) -> list[int]:
    """Give the living processes whose command line holds the mark."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):
            with open(f"/proc/{name}/cmdline", "rb") as file:
                if mark.encode() not in file.read() or int(name) == os.getpid():
                    continue
            with open(f"/proc/{name}/stat", "rb") as file:
                if file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X"):
                    found.append(int(name))
    return found


async def _by_forkrun(bench: Any, runner: Any, model: Calling, kind: str) -> tuple[int, float]:
    from forkrun import Job

    mark = uuid.uuid4().hex
    victims = os.path.join(bench.workspace, "victims.py")
    with open(VICTIMS, encoding="utf-8") as source, open(victims, "w", encoding="utf-8") as copy:
        copy.write(source.read())
    argv = _command(kind, mark, "/tmp/ready")
    argv[3] = victims
    model.command = shlex.join(argv)
    async with runner.spawn(Job(prompt="go", cwd=bench.workspace)) as run:
        await _until(lambda: len(_marked(mark)) > (1 if "daemons" not in kind else 100))
        await asyncio.sleep(0.1)
        began = time.monotonic()
        run.cancel()
        run.cancel()
        await run.result()
        took_ms = (time.monotonic() - began) * 1000
    return _count_and_end(mark), took_ms


async def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + READY_S
    while not condition() and time.monotonic() < deadline:
        await asyncio.sleep(0.02)


def _by(kind: str, end: Callable[[int], None], folder: str) -> tuple[int, float]:
    mark = uuid.uuid4().hex
    ready = os.path.join(folder, mark)
    with subprocess.Popen(_command(kind, mark, ready), start_new_session=True) as process:
        deadline = time.monotonic() + READY_S
        while not os.path.exists(ready) and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.1)
        began = time.monotonic()
        end(process.pid)
        process.wait()
        took_ms = (time.monotonic() - began) * 1000
    return _count_and_end(mark), took_ms


def _killpg(pid: int) -> None:
    os.killpg(pid, signal.SIGKILL)


def _psutil(pid: int) -> None:
    import psutil

    parent = psutil.Process(pid)
    for process in [*parent.children(recursive=True), parent]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _count_and_end(mark: str) -> int:
    """Count who is left after a moment, then end them, however long that takes."""
    time.sleep(SETTLE_S)
    survivors = len(_marked(mark))
    while found := _marked(mark):
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
    return survivors


def _orphans(bench: Any, where: str, way: str) -> int:
    """Kill a program that has a run going, and count what is left of that."""
    mark = uuid.uuid4().hex
    command = shlex.join([PYTHON, "-I", "-S", "-c", "import time; time.sleep(60)", mark])
    program = HOSTS[way].format(command=command, workspace=bench.workspace)
    begin = {
        "the main thread": "main()",
        "a worker thread": "import threading\n"
        "thread = threading.Thread(target=main); thread.start(); thread.join()",
        "asyncio": "import asyncio\nasyncio.run(asyncio.to_thread(main))",
    }[where]
    argv = [sys.executable, "-c", textwrap.dedent(program) + begin]
    with subprocess.Popen(argv, env=bench.environ, stdout=subprocess.DEVNULL) as host:
        asyncio.run(_until(lambda: len(set(_marked(mark)) - {host.pid}) > 0))
        host.kill()
    return _count_and_end(mark)


HOSTS = {
    "forkrun": """
        import json, tempfile, forkrun
        script = tempfile.NamedTemporaryFile("w", suffix=".jsonl")
        call = {{"name": "bash", "input": {{"command": {command!r}}}}}
        script.write(json.dumps({{"tool_use": [call]}}))
        script.flush()
        def main():
            forkrun.run_sync("go", model="script:" + script.name, cwd={workspace!r})
        """,
    "subprocess": """
        import shlex, subprocess
        def main():
            subprocess.run(shlex.split({command!r}), start_new_session=True)
        """,
}
