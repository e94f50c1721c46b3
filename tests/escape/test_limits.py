"""Bounds on processes, memory, CPU time, files and disk hold, for root too; the host does not feel it."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

import pytest
from support_sandbox import EVERYBODY, Person, all_three, require

from forkrun_sandbox import cgroups
from forkrun_sandbox.spec import Limits

pytestmark = pytest.mark.parametrize("who", EVERYBODY, indirect=True, ids="-".join)

MIB = 1024**2


def _has_memory_group() -> bool:
    group, _ = cgroups.create(Limits(memory_bytes=MIB * 64), number=os.getpid())
    return group is not None and cgroups.remove(group)


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_a_fork_bomb_ends_at_the_bound(who: Person, workspace: Path, kind: str) -> None:
    """More processes or threads than allowed are refused with EAGAIN; the host forks on."""
    act = """
    import threading, time
    def act():
        made = 0
        stop = threading.Event()
        children, threads = [], []
        try:
            for _ in range(900):
                if KIND == "processes":
                    child = os.fork()
                    if child == 0:
                        time.sleep(60)
                    children.append(child)
                else:
                    thread = threading.Thread(target=stop.wait, daemon=True)
                    thread.start()
                    threads.append(thread)
                made += 1
        except (OSError, RuntimeError) as refusal:
            if isinstance(refusal, OSError) and refusal.errno != errno.EAGAIN:
                raise
        finally:
            stop.set()
            for thread in threads:
                thread.join()
            for child in children:
                os.kill(child, 9)
            for child in children:
                os.waitpid(child, 0)
        return 30 <= made <= 480
    """.replace("KIND", repr(kind))
    slowest: list[float] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            start = time.monotonic()
            os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
            slowest.append(time.monotonic() - start)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        assert who.act(act, "--processes", "64", cwd=workspace) == all_three(True)
    finally:
        done.set()
        watcher.join()
    assert max(slowest) < 1.0


def test_more_memory_than_allowed_ends_the_hog(who: Person, workspace: Path) -> None:
    """The kernel kills the hog and nobody else, and the sandbox says which limit it was."""
    if not who.is_root:
        pytest.skip("an ordinary user has no control group here; the parent watches instead")
    require(_has_memory_group(), "no memory control group")
    code = "x = bytearray(400 * 1024**2); print(len(x))"
    ended = who.run([who.python, "-c", code], cwd=workspace)
    assert ended.stdout == f"{400 * MIB}\n"
    ended = who.run([who.python, "-c", code], "--memory", "200M", cwd=workspace)
    assert ended.returncode == 128 + 9
    assert "a limit was met: memory" in ended.stderr


def test_memory_in_files_counts(who: Person, workspace: Path) -> None:
    """Memory behind memfd and /dev/shm is bounded as well."""
    if not who.is_root:
        pytest.skip("an ordinary user has no control group here; the parent watches instead")
    require(_has_memory_group(), "no memory control group")
    code = """
import os
for file in (os.memfd_create("x"), os.open("/dev/shm/x", os.O_CREAT | os.O_RDWR)):
    for _ in range(300):
        os.write(file, bytes(1024**2))
print("full")
"""
    ended = who.run([who.python, "-c", code], "--memory", "200M", cwd=workspace)
    assert ended.returncode == 128 + 9, ended.stderr
    assert "full" not in ended.stdout


def test_cpu_time_is_bounded(who: Person, workspace: Path) -> None:
    """A process that only computes is killed after its seconds."""
    start = time.monotonic()
    ended = who.run(["sh", "-c", "while :; do :; done"], "--cpu", "1", cwd=workspace)
    assert ended.returncode in (128 + 9, 128 + 24)
    assert time.monotonic() - start < 30


@pytest.mark.parametrize("where", ["/tmp", "/dev/shm", "/home/agent"])
def test_private_directories_are_bounded(who: Person, workspace: Path, where: str) -> None:
    """/tmp, /dev/shm and HOME fill up at their size, by content and by number; the host does not."""
    free = shutil.disk_usage("/").free
    act = f"""
    def act():
        path = f"{where}/fill-{{os.getpid()}}"
        written = 0
        with open(path, "wb", buffering=0) as file:
            try:
                for _ in range(64):
                    written += file.write(bytes(1024**2))
            except OSError as refusal:
                assert refusal.errno == errno.ENOSPC
        os.unlink(path)
        made = 0
        os.mkdir(path)
        try:
            for number in range(20_000):
                os.mkdir(f"{{path}}/{{number}}")
                made += 1
        except OSError as refusal:
            assert refusal.errno == errno.ENOSPC
        for number in range(made):
            os.rmdir(f"{{path}}/{{number}}")
        os.rmdir(path)
        return 0 < written <= 8 * 1024**2 and 0 < made < 20_000
    """
    assert who.act(act, "--tmp", "8M", cwd=workspace) == all_three(True)
    assert abs(shutil.disk_usage("/").free - free) < 200 * MIB


@pytest.mark.parametrize("mode", ["empty", "overlay"])
def test_a_workspace_in_memory_is_bounded(who: Person, workspace: Path, mode: str) -> None:
    """A private workspace holds what it may hold; nothing of it reaches the host."""
    code = "dd if=/dev/zero of=fill bs=1M count=64 2>&1 | tail -1; stat -c %s fill"
    options = ("--workspace-mode", mode, "--disk", "8M")
    ended = who.run(["sh", "-c", code], *options, cwd=workspace)
    assert 0 < int(ended.stdout.split()[-1]) <= 8 * MIB
    assert not list(workspace.iterdir())


def test_a_file_grows_no_larger_than_allowed(who: Person, workspace: Path) -> None:
    """Also a file of holes."""
    act = """
    import signal
    def act():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with open(f"f{os.getpid()}", "wb") as file:
            os.ftruncate(file.fileno(), 1024**4)
        return "grown"
    """
    assert who.act_freely(act, cwd=workspace) == "grown"
    assert who.act(act, "--file-size", "1M", cwd=workspace) == all_three("EFBIG")


def test_open_files_are_bounded(who: Person, workspace: Path) -> None:
    """No process has more descriptors than allowed."""
    act = """
    def act():
        opened = []
        try:
            for _ in range(200):
                opened.append(os.open("/dev/null", 0))
            return len(opened)
        finally:
            for descriptor in opened:
                os.close(descriptor)
    """
    assert who.act_freely(act, cwd=workspace) == 200
    assert who.act(act, "--open-files", "64", cwd=workspace) == all_three("EMFILE")


def test_a_lower_limit_of_the_caller_is_kept(who: Person, workspace: Path) -> None:
    """A hard limit that is lower than what is asked for stays, and the others are in force."""
    argv = who.argv(
        "--open-files", "256", "--file-size", "1M", "--", "sh", "-c", "ulimit -n; ulimit -f"
    )
    ended = who.run_freely(["sh", "-c", 'ulimit -n 128; exec "$@"', "sh", *argv], cwd=workspace)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["128", "2048"]
