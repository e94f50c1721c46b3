"""Fifty forks of a 20 MB snapshot: they cost what fifty children cost, and nothing by the megabyte."""

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from support_cli import script
from support_snapshots import snapshot_of

from forkrun.events import StartedEvent
from forkrun.job import Job
from forkrun.runner import Runner
from forkrun.snapshot.freeze import Snapshot
from forkrun.snapshot.repair import repaired

FORKS = 50
MIB = 1024 * 1024

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


class Watch:
    """What all forks hold together at the moment when every one of them waits for its reply."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.started = 0
        self.disk_bytes = 0
        self.children: list[dict[str, int]] = []
        self.own_bytes = 0
        self.cmdlines: list[int] = []
        self._everybody = asyncio.Event()

    def see(self, event: object) -> None:
        if isinstance(event, StartedEvent):
            self.started += 1
            if self.started == FORKS:
                self._everybody.set()

    async def look(self) -> None:
        await self._everybody.wait()
        me = psutil.Process()
        self.own_bytes = me.memory_info().rss
        self.disk_bytes = disk_bytes(self.home)
        for child in me.children(recursive=True):
            self.cmdlines.append(len(Path(f"/proc/{child.pid}/cmdline").read_bytes()))
            self.children.append(child.memory_info().rss)


def disk_bytes(*folders: Path) -> int:
    """What lies below these folders and the one for temporary files."""
    return sum(
        path.lstat().st_blocks * 512
        for folder in (*folders, Path(tempfile.gettempdir()))
        for path in folder.rglob("*")
        if not path.is_symlink()
    )


def run_forks(tmp_path: Path, snapshot: Snapshot, *, delay_s: float):
    """Run fifty forks at once; give what was seen, and the processor time of this process."""
    home = tmp_path / "home"
    ws = home / "ws"
    ws.mkdir(parents=True, exist_ok=True)
    model = script(home / "s.jsonl", {"text": "done", "delay_s": delay_s})
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(home), "XDG_STATE_HOME": str(home / "state")}
    watch = Watch(home)

    async def all_of_them():
        async with Runner(environ=environ) as runner, asyncio.timeout(110):
            looking = asyncio.ensure_future(watch.look())
            job = Job(prompt="say done", model=model, cwd=str(ws))
            results = await asyncio.gather(
                *(runner.run(job, snapshot=snapshot, on_event=watch.see) for _ in range(FORKS))
            )
            await looking
            return results

    began = time.process_time()
    results = asyncio.run(all_of_them())
    assert [result.stop_reason for result in results] == ["completed"] * FORKS
    return watch, time.process_time() - began


@pytest.mark.slow
def test_fifty_forks_of_twenty_megabytes(tmp_path):
    """Disk, temporary files, command lines and memory stay small while all fifty are alive."""
    snapshot = snapshot_of(20_000_000)
    repaired(snapshot)
    run_forks(tmp_path, snapshot_of(100), delay_s=0)  # what is loaded once is loaded now
    before, own_before = disk_bytes(tmp_path / "home"), psutil.Process().memory_info().rss
    # The first is sent alone, the others at its first byte: the delay keeps all of them waiting.
    watch, _ = run_forks(tmp_path, snapshot, delay_s=6)
    assert watch.disk_bytes - before < MIB
    assert disk_bytes(tmp_path / "home") - before < MIB
    assert len(watch.children) >= FORKS
    assert max(watch.cmdlines) < 4_096
    assert max(watch.children) < 20_000_000  # no child has room for the conversation
    assert watch.own_bytes - own_before < 60 * MIB  # and the parent has it once, not fifty times
    state = tmp_path / "home" / "state" / "forkrun"
    kept = set(os.listdir(state)) - {"groups"}  # where control groups are made: remembered
    assert not [name for name in kept if os.listdir(state / name)]


@pytest.mark.slow
def test_the_work_of_the_parent_grows_with_the_children(tmp_path):
    """Two hundred times the megabytes cost the parent less than twice the processor time."""
    small, large = snapshot_of(100_000), snapshot_of(20_000_000)
    for snapshot in (small, large):
        run_forks(tmp_path, snapshot, delay_s=0)  # repaired and weighed once
    _, small_s = run_forks(tmp_path, small, delay_s=0)
    _, large_s = run_forks(tmp_path, large, delay_s=0)
    assert large_s < 2 * small_s + 0.3
