"""Which bound ended a run stands in its result: end to end, as root and as an ordinary user.

An ordinary user has no control groups here unless the machine hands them down: then the kernel
counts processes in the user namespace, and memory is measured.
"""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import msgspec
import pytest
from support_cli import call, environment, script
from support_sandbox import WHO, Person, require

import forkrun
import forkrun_sandbox

BOOTSTRAP = """
import sys
sandbox = type(sys)("forkrun_sandbox")
sandbox.__path__ = [sys.argv[1]]
sys.modules["forkrun_sandbox"] = sandbox
sys.path[:0] = sys.argv[2:4]
sys.argv[:4] = ["forkrun"]
import msgspec
from forkrun.cli import main
sys.exit(main())
"""
HOG = "python3 -c 'x = bytearray(400 * 1024**2); import time; time.sleep(30)'"
BOMB = "bomb() { bomb | bomb & }; bomb; sleep 30"
THREADS = """python3 -c '
import threading, time
for _ in range(200):
    threading.Thread(target=time.sleep, args=(30,)).start()
'
"""


class Site:
    """A workspace of somebody's, in which jobs are run."""

    def __init__(self, who: Person, place: Path) -> None:
        self.who = who
        self.place = place
        self.workspace = place / "ws"
        self.workspace.mkdir()
        who.owns(place)

    def spawn(self, *lines, exits, flags=()):
        """Run `forkrun spawn` with these replies; give the result and the tool results."""
        model = script(self.place / "script.jsonl", *lines)
        packages = [Path(package.__path__[0]) for package in (forkrun, msgspec)]
        argv = [
            *(self.who.python, "-c", BOOTSTRAP, forkrun_sandbox.__path__[0]),
            *(str(path.parent) for path in packages),
            *("spawn", "--prompt", "go", "--model", model, "--output-format", "stream-json"),
        ]
        done = self.who.run_freely(
            [*argv, *flags], cwd=self.workspace, env=environment(self.place), timeout=60
        )
        assert done.returncode == exits, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        told = [json.loads(line) for line in done.stdout.splitlines()]
        heads = [each["head"] for each in told if each["type"] == "tool_result"]
        return told[-1], heads


@pytest.fixture(params=WHO)
def site(request):
    """A workspace of root's, and one of an ordinary user's."""
    who = Person(request.param)
    if who.ids:
        packages = {str(Path(package.__path__[0]).parent) for package in (forkrun, msgspec)}
        code = f"import sys; sys.path[:0] = {sorted(packages)!r}; import msgspec, forkrun.cli"
        done = who.run_freely([who.python, "-I", "-c", code], cwd=Path("/"))
        require(done.returncode == 0, "the packages are closed to the ordinary user")
    place = Path(tempfile.mkdtemp(prefix="forkrun-test-", dir="/var/tmp")).resolve()
    place.chmod(0o755)
    yield Site(who, place)
    shutil.rmtree(place)


def is_held_by_kernel(result):
    """Say whether the memory of a run was bounded by a control group."""
    return "memory" in result["sandbox"]["enforced"]


def test_every_bound_is_told_of(site):
    """Memory and processes stand in `enforced`, or in `missing` with what is done instead."""
    result, _ = site.spawn({"text": "done"}, exits=0)
    told = {each["layer"]: each["reason"] for each in result["sandbox"]["missing"]}
    for layer in ("memory", "pids"):
        assert (layer in result["sandbox"]["enforced"]) != (layer in told)
    assert "pids" in result["sandbox"]["enforced"]
    if "memory" in told:
        assert "control group" in told["memory"] and "measured" in told["memory"]


@pytest.mark.parametrize("level", ["lsm", "none"])
def test_every_bound_is_told_of_in_a_lesser_tier(site, level):
    """Without namespaces too."""
    if level == "lsm":
        from forkrun_sandbox.probe import choose

        require(choose("lsm").tier in ("full", "lsm"), "no Landlock here")
    flags = ("--sandbox", level, "--workspace", "temp")
    result, _ = site.spawn({"text": "done"}, exits=0, flags=flags)
    told = {each["layer"] for each in result["sandbox"]["missing"]}
    for layer in ("memory", "pids"):
        assert (layer in result["sandbox"]["enforced"]) != (layer in told)


def test_no_bound_no_word(site):
    """What has no limit is not missing one."""
    from forkrun_sandbox.launch import hold
    from forkrun_sandbox.spec import Limits, Spec

    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    spec = Spec(tier="full", workspace=str(site.workspace), limits=Limits())
    with child, hold(child.pid, spec=spec) as held:
        assert held.missing == ()
        child.kill()


