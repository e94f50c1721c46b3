"""`run_sync`: in scripts, threads, notebooks and under Ctrl-C."""

import asyncio
import secrets
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support_api import processes_named, replies, sleeping, until
from support_cli import environment

import forkrun


def test_it_gives_the_result(tmp_path: Path) -> None:
    """Without a loop it is one call."""
    model = replies(tmp_path / "s", {"text": "FINAL"})
    assert forkrun.run_sync("go", model=model, cwd=tmp_path).summary == "FINAL"


class Words(str):
    """Text of a framework, which has a class of its own for it."""

    def __str__(self) -> str:
        return "what it shows"


@pytest.mark.parametrize("way", ["prompt", "job"])
def test_text_of_a_framework_is_text(way: str, tmp_path: Path) -> None:
    """A subclass of str is taken for its characters, in a prompt and beside it."""
    told = forkrun.Job(prompt=Words("go"), system=Words("be brief"), label=Words("a"))
    assert {type(each) for each in (told.prompt, told.system, told.label)} == {str}
    assert (told.prompt, told.system) == ("go", "be brief")
    model = replies(tmp_path / "s", {"text": "FINAL"})
    options = {"system": Words("be brief"), "cwd": str(tmp_path)} if way == "prompt" else {}
    job = Words("go") if way == "prompt" else forkrun.Job(prompt=Words("go"), cwd=str(tmp_path))
    assert forkrun.run_sync(job, model=model, **options).summary == "FINAL"


def test_it_works_inside_a_running_loop(tmp_path: Path) -> None:
    """In a notebook cell, where a loop runs already, it works and gives the result."""
    model = replies(tmp_path / "s", {"text": "FINAL"})

    async def cell() -> str:
        return forkrun.run_sync("go", model=model, cwd=tmp_path).summary

    assert asyncio.run(cell()) == "FINAL"


def test_its_errors_pass_through_the_thread(tmp_path: Path) -> None:
    """Inside a running loop an error is raised as it is anywhere else."""

    async def cell() -> None:
        forkrun.run_sync("", model=replies(tmp_path / "s", {"text": "x"}))

    with pytest.raises(forkrun.UsageError, match="empty"):
        asyncio.run(cell())


def test_it_works_in_threads(tmp_path: Path) -> None:
    """Threads of a host each run their own at the same time."""
    model = replies(tmp_path / "s", {"text": "FINAL"})
    summaries: list[str] = []

    def work() -> None:
        summaries.append(forkrun.run_sync("go", model=model, cwd=tmp_path).summary)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert summaries == ["FINAL"] * 4


INTERRUPTED = {
    "plain": """
import logging, sys, forkrun
logging.getLogger("asyncio").setLevel(logging.ERROR)  # in debug mode it tells of slow imports
try:
    forkrun.run_sync("go", model=sys.argv[1], cwd="ws")
except KeyboardInterrupt:
    print("interrupted")
""",
    "in a running loop": """
import asyncio, logging, signal, sys, forkrun
logging.getLogger("asyncio").setLevel(logging.ERROR)
signal.signal(signal.SIGINT, signal.default_int_handler)  # as a notebook's kernel has it
async def cell():
    try:
        forkrun.run_sync("go", model=sys.argv[1], cwd="ws")
    except KeyboardInterrupt:
        print("interrupted")
loop = asyncio.new_event_loop()
loop.run_until_complete(cell())
loop.close()
""",
}


@pytest.mark.parametrize("way", INTERRUPTED)
@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_ends_the_tree(way: str, presses: int, tmp_path: Path) -> None:
    """Ctrl-C raises KeyboardInterrupt in the host; the child and what it started are gone."""
    (tmp_path / "ws").mkdir()
    marker = f"60.{secrets.randbelow(10**9)}"
    model = sleeping(tmp_path / "s", marker=marker)
    process = subprocess.Popen(
        [sys.executable, "-X", "dev", "-W", "error", "-c", INTERRUPTED[way], model],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: len(processes_named(f"sleep\0{marker}")) >= 2)
    for _ in range(presses):
        process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=20)
    until(lambda: not processes_named(marker))
    if presses == 1:
        assert (process.returncode, stdout, stderr) == (0, "interrupted\n", "")
