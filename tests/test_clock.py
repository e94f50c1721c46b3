"""Time limits are of time that passes: where the wall clock is set during a run, they stay."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support_api import program, replies
from support_cli import call, environment
from support_sandbox import require

YEAR_S = 365 * 86_400

# What the C library answers, from the moment on in which a file is there: a wall clock that was set.
CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, now);
    int is_wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    if (!failed && is_wall && access(IS_SET, F_OK) == 0) now->tv_sec += JUMP_S;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    int failed = clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now) *now = found.tv_sec;
    return found.tv_sec;
}
"""

HOST = """
import asyncio, contextlib, json, os, sys, time
from pathlib import Path
import psutil
import forkrun.starting, forkrun.zygote
from forkrun import Job, Limits, Runner
start, cut, stopped = sys.argv[1:]
clock = os.environ["LD_PRELOAD"]

def by_that_clock(argv):
    return lambda *fds: ["env", f"LD_PRELOAD={clock}", *argv(*fds)]

forkrun.starting.worker_argv = by_that_clock(forkrun.starting.worker_argv)
forkrun.zygote.zygote_argv = by_that_clock(forkrun.zygote.zygote_argv)

def commands_of(pid):
    found = []
    for each in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [each] if each.cmdline() == ["sleep", "60"] else []
    return found

async def one(runner, model, limits):
    job = Job(prompt="go", model=model, cwd="ws", workspace="live", limits=limits)
    wall, passing = time.time(), time.monotonic()
    async with runner.spawn(job) as run:
        while not (sleeping := commands_of(run.pid)):
            await asyncio.sleep(0.01)
        worker = next(each for each in sleeping[0].parents() if "python" in each.name())
        told = {"worker": clock in Path(f"/proc/{worker.pid}/maps").read_text()}
        result = await run.result()
    took = time.monotonic() - passing
    told["jump"] = time.time() - wall - took
    os.unlink("ws/set")
    return {**told, "took": took, "said": result.duration_s, "end": result.stop_reason}

async def main():
    limits = Limits(timeout_s=30, idle_timeout_s=20, tool_timeout_s=0.5)
    async with Runner(start=start) as runner:
        told = [await one(runner, cut, limits), await one(runner, stopped, Limits(timeout_s=1))]
    print(json.dumps(told))

asyncio.run(main())
"""


@pytest.mark.parametrize("jump_s", [YEAR_S, -YEAR_S], ids=["forward", "back"])
def test_a_clock_that_is_set_moves_no_deadline(jump_s: int, start: str, tmp_path: Path) -> None:
    """Host, zygote and worker see the wall clock jump, by a year, while a command runs. It is cut
    in its time, and the run goes on to its end; another one is stopped in its time."""
    require(shutil.which("gcc"), "no gcc")
    require(os.geteuid() == 0, "only root may look whether a worker has the clock that jumps")
    (tmp_path / "ws").mkdir()
    (tmp_path / "clock.c").write_text(CLOCK)
    clock = tmp_path / "clock.so"
    given = (f'-DIS_SET="{tmp_path}/ws/set"', f"-DJUMP_S=({jump_s})")
    compile_it = ["gcc", "-shared", "-fPIC", "-O1", *given, "-o", clock, tmp_path / "clock.c"]
    subprocess.run(compile_it, check=True)
    jump = call("bash", command="touch set; sleep 60")
    cut = replies(tmp_path / "cut", jump, {"text": "done", "expect": ["imed out"]})
    stopped = replies(tmp_path / "stopped", jump, {"text": "done"})
    env = environment(tmp_path, LD_PRELOAD=str(clock))
    told = json.loads(program(HOST, start, cut, stopped, cwd=tmp_path, env=env).stdout)
    assert [each["worker"] for each in told] == [True, True]
    assert [each["jump"] for each in told] == [pytest.approx(jump_s, abs=5)] * 2
    assert [each["end"] for each in told] == ["completed", "timeout"]
    assert [0.5 < told[0]["took"] < 10, 1 <= told[1]["took"] < 10] == [True, True], told
    assert [each["said"] for each in told] == [pytest.approx(each["took"], abs=2) for each in told]