@pytest.mark.parametrize("bomb", [BOMB, THREADS], ids=["processes", "threads"])
def test_a_bomb_ends_the_run(site, bomb):
    """The kernel refuses, and the run ends soon; the result names the bound on processes."""
    result, _ = site.spawn(
        call("bash", command=bomb), {"text": "done"}, exits=53, flags=("--processes", "48")
    )
    assert result["duration_s"] < 15
    assert result["stop_reason"] == "resource_limit"
    assert result["limit"]["kind"] == "processes"
    assert result["limit"]["value"] == 48
    assert result["resources"]["processes"] <= 52


def test_a_command_that_takes_too_much_memory(site):
    """The kernel kills it and the run goes on; where it is measured, the run ends and says why."""
    hog = call("bash", command=f"{HOG} || echo lost $?")
    flags = ("--memory", "128M")
    if not site.who.is_root:
        held, _ = site.spawn({"text": "done"}, exits=0)
        if not is_held_by_kernel(held):
            result, _ = site.spawn(hog, {"text": "done"}, exits=53, flags=flags)
            assert result["stop_reason"] == "resource_limit"
            assert result["limit"]["kind"] == "memory"
            assert result["limit"]["used"] > 128 * 1024**2
            return
    result, heads = site.spawn(hog, {"text": "done"}, exits=0, flags=flags)
    require(is_held_by_kernel(result), "no control group for memory")
    assert result["summary"] == "done"
    assert "lost 137" in heads[0]
    assert result["resources"]["peak_memory_bytes"] <= 128 * 1024**2


def test_the_control_a_command_that_takes_less(site):
    """Below the bound nothing happens."""
    little = call("bash", command="python3 -c 'x = bytearray(20 * 1024**2); print(len(x))'")
    result, heads = site.spawn(little, {"text": "done"}, exits=0, flags=("--memory", "256M"))
    assert result["stop_reason"] == "completed"
    assert heads == ["20971520\n"] or heads == ["20971520"]


def test_a_worker_killed_for_memory(site):
    """Memory that no process holds, as in /dev/shm, costs the worker its life: a bound, no crash."""
    fill = call("bash", command="head -c 200M /dev/zero > /dev/shm/a; sleep 20")
    result, _ = site.spawn({"text": "done"}, exits=0)
    require(is_held_by_kernel(result) or not site.who.is_root, "no control group for memory")
    if not is_held_by_kernel(result):
        pytest.skip("memory is measured here, and the worker itself is never killed for it")
    result, _ = site.spawn(fill, {"text": "done"}, exits=53, flags=("--memory", "64M"))
    assert result["stop_reason"] == "resource_limit"
    assert result["limit"]["kind"] == "memory"


SPARSE = """python3 -c '
import os, sys
with open(sys.argv[1], "wb") as file:
    try:
        os.ftruncate(file.fileno(), int(sys.argv[2]))
        print("grown", end=" ")
    except OSError as refusal:
        print(os.strerror(refusal.errno), end=" ")
os.unlink(sys.argv[1])
' """


@pytest.mark.parametrize("mode", ["commit", "live", "temp"])
def test_a_file_of_holes_is_no_way_around_the_disk(site, mode):
    """In the workspace and in /tmp: EFBIG beyond the bound, nothing below it."""
    sizes = (1 << 40, 8 << 20)
    command = ";".join(f"{SPARSE} {d}/f {n}" for d in (".", "/tmp") for n in sizes)
    flags = ("--disk", "16M", "--workspace", mode)
    _, heads = site.spawn(call("bash", command=command), {"text": "done"}, exits=0, flags=flags)
    assert heads[0].split() == ["File", "too", "large", "grown"] * 2


def test_a_program_that_does_not_ask_is_ended(site):
    """Without a handler the kernel ends the program: the file is not there."""
    grow = call("bash", command="truncate -s 1T f; echo $?; stat -c %s f")
    result, heads = site.spawn(grow, {"text": "done"}, exits=0)
    assert heads[0].split()[-2:] != ["0", str(1 << 40)]
    assert result["stop_reason"] == "completed"


def test_cpu_time_is_bounded(site):
    """A command that spins is ended by the signal that says why; the run goes on."""
    spin = call("bash", command="python3 -c 'while True: pass' || echo lost $?")
    flags = ("--cpu-time", "1")
    result, heads = site.spawn(spin, {"text": "done"}, exits=0, flags=flags)
    assert "lost 152" in heads[0]
    assert result["limits"]["cpu_s"] == 1
    assert 0.9 < result["resources"]["cpu_s"] < 10


def test_cpu_time_of_one_that_does_not_listen(site):
    """One that ignores the signal is killed a second later."""
    code = "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    spin = call("bash", command=f'python3 -c "{code}" || echo lost $?')
    _, heads = site.spawn(spin, {"text": "done"}, exits=0, flags=("--cpu-time", "1"))
    assert "lost 137" in heads[0]
