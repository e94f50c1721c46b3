"""Cases of process supervision that are about the host program, played through the API."""

import asyncio
import gc
import os
import random
import subprocess
import sys
import threading
import time
import venv
from pathlib import Path

import pytest
from support_api import program, replies
from support_cli import environment

import forkrun

CALM = ("-X", "dev", "-W", "error")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    folder.mkdir()
    return folder


D04 = """
import importlib, logging, sys, threading
import forkrun

logging.basicConfig(level=logging.DEBUG, stream=open("log", "w"))
stop = threading.Event()

# Of each thread its own, and none that a run imports: who imports a module does not find it where
# another takes it away meanwhile.
MODULES = ("calendar", "cmd", "colorsys", "pyclbr", "rlcompleter", "sched", "tabnanny", "timeit")

def busy(name):
    while not stop.is_set():
        sys.modules.pop(name, None)
        importlib.import_module(name)
        logging.debug("a line")
        stop.wait(0.001)

def runs(count):
    for _ in range(count):
        ends.append(forkrun.run_sync("go", model=sys.argv[1], cwd="ws").stop_reason)

ends = []
noise = [threading.Thread(target=busy, args=(name,)) for name in MODULES]
work = [threading.Thread(target=runs, args=(int(sys.argv[2]),)) for _ in range(4)]
for thread in [*noise, *work]:
    thread.start()
for thread in work:
    thread.join()
stop.set()
for thread in noise:
    thread.join()
print(len(ends), *set(ends))
"""


@pytest.mark.slow
def test_D04_threads_that_hold_locks(tmp_path: Path, workspace: Path) -> None:
    """Runs start from a process whose other threads import and log all the time."""
    model = replies(tmp_path / "s", {"text": "x"})
    done = program(D04, model, "50", cwd=tmp_path)
    assert done.stdout == "200 completed\n"
    assert done.stderr == ""


@pytest.mark.parametrize(
    "pollution",
    [
        "os.environ['BIG'] = 'x' * 140_000",
        "os.environ.update({f'V{n}': 'x' * 1024 for n in range(3000)})",
    ],
    ids=["one of 140 KB", "3000 of 1 KB"],
)
def test_D06_large_environment(pollution: str, tmp_path: Path, workspace: Path) -> None:
    """An environment that exec could not pass on does not matter: the child's is our own."""
    call = {"tool_use": [{"name": "bash", "input": {"command": "env | wc -c"}}]}
    model = replies(tmp_path / "s", call, {"text": "FINE"})
    code = (
        f"import os, sys, forkrun; {pollution}\n"
        "print(forkrun.run_sync('go', model=sys.argv[1], cwd='ws').summary)"
    )
    assert program(code, model, cwd=tmp_path).stdout == "FINE\n"


def test_D06_large_search_path(tmp_path: Path, workspace: Path) -> None:
    """PATH is passed on, so one that exec refuses is an error which names it."""
    model = replies(tmp_path / "s", {"text": "x"})
    environ = {**os.environ, "PATH": ":".join(f"/{'x' * 200}{n}" for n in range(1000))}
    with pytest.raises(forkrun.ConfigurationError, match="PATH"):
        forkrun.run_sync("go", model=model, cwd=workspace, environ=environ)


D07 = """
import logging, sys
print("hello \\N{WAVING HAND SIGN}".encode("ascii", "replace").decode())
logging.basicConfig(stream=sys.stdout, level=logging.DEBUG)
import forkrun
result = forkrun.run_sync("go", model=sys.argv[1], cwd="ws")
assert result.summary == "FINAL \\N{WAVING HAND SIGN}", ascii(result.summary)
"""


def test_D07_noise_and_a_narrow_encoding(tmp_path: Path, workspace: Path) -> None:
    """A host that logs to stdout under an ASCII encoding gets exactly the summary."""
    noise = {"tool_use": [{"name": "bash", "input": {"command": "printf 'noise \\xff\\n'"}}]}
    model = replies(tmp_path / "s", noise, {"text": "FINAL \N{WAVING HAND SIGN}"})
    env = environment(tmp_path, PYTHONIOENCODING="ascii", LC_ALL="C", PYTHONUTF8="0")
    program(D07, model, cwd=tmp_path, env=env)


def test_D13_no_python_on_the_path(tmp_path: Path, workspace: Path) -> None:
    """The child starts with the parent's interpreter, whatever PATH says."""
    model = replies(tmp_path / "s", {"text": "FINE"})
    code = "import sys, forkrun; print(forkrun.run_sync('go', model=sys.argv[1], cwd='ws').summary)"
    env = environment(tmp_path) | {"PATH": "/nonexistent"}
    assert program(code, model, cwd=tmp_path, env=env).stdout == "FINE\n"


