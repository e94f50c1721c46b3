"""A number that was a process of ours and has become somebody else's is left alone.

These play in a process namespace of their own, where the next number can be chosen: ns_last_pid in
proc_sys_kernel(5).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support_cli import call, environment, script
from support_sandbox import require

from forkrun_sandbox import cgroups

NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
FIRST = ("sh", "-c", '"$@"; exit', "sh")  # PID 1 is to be one that reaps

TAKE = """
import asyncio, json, os, subprocess, sys, time
from pathlib import Path
import psutil

def take(number):
    "Start a stranger with this process id; give None where the kernel gives it to nobody."
    for _ in range(3):
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(number - 1))
        stranger = subprocess.Popen(["sleep", "300"])
        if stranger.pid == number:
            return stranger
        stranger.kill()
        stranger.wait()

def until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)
"""

A_RUN = """
from forkrun import Job, Runner
start, sandbox, model = sys.argv[1:]

async def main():
    told = {}
    job = Job(prompt="go", model=model, cwd="ws", sandbox=sandbox, workspace="live")
    async with Runner(start=start) as runner:
        async with runner.spawn(job) as run:
            while not os.path.exists("ws/started"):
                await asyncio.sleep(0.01)
            own = run.pid
            below = [each.pid for each in psutil.Process(own).children(recursive=True)]
            # The event loop stands still until the numbers that can be had are taken.
            os.kill(own, 9)
            until(lambda: psutil.Process(own).status() == psutil.STATUS_ZOMBIE)
            if sandbox == "required":  # else whoever ends them waits for the event loop, too
                until(lambda: not any(map(psutil.pid_exists, below)))
            told["own is kept"] = take(own) is None
            strangers = [take(number) for number in below if not psutil.pid_exists(number)]
            run.cancel()
            run.cancel()  # kills at once
            told["end"] = (await run.result()).stop_reason
        strangers.append(take(own))
        run.cancel()
        await run.end()
    taken = [stranger for stranger in strangers if stranger]
    told["taken"] = len(taken)
    told["alive"] = sum(stranger.poll() is None for stranger in taken)
    for stranger in taken:
        os.kill(stranger.pid, 9)
    told["hit by number"] = sum(stranger.wait() == -9 for stranger in taken)
    print(json.dumps(told))

asyncio.run(main())
"""

A_KILLED_HOST = """
model, finished, *places = sys.argv[1:]
spawn = [sys.executable, "-m", "forkrun", "spawn", "--prompt", "go", "--cwd", "ws", "--model"]

def groups(owner):
    names = [f"{place}/{name}" for place in places for name in os.listdir(place)]
    here = os.stat("/proc/self/ns/pid").st_ino
    return [name for name in names if f"/forkrun-{here}-{owner}-" in name]

host = subprocess.Popen([*spawn, model, "--workspace", "live"], stderr=subprocess.DEVNULL)
until(lambda: os.path.exists("ws/started"))
host.kill()
host.wait()
until(lambda: not any(Path(group, "cgroup.procs").read_text() for group in groups(host.pid)))
left = groups(host.pid)
stranger = take(host.pid)
os.kill(host.pid, 0)
subprocess.run([*spawn, finished], check=True, stdout=subprocess.DEVNULL)
told = {"left": len(left), "then": len(set(left) & set(groups(host.pid)))}
print(json.dumps({**told, "alive": stranger.poll() is None}))
"""


@pytest.fixture
def models(tmp_path: Path) -> tuple[str, str]:
    """A model whose run lasts, with a file `started` in its workspace, and one that is done."""
    (tmp_path / "ws").mkdir()
    lasting = call("bash", command="touch started; sleep 300 & wait")
    return script(tmp_path / "l", lasting), script(tmp_path / "d", {"text": "done"})


def play(code: str, *arguments: str, at: Path) -> Any:
    """Run a host in a process namespace of its own; give what it tells."""
    require(os.geteuid() == 0, "only root makes a process namespace without a user namespace")
    require(shutil.which("unshare"), "no unshare(1)")
    require(os.path.exists("/proc/sys/kernel/ns_last_pid"), "CONFIG_CHECKPOINT_RESTORE is not set")
    done = subprocess.run(
        [*NAMESPACE, *FIRST, sys.executable, "-c", TAKE + code, *arguments],
        cwd=at,
        env=environment(at),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("sandbox", ["required", "none"])
def test_who_gets_a_number_of_a_run_is_not_killed(
    start: str, sandbox: str, models: tuple[str, str], tmp_path: Path
) -> None:
    """The number of the child is nobody else's as long as its run may use it; those of what it has
    started are given away before its end is seen, and its own afterwards. Who has got one lives on
    when the run is ended, and a signal to the number would have hit it."""
    told = play(A_RUN, start, sandbox, models[0], at=tmp_path)
    taken = told["taken"]
    assert told == {
        "own is kept": True,
        "end": "cancelled",
        "taken": taken,
        "alive": taken,
        "hit by number": taken,
    }
    assert taken >= (3 if sandbox == "required" else 1)


def test_who_gets_the_number_of_a_killed_host_is_not_taken_for_it(
    models: tuple[str, str], tmp_path: Path
) -> None:
    """What the host has left is swept although its number is alive, and who has that lives on."""
    require(cgroups.parents(), "no control group can be made here")
    told = play(A_KILLED_HOST, *models, *cgroups.parents(), at=tmp_path)
    assert told["left"] > 0
    assert (told["then"], told["alive"]) == (0, True)
