"""Killing leaves no survivor, and the parent knows it; the death of the parent does the same."""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from support_sandbox import Person, child_argv, eventually, processes_with

# Each leaves processes behind that carry {mark} on their command line.
TREES = {
    "plain": "sleep_marked & wait",
    "own group": "set -m; sleep_marked & wait",
    "setsid": "setsid sh -c 'sleep_marked' & wait",
    "double fork": "(setsid sh -c 'sleep_marked' &) ; sleep_marked",
    "ignores TERM": "trap '' TERM HUP INT; sleep_marked & wait",
    "stopped": "sleep_marked & sleep 0.3; kill -STOP $!; kill -STOP $$; wait",
    "respawner": "(while :; do sh -c 'sleep_marked' & sleep 0.02; done) & wait",
    "200 daemons": "i=0; while [ $i -lt 200 ]; do i=$((i+1));"
    " (setsid sh -c 'sleep_marked' >/dev/null 2>&1 &); done; sleep_marked",
    "fork bomb": "bomb() { bomb | bomb & }; bomb 2>/dev/null; sleep_marked",
}


@pytest.fixture
def mark() -> Iterator[str]:
    """A word on the command lines of a test's processes, of which none is left when it ends."""
    word = f"forkrun-mark-{uuid.uuid4().hex}"
    yield word
    left = list(processes_with(word))
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def _laid(tree: str, mark: str, workspace: Path, who: Person) -> list[str]:
    """Lay the script of a tree into the workspace, so that no command line but its own shows it."""
    script = TREES[tree].replace("'sleep_marked'", "'exec bash ./sleeper'")
    (workspace / "tree").write_text(script.replace("sleep_marked", "bash ./sleeper") + "\n")
    (workspace / "sleeper").write_text(f"exec -a {mark} sleep 300\n")
    who.owns(workspace)
    return ["bash", "./tree"]


@pytest.mark.parametrize("start", ["exec", "warm"])
@pytest.mark.parametrize("tier", ["full", "lsm"])
@pytest.mark.parametrize("tree", TREES)
def test_a_killed_sandbox_leaves_nobody(
    who: Person, workspace: Path, mark: str, tree: str, tier: str
) -> None:
    """SIGTERM to the parent kills every process inside within seconds, whatever it has become."""
    if tier == "lsm" and tree == "fork bomb":
        pytest.skip("without namespace and control group nothing but the guardian's speed helps")
    level = "lsm" if tier == "lsm" else "required"
    argv = who.argv(
        "--sandbox", level, "--processes", "400", "--", *_laid(tree, mark, workspace, who)
    )
    with subprocess.Popen(
        [*_in_tier(tier, who), *argv], cwd=workspace, stdin=subprocess.DEVNULL, **who.ids
    ) as parent:
        assert eventually(lambda: any(processes_with(mark)), within_s=30)
        time.sleep(0.3 if tree in ("respawner", "200 daemons", "fork bomb") else 0)
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(timeout=30) == 128 + signal.SIGTERM
    assert not list(processes_with(mark))


def _in_tier(tier: str, who: Person) -> list[str]:
    """Give what to put in front of a command so that it gets this tier and no better one."""
    if tier == "full":
        return []
    from support_denials import denying

    return denying("unshare", python=who.python)


@pytest.mark.parametrize("start", ["exec", "warm"])
@pytest.mark.parametrize("tree", ["plain", "setsid", "double fork", "respawner", "200 daemons"])
def test_the_end_of_the_worker_ends_all(who: Person, workspace: Path, mark: str, tree: str) -> None:
    """A worker that ends and leaves daemons with its stdout takes them along; the pipe is at end."""
    _laid(tree, mark, workspace, who)
    command = ["bash", "-c", "bash ./tree & sleep 0.5; exit 3"]
    start = time.monotonic()
    ended = who.run(command, cwd=workspace, timeout=60)
    assert ended.returncode == 3
    assert time.monotonic() - start < 20
    assert not list(processes_with(mark))


DEATHS = {
    "SIGKILL": "os.kill(os.getpid(), 9)",
    "segmentation fault": "__import__('ctypes').string_at(0)",
    "_exit in a thread": "threading.Thread(target=os._exit, args=(5,)).start(); time.sleep(60)",
    "SIGKILL, from a thread": "threading.Thread(target=os.kill, args=(os.getpid(), 9)).start();"
    "time.sleep(60)",
}
STARTERS = {
    "main thread": "run()",
    "worker thread": "t = threading.Thread(target=run); t.start(); t.join()",
    "asyncio": "import asyncio; asyncio.run(asyncio.to_thread(run))",
}
PARENT = """
import json, os, sys, threading, time, subprocess
argv = json.loads(sys.argv[1])
child = None
def run():
    global child
    code = "import json,sys,os; sys.path.insert(0, sys.argv[2]);"
    child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)
{starter}
deadline = time.monotonic() + 30
while not os.path.exists("started") and time.monotonic() < deadline:
    time.sleep(0.01)
print("alive" if child.poll() is None else "dead", flush=True)
time.sleep(0.2)
print("alive" if child.poll() is None else "dead", flush=True)
{death}
"""


@pytest.mark.parametrize("tier", ["full", "lsm"])
@pytest.mark.parametrize(
    ("starter", "death"),
    [(s, d) for s in STARTERS for d in DEATHS if s == "main thread" or d == "SIGKILL"],
)
def test_the_death_of_the_parent_ends_all(
    who: Person, workspace: Path, mark: str, starter: str, death: str, tier: str
) -> None:
    """However the parent dies and whichever thread started the run, nobody is left a second later.

    And the child lives as long as the parent does, also when the thread that started it has ended.
    """
    import json

    _laid("double fork", mark, workspace, who)
    argv = json.dumps(child_argv(who, tier, "bash ./tree"))
    code = textwrap.dedent(PARENT).format(starter=STARTERS[starter], death=DEATHS[death])
    ended = who.run_freely([who.python, "-c", code, argv], cwd=workspace, stderr=None)
    assert ended.stdout.split() == ["alive", "alive"], ended.stdout
    assert eventually(lambda: not any(processes_with(mark)), within_s=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("who", ["root"], indirect=True)
def test_a_parent_that_dies_at_once_leaves_nobody(who: Person, workspace: Path, mark: str) -> None:
    """However early in the child's start the parent is killed: it hands down a pidfd of itself."""
    import json

    _laid("plain", mark, workspace, who)
    argv = json.dumps(child_argv(who, "full", "bash ./tree"))
    code = (
        "import json, os, subprocess, sys, time\n"
        "me = os.pidfd_open(os.getpid())\n"
        "argv = [*json.loads(sys.argv[1]), str(me)]\n"
        "subprocess.Popen(argv, start_new_session=True, pass_fds=(me,))\n"
        "time.sleep(float(sys.argv[2])); os.kill(os.getpid(), 9)"
    )
    for attempt in range(60):
        subprocess.run(
            [who.python, "-c", code, argv, str(attempt / 1000)], cwd=workspace, check=False
        )
        (workspace / "started").unlink(missing_ok=True)
    assert eventually(lambda: not any(processes_with(mark)), within_s=5.0)