@pytest.mark.slow
def test_D13_a_checkout_and_a_path_with_spaces(tmp_path: Path, workspace: Path) -> None:
    """An interpreter under a path with spaces, and packages found by `sys.path` alone, work."""
    model = replies(tmp_path / "s", {"text": "FINE"})
    place = tmp_path / "a place with spaces"
    venv.create(place, with_pip=False, symlinks=True)
    paths = [entry for entry in sys.path if entry]
    code = (
        f"import sys; sys.path[:0] = {paths!r}\nimport forkrun\n"
        "print(forkrun.run_sync('go', model=sys.argv[1], cwd='ws').summary)"
    )
    done = subprocess.run(
        [place / "bin" / "python", "-c", code, model],
        cwd=tmp_path,
        env=environment(tmp_path) | {"PATH": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("FINE\n", "")


def test_D15_a_workspace_that_shadows_modules(tmp_path: Path, workspace: Path) -> None:
    """No module of the workspace is imported by us; Python that a tool starts behaves as ever."""
    hijack = "print('HIJACK'); raise SystemExit(9)\n"
    for name in ("json", "typing", "random", "msgspec"):
        (workspace / f"{name}.py").write_text(hijack)
    (workspace / "forkrun").mkdir()
    (workspace / "forkrun" / "__init__.py").write_text(hijack)
    (workspace / "mine.py").write_text("print('MINE')\n")
    call = {"tool_use": [{"name": "bash", "input": {"command": "python3 -c 'import mine'"}}]}
    model = replies(tmp_path / "s", call, {"text": "FINE", "expect": ["MINE"]})
    code = (
        "import os, sys, forkrun; os.chdir('ws')\n"
        "result = forkrun.run_sync('go', model=sys.argv[1]); print(result.summary)"
    )
    done = program(code, model, cwd=tmp_path, flags=("-P",))
    assert (done.stdout, done.stderr) == ("FINE\n", "")


D16 = """
import sys
open("seen", "a").write("once\\n")
import forkrun
print(forkrun.run_sync("go", model="script:s", cwd="ws").summary)
"""


@pytest.mark.parametrize("way", ["stdin", "-c", "script", "interactive"])
def test_D16_the_main_program_runs_once(way: str, tmp_path: Path, workspace: Path) -> None:
    """The child never runs the parent's main program again, however that was started."""
    replies(tmp_path / "s", {"text": "FINE"})
    (tmp_path / "main.py").write_text(D16)
    argv = {"stdin": ["-"], "-c": ["-c", D16], "script": ["main.py"], "interactive": ["-i", "-q"]}
    done = subprocess.run(
        [sys.executable, *argv[way]],
        input=D16 if way in ("stdin", "interactive") else "",
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "FINE\n" in done.stdout, done.stderr
    assert (tmp_path / "seen").read_text() == "once\n"


D19 = """
import asyncio, gc, logging, sys, threading
import forkrun
logging.getLogger("asyncio").setLevel(logging.ERROR)  # in debug mode it tells of slow imports

def one_loop():
    async def limited():
        await asyncio.wait_for(forkrun.run("go", model=sys.argv[1], cwd="ws"), 0.5)
    try:
        asyncio.run(limited())
    except TimeoutError:
        print("timeout")
    gc.collect()

one_loop()
one_loop()
thread = threading.Thread(target=one_loop)
thread.start()
thread.join()
gc.collect()
"""


@pytest.mark.parametrize("sleeper", ["a tool", "the model"])
def test_D19_a_loop_that_is_closed(sleeper: str, tmp_path: Path, workspace: Path) -> None:
    """Runs cut by the host's time limit, in loops one after the other and in another thread's,
    leave nothing that a destructor complains of."""
    call = {"tool_use": [{"name": "bash", "input": {"command": "sleep 60"}}]}
    line = call if sleeper == "a tool" else {"text": "late", "delay_s": 60}
    model = replies(tmp_path / "s", line, {"text": "x"})
    done = program(D19, model, cwd=tmp_path, flags=CALM)
    assert (done.stdout, done.stderr) == ("timeout\n" * 3, "")


@pytest.mark.slow
def test_D22_runs_do_not_hold_each_others_pipes(tmp_path: Path, workspace: Path) -> None:
    """Short runs beside a long one return in their own time, and no descriptor is left over."""
    long = replies(tmp_path / "long", {"text": "x", "delay_s": 10})
    short = replies(tmp_path / "short", {"text": "x", "delay_s": 0.2})
    first = forkrun.run_sync("go", model=short, cwd=workspace)  # what is opened once is open now
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    durations: list[float] = []

    def shorts() -> None:
        for _ in range(5):
            time.sleep(random.random() / 10)
            began = time.monotonic()
            forkrun.run_sync("go", model=short, cwd=workspace)
            durations.append(time.monotonic() - began)

    began = time.monotonic()
    threads = [threading.Thread(target=shorts) for _ in range(8)]
    threads.append(threading.Thread(target=forkrun.run_sync, args=("go",), kwargs={"model": long}))
    for thread in reversed(threads):
        thread.start()
    for thread in threads[:-1]:
        thread.join()
    assert time.monotonic() - began < 10
    assert len(durations) == 40
    assert max(durations) < 8 + first.duration_s
    threads[-1].join()
    for _ in range(20):
        with pytest.raises(forkrun.ForkrunError):
            forkrun.run_sync("go", model=short, cwd=tmp_path / "missing")
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_D22_failed_starts_leave_no_descriptor(
    tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starts that fail at the exec give their descriptors back, each time."""
    model = replies(tmp_path / "s", {"text": "x"})
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))

    async def fail() -> None:
        with pytest.raises((forkrun.ForkrunError, OSError)):
            await forkrun.run("go", model=model, cwd=workspace)

    async def many() -> tuple[int, int]:
        await fail()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            await fail()
        return before, len(os.listdir("/proc/self/fd"))

    before, after = asyncio.run(many())
    assert after == before
