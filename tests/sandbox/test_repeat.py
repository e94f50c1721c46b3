"""Many runs leave descriptors, processes, mounts, groups and files where they were."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support_sandbox import Person, child_argv, eventually

from forkrun_sandbox import cgroups, launch
from forkrun_sandbox.spec import Limits, Spec


def _state() -> dict[str, object]:
    groups = [name for d in cgroups.parents() for name in os.listdir(d)]
    return {
        # Those of makers that are gone; others may be at work beside us.
        "groups": sorted(name for name in groups if cgroups.is_orphan(name)),
        "mounts": len(Path("/proc/self/mountinfo").read_text().splitlines()),
        "files": sorted(n for d in ("/tmp", "/dev/shm") for n in os.listdir(d) if "forkrun" in n),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }


@pytest.mark.parametrize(
    ("rounds", "at_once"), [(3, 4), pytest.param(25, 8, marks=pytest.mark.slow)]
)
def test_runs_in_a_row_and_at_once(who: Person, workspace: Path, rounds: int, at_once: int) -> None:
    """Eight at once, two hundred in all."""
    before = _state()
    argv = who.argv("--", "sh", "-c", "echo x >> /tmp/x; sleep 0.01")
    for _ in range(rounds):
        running = [
            subprocess.Popen(argv, cwd=workspace, stdin=subprocess.DEVNULL, **who.ids)
            for _ in range(at_once)
        ]
        assert [child.wait(timeout=60) for child in running] == [0] * at_once
    assert eventually(lambda: _state() == before), (before, _state())


def test_groups_of_the_dead_are_swept() -> None:
    """A group whose maker is gone is removed by the next that looks; one of the living stays."""
    code = (
        "import os, sys; from forkrun_sandbox import cgroups; from forkrun_sandbox.spec import *;"
        "g, m = cgroups.create(Limits(processes=9, memory_bytes=1 << 26), number=77);"
        "print(g is not None, flush=True); os._exit(0)"
    )
    import forkrun_sandbox
    from forkrun_sandbox.start import interpreter

    bootstrap = interpreter("spec", "Spec")[4].rsplit("sys.argv[:4]", 1)[0] + code
    directory = os.path.dirname(os.path.abspath(forkrun_sandbox.__file__))
    import sys

    told = subprocess.run(
        [sys.executable, "-I", "-S", "-c", bootstrap, directory, "x", "y"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    if told != "True\n":
        pytest.skip("no control group can be made here")
    own, _ = cgroups.create(Limits(processes=9), number=78)
    assert own is not None
    assert cgroups.sweep() >= 1
    assert os.path.isdir(own.directories()[0])
    assert cgroups.remove(own)


GENERATIONS = """
import os, time
for _ in range(3):
    if os.fork():
        break
open(f"ready-{os.getpid()}", "w").close()
time.sleep(60)
"""


@pytest.mark.parametrize("who", ["root"], indirect=True)
def test_who_is_put_into_a_group_takes_its_tree_along(who: Person, workspace: Path) -> None:
    """A child that has forked already, and its children too, is bounded with all of them."""
    group, _ = cgroups.create(Limits(processes=9), number=79)
    if group is None:
        pytest.skip("no control group can be made here")
    with subprocess.Popen([who.python, "-c", GENERATIONS], cwd=workspace) as child:
        assert eventually(lambda: len(list(workspace.glob("ready-*"))) == 4)
        launch._put_in(group, child.pid)
        inside = cgroups.bounded(group)
        cgroups.kill(group)
    assert inside == {int(path.name.partition("-")[2]) for path in workspace.glob("ready-*")}
    assert eventually(lambda: cgroups.remove(group))


def test_a_held_child_can_be_measured_and_ended(who: Person, workspace: Path) -> None:
    """The parent finds PID 1, reads memory and processes, kills, and knows that all are gone."""
    argv = child_argv(who, "full", "exec python3 -c 'x = bytearray(60 * 1024**2); input()'")
    spec = Spec(tier="full", workspace=str(workspace), limits=Limits(processes=64))
    child = subprocess.Popen(
        argv, cwd=workspace, stdin=subprocess.PIPE, start_new_session=True, **who.ids
    )
    with child, launch.hold(child.pid, spec=spec) as held:
        assert eventually(lambda: held.find() and (workspace / "started").exists())
        assert eventually(lambda: (held.usage().memory_bytes or 0) > 60 * 1024**2)
        assert 2 <= held.usage().processes <= 6
        held.kill()
        assert held.is_empty(timeout_s=5)
        assert child.wait() == -9
