"""Nobody outlives a run, whichever way its worker was started and however it or its host ends."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from support_cli import call, script
from support_people import place, who, workspace  # noqa: F401 - fixtures
from support_sandbox import Person, eventually, processes_with

from forkrun import Job, Result, Runner
from forkrun.starting import package_folders

# A command and two that have left its session, one of them without a parent; they carry the mark.
TREE = "(setsid bash -c 'exec -a {0} sleep 300' &); setsid bash -c 'exec -a {0} sleep 300' & exec -a {0} sleep 300"

HOST = """
import asyncio, ctypes, os, sys, threading
from forkrun import Job, Runner
start, sandbox, model, *delay = sys.argv[1:]

async def main():
    async with Runner(start=start) as runner:
        job = Job(prompt="go", model=model, sandbox=sandbox, workspace="live")
        async with runner.spawn(job) as run:
            exec(await asyncio.to_thread(sys.stdin.readline))
            await asyncio.sleep(300)

if delay:
    threading.Timer(float(delay[0]), os.kill, (os.getpid(), 9)).start()
asyncio.run(main())
"""
DEATHS = {
    "SIGKILL": "os.kill(os.getpid(), 9)",
    "segmentation fault": "ctypes.string_at(0)",
    "_exit in a thread": "threading.Thread(target=os._exit, args=(5,)).start()",
    "SIGKILL, from a thread": "threading.Thread(target=os.kill, args=(os.getpid(), 9)).start()",
}


@pytest.fixture
def mark() -> Iterator[str]:
    """A word that a test's processes carry, of which none is left when it ends."""
    word = f"forkrun-mark-{uuid.uuid4().hex}"
    yield word
    left = marked(word)
    for pid in left:
        os.kill(pid, 9)
    assert not left


def marked(mark: str) -> list[int]:
    """Give the living processes that carry the mark on their command line or in their environment:
    the host, and its workers and their zygote, which have the search path of their host."""
    found = set(processes_with(mark))
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if mark.encode() in Path(f"/proc/{name}/environ").read_bytes():
                    found.add(int(name))
            except OSError:
                continue
    return sorted(found)


def host(
    who: Person, workspace: Path, mark: str, *arguments: str, model: str
) -> subprocess.Popen[bytes]:
    """Start a program that has one run, whose processes all carry the mark."""
    who.need_forkrun()
    home = who.owns(Path(tempfile.mkdtemp(dir=workspace.parent)))
    return subprocess.Popen(
        [who.python, "-c", HOST, *arguments[:2], model, *arguments[2:]],
        cwd=workspace,
        env={
            "PATH": f"/nonexistent/{mark}:{os.environ['PATH']}",
            "PYTHONPATH": ":".join(package_folders()[1:]),
            "HOME": str(home),
            "TMPDIR": str(home),
        },
        stdin=subprocess.PIPE,
        **who.ids,
    )


def tree_model(where: Path, mark: str) -> str:
    """Give a model whose run has the tree of processes for as long as it lives."""
    path = where / "script.jsonl"
    model = script(path, call("bash", command=TREE.format(mark)), {"text": "done"})
    path.chmod(0o644)
    return model


@pytest.mark.parametrize(
    ("death", "sandbox"), [*((death, "required") for death in DEATHS), ("SIGKILL", "none")]
)
def test_the_death_of_the_host_ends_all(
    who: Person, workspace: Path, mark: str, start: str, death: str, sandbox: str
) -> None:
    """However the host dies, a second later neither worker, nor zygote, nor command is left."""
    model = tree_model(workspace.parent, mark)
    with host(who, workspace, mark, start, sandbox, model=model) as process:
        assert eventually(lambda: len(list(processes_with(mark))) >= 3, within_s=30)
        assert len(marked(mark)) > len(list(processes_with(mark))) + 1
        assert process.stdin is not None
        process.stdin.write(DEATHS[death].encode() + b"\n")
        process.stdin.flush()
        assert process.wait(timeout=30) != 0
    assert eventually(lambda: not marked(mark), within_s=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("who", ["root"], indirect=True)
def test_a_host_that_dies_at_once_leaves_nobody(
    who: Person, workspace: Path, mark: str, start: str
) -> None:
    """Whichever moment of the start of its worker the host is killed in."""
    model = tree_model(workspace.parent, mark)
    for attempt in range(12):
        delay = str(attempt * 0.01)
        with host(who, workspace, mark, start, "required", delay, model=model) as process:
            assert process.wait(timeout=30) == -9
    assert eventually(lambda: not marked(mark), within_s=5.0)


# What is done to a run, by the way of starting that can have it done.
CUT_SHORT = [
    *((start, end) for start in ("exec", "warm") for end in ("cancel", "kill the worker")),
    ("warm", "kill the zygote, cancel"),
]


@pytest.mark.parametrize("sandbox", ["required", "none"])
@pytest.mark.parametrize(("start", "end"), CUT_SHORT)
def test_a_run_that_is_cut_short_leaves_nobody(
    tmp_path: Path, mark: str, start: str, end: str, sandbox: str
) -> None:
    """When its result is there, no process of it is, and the host lives."""
    (tmp_path / "ws").mkdir()
    job = Job(
        prompt="go",
        model=tree_model(tmp_path, mark),
        cwd=str(tmp_path / "ws"),
        workspace="live",
        sandbox=sandbox,
    )

    async def main() -> Result:
        async with Runner(start=start) as runner, runner.spawn(job) as run:
            waiting = asyncio.ensure_future(run.result())
            while len(list(processes_with(mark))) < 3:
                await asyncio.sleep(0.01)
                assert not waiting.done(), waiting.result()
            if "zygote" in end:
                os.kill(runner._launcher._zygote.pid, 9)
            if "worker" in end:
                os.kill(run.pid, 9)
            if "cancel" in end:
                run.cancel()
            result = await waiting
            assert not list(processes_with(mark))
            return result

    result = asyncio.run(main())
    assert result.stop_reason == ("cancelled" if "cancel" in end else "crashed")


@pytest.mark.parametrize("sandbox", ["required", "none"])
def test_a_run_that_completes_leaves_nobody(
    tmp_path: Path, mark: str, start: str, sandbox: str
) -> None:
    """Daemons that a command has left, both of them alive when it ended."""
    (tmp_path / "ws").mkdir()
    daemons = TREE.format(mark).rpartition("& exec")[0]
    wait = f'until [ "$(pgrep -xfc "{mark} 300")" = 2 ]; do sleep 0.01; done; echo BOTH'
    model = script(
        tmp_path / "s.jsonl",
        call("bash", command=f"{daemons} & {wait}"),
        {"text": "done", "expect": ["BOTH"]},
    )

    async def main() -> Result:
        async with Runner(start=start) as runner:
            job = Job(prompt="go", model=model, cwd=str(tmp_path / "ws"), sandbox=sandbox)
            return await runner.run(job)

    result = asyncio.run(main())
    assert result.stop_reason == "completed", result.error
    assert not list(processes_with(mark))
