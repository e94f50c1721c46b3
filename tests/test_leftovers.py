"""What a killed run leaves on the machine is gone after the next one, wherever that was started."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support_cli import call, environment, run, script, wait_until
from support_sandbox import require

from forkrun_sandbox import cgroups


@pytest.fixture
def elsewhere():
    """Control groups that are not this process's own: in each hierarchy one."""
    require(cgroups.parents(), "no control group can be made here")
    made = [Path(parent, f"test-elsewhere-{os.getpid()}") for parent in cgroups.parents()]
    for path in made:
        path.mkdir()
    yield made
    for path in made:
        for below in path.iterdir():
            if below.is_dir():
                below.rmdir()
        wait_until(lambda path=path: not (path / "cgroup.procs").read_text())
        path.rmdir()


def test_groups_left_in_another_place_are_swept(elsewhere, tmp_path):
    """Killed there, and removed by a run that is not there."""
    workspace = tmp_path / "ws"
    workspace.mkdir()
    mark = f"7{os.getpid()}"
    model = script(tmp_path / "script.jsonl", call("bash", command=f"sleep {mark}"), {"text": "x"})
    enter = "".join(f"echo $$ > {path}/cgroup.procs;" for path in elsewhere)
    command = (sys.executable, "-m", "forkrun", "spawn", "--prompt", "go", "--model", model)
    env = environment(tmp_path / "home")
    (tmp_path / "home").mkdir()
    running = subprocess.Popen(
        ["sh", "-c", f'{enter} exec "$@"', "sh", *command],
        cwd=workspace,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def left():
        return [each for path in elsewhere for each in path.iterdir() if each.is_dir()]

    try:
        wait_until(lambda: any((each / "cgroup.procs").read_text() for each in left()))
    finally:
        os.kill(running.pid, signal.SIGKILL)
        running.wait()
    wait_until(lambda: not any((each / "cgroup.procs").read_text() for each in left()))
    assert left()
    done = script(tmp_path / "done.jsonl", {"text": "done"})
    run("spawn", "--prompt", "go", "--model", done, cwd=workspace, env=env, check=0)
    assert not left()


def test_what_is_no_longer_there_is_forgotten(elsewhere, tmp_path):
    """The note of a place goes with the place, and the own place is noted once."""
    state = tmp_path / "state/forkrun/groups"
    state.mkdir(parents=True)
    (state / "0123abcd").symlink_to("/sys/fs/cgroup/gone")
    (tmp_path / "ws").mkdir()
    model = script(tmp_path / "script.jsonl", {"text": "done"})
    for _ in range(2):
        arguments = ("spawn", "--prompt", "go", "--model", model)
        run(*arguments, cwd=tmp_path / "ws", env=environment(tmp_path), check=0)
    assert sorted(os.readlink(path) for path in state.iterdir()) == sorted(cgroups.parents())


def test_long_summaries_are_kept_as_long_as_patches(tmp_path):
    """An old file is removed, a new one stays; a longer time keeps both."""
    folder = tmp_path / "state/forkrun/summaries"
    folder.mkdir(parents=True)
    (tmp_path / "ws").mkdir()
    model = script(tmp_path / "script.jsonl", {"text": "done"})
    for name, days in (("old", 9), ("new", 5)):
        (folder / f"{name}.txt").write_text("a summary")
        os.utime(folder / f"{name}.txt", (0, time.time() - days * 86_400))
    arguments = ("spawn", "--prompt", "go", "--model", model)
    for flags, left in ((("--keep-patch", "10"), ["new.txt", "old.txt"]), ((), ["new.txt"])):
        run(*arguments, *flags, cwd=tmp_path / "ws", env=environment(tmp_path), check=0)
        assert sorted(os.listdir(folder)) == left
