"""The zygote: forks that are as safe as fresh interpreters, and a life that ends with its owner's."""

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from support_cli import call, environment, script, wait_until

import forkrun.zygote
from forkrun import Job, Limits, Runner
from forkrun.environment import worker_environment
from forkrun.starting import package_folders
from forkrun.zygote import Zygote

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the zygote is for Linux")
needs_spares = pytest.mark.skipif(os.geteuid() != 0, reason="only root begins ahead of time")
SECRET = "sk-ant-" + "Zygote0Memory" * 3


def zygote_of(runner: Runner) -> int:
    zygote = runner._launcher._zygote
    assert zygote is not None
    return zygote.pid


def children_of(pid: int) -> list[int]:
    """The children of a process of one thread."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds, and fail where it does not."""
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.01)


async def spare_of(runner: Runner) -> int:
    """Wait for the worker that is begun ahead of time: the one child there is when all is quiet."""
    pid = zygote_of(runner)
    await until(lambda: len(children_of(pid)) == 1)
    return children_of(pid)[0]


def job(tmp_path: Path, *lines: dict, **fields: object) -> Job:
    workspace = tmp_path / "ws"
    workspace.mkdir(exist_ok=True)
    name = hashlib.sha256(json.dumps(lines).encode()).hexdigest()[:8]
    model = script(tmp_path / f"{name}.jsonl", *lines)
    return Job(prompt="go", model=model, cwd=str(workspace), **fields)


def memory_holds(pid: int, needle: bytes) -> bool:
    """Whether the bytes stand anywhere in what a process has mapped and can write."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            place, rights, *_ = line.split()
            if not rights.startswith("rw"):
                continue
            start, end = (int(part, 16) for part in place.split("-"))
            memory.seek(start)
            try:
                if needle in memory.read(end - start):
                    return True
            except OSError:
                continue
    return False


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may read another process's memory")
def test_no_secret_of_the_owner_is_in_its_memory(tmp_path, monkeypatch) -> None:
    """Neither environment nor memory of a zygote holds the key that its owner has in both."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)

    async def main() -> None:
        async with Runner() as runner:
            result = await runner.run(job(tmp_path, {"text": "done"}))
            assert result.stop_reason == "completed"
            pid = zygote_of(runner)
            assert memory_holds(os.getpid(), SECRET.encode())  # the control: this way finds it
            assert not memory_holds(pid, SECRET.encode())
            assert SECRET.encode() not in Path(f"/proc/{pid}/environ").read_bytes()

    asyncio.run(main())


def test_it_has_one_thread_and_the_environment_of_a_worker(tmp_path) -> None:
    """What makes a fork safe: a single thread, and nothing from the owner's environment."""

    async def main() -> None:
        async with Runner() as runner:
            await runner.run(job(tmp_path, {"text": "done"}))
            pid = zygote_of(runner)
            assert len(os.listdir(f"/proc/{pid}/task")) == 1
            lines = Path(f"/proc/{pid}/environ").read_bytes().rstrip(b"\0").split(b"\0")
            found = dict(line.decode().split("=", 1) for line in lines)
            assert found == worker_environment(os.environ)

    asyncio.run(main())


def test_many_runs_share_one_zygote_which_keeps_nothing(tmp_path) -> None:
    """Runs one after the other and at once are forks of the same process; it keeps no descriptor
    and no zombie of them."""

    async def main() -> None:
        async with Runner() as runner:
            one = job(tmp_path, call("bash", command="echo hi"), {"text": "done"})
            await runner.run(one)
            pid = zygote_of(runner)
            await spare_of(runner)
            before = len(os.listdir(f"/proc/{pid}/fd"))
            results = await asyncio.gather(*(runner.run(one) for _ in range(24)))
            assert {result.stop_reason for result in results} == {"completed"}
            assert zygote_of(runner) == pid
            spare = await spare_of(runner)
            assert len(os.listdir(f"/proc/{pid}/fd")) == before
            assert children_of(pid) == [spare]

    asyncio.run(main())


def test_where_it_was_killed_the_next_run_has_a_new_one(tmp_path) -> None:
    """A zygote that dies between runs costs nobody a run."""

    async def main() -> None:
        async with Runner() as runner:
            await runner.run(job(tmp_path, {"text": "done"}))
            pid = zygote_of(runner)
            os.kill(pid, signal.SIGKILL)
            result = await runner.run(job(tmp_path, {"text": "again"}))
            assert (result.stop_reason, result.summary) == ("completed", "again")
            assert zygote_of(runner) != pid

    asyncio.run(main())


def test_a_run_whose_zygote_dies_is_never_called_completed(tmp_path) -> None:
    """How a worker ended cannot be known then, so its run is crashed; the next one completes."""

    async def main() -> None:
        async with Runner() as runner:
            slow = job(tmp_path, call("bash", command="touch here; sleep 0.5"), {"text": "done"})
            async with runner.spawn(slow) as run:
                async for event in run.events():
                    if type(event).__name__ == "ToolCallEvent":
                        os.kill(zygote_of(runner), signal.SIGKILL)
                result = await run.result()
            assert result.stop_reason == "crashed"
            assert (await runner.run(job(tmp_path, {"text": "again"}))).stop_reason == "completed"

    asyncio.run(main())


def test_it_dies_with_its_owner(tmp_path) -> None:
    """SIGKILL of the owner leaves no zygote and no worker, though another process still holds a
    copy of the owner's end of the control socket."""
    (tmp_path / "ws").mkdir()
    model = script(tmp_path / "s.jsonl", call("bash", command="sleep 300"), {"text": "done"})
    program = f"""
        import asyncio, json, os, subprocess
        from forkrun import Job, Runner
        async def main():
            async with Runner() as runner:
                job = Job(prompt="go", model={model!r}, cwd={str(tmp_path / "ws")!r})
                async with runner.spawn(job) as run:
                    async for event in run.events():
                        if type(event).__name__ == "ToolCallEvent":
                            break
                    zygote = runner._launcher._zygote
                    control = zygote._control.fileno()
                    holder = subprocess.Popen(["sleep", "300"], pass_fds=[control])
                    print(json.dumps([zygote.pid, run.pid, holder.pid]), flush=True)
                    await asyncio.sleep(300)
        asyncio.run(main())
    """
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdout=subprocess.PIPE,
        env=environment(tmp_path),
    )
    assert owner.stdout
    zygote, worker, holder = json.loads(owner.stdout.readline())
    assert all(os.path.exists(f"/proc/{pid}") for pid in (zygote, worker))
    owner.kill()
    owner.wait()
    owner.stdout.close()
    try:
        wait_until(lambda: not any(_lives(pid) for pid in (zygote, worker)))
    finally:
        os.kill(holder, signal.SIGKILL)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_starts_that_are_cancelled_leave_nothing(tmp_path) -> None:
    """Cancelling runs while their workers are being forked leaves no process behind."""

    async def main() -> None:
        async with Runner() as runner:
            await runner.run(job(tmp_path, {"text": "done"}))
            for delay_ms in (0, 1, 2, 4, 8):
                runs = [
                    asyncio.ensure_future(runner.run(job(tmp_path, {"text": "done"})))
                    for _ in range(6)
                ]
                await asyncio.sleep(delay_ms / 1000)
                for run in runs:
                    run.cancel()
                await asyncio.gather(*runs, return_exceptions=True)
            pid = zygote_of(runner)
            await until(lambda: len(children_of(pid)) <= 1)
            assert children_of(pid) in ([], [await spare_of(runner)])

    asyncio.run(main())


@needs_spares
def test_the_next_run_is_the_spare(tmp_path) -> None:
    """What was begun ahead of time is what runs next, and another is begun after it."""

    async def main() -> None:
        async with Runner() as runner:
            one = job(tmp_path, call("bash", command="hostname > name"), {"text": "done"})
            await runner.run(one)
            spare = await spare_of(runner)
            async with runner.spawn(one) as run:
                assert run.pid == spare
                result = await run.result()
            assert result.stop_reason == "completed"
            assert (tmp_path / "ws" / "name").read_text() == "sandbox\n"
            assert await spare_of(runner) != spare

    asyncio.run(main())


@needs_spares
def test_a_spare_that_was_killed_is_not_missed(tmp_path) -> None:
    """Where the spare has died meanwhile, another is forked."""

    async def main() -> None:
        async with Runner() as runner:
            one = job(tmp_path, {"text": "done"})
            await runner.run(one)
            spare = await spare_of(runner)
            os.kill(spare, signal.SIGKILL)
            await until(lambda: ") Z " in Path(f"/proc/{spare}/stat").read_text())
            assert (await runner.run(one)).stop_reason == "completed"

    asyncio.run(main())


@needs_spares
def test_what_pid_1_cannot_do_is_said(tmp_path) -> None:
    """A view that cannot be built ends the run with the reason, begun ahead of time or not."""

    async def main() -> None:
        async with Runner() as runner:
            await runner.run(job(tmp_path, {"text": "done"}))
            for _ in range(3):
                await spare_of(runner)
                one = job(tmp_path, {"text": "done"}, readable=("/etc",))
                for run in (runner.run(one), runner.run(one)):  # with the spare, and at once after
                    result = await run
                    assert result.stop_reason == "sandbox_unavailable"
                    assert "cannot be shown inside: /etc" in result.error.message
            assert (await runner.run(job(tmp_path, {"text": "done"}))).stop_reason == "completed"

    asyncio.run(main())


@needs_spares
def test_a_spare_of_another_shape_is_not_used(tmp_path) -> None:
    """A run with the host's network is not given a sandbox with one of its own, nor the reverse."""
    look = call("bash", command="ls /sys/class/net 2>/dev/null; cat /proc/net/dev | wc -l")

    async def main() -> None:
        async with Runner() as runner:
            found = {}
            for network in ("none", "host", "host", "none"):
                one = job(tmp_path, look, {"text": "done"}, network=network)
                result = await runner.run(one)
                assert ("net" in result.sandbox.enforced) == (network != "host")
                found.setdefault(network, []).append(await spare_of(runner))
            assert len({*found["none"], *found["host"]}) == 4

    asyncio.run(main())


@needs_spares
def test_what_is_mounted_meanwhile_is_seen(tmp_path) -> None:
    """A spare has the mounts of when it was begun: where one has come since, it is given up."""
    place = tmp_path / "mounted"
    place.mkdir()

    async def main() -> None:
        async with Runner() as runner:
            look = call("bash", command=f"cat {place}/file > seen")
            one = job(tmp_path, look, {"text": "done"}, readable=(str(place),))
            await runner.run(one)
            spare = await spare_of(runner)
            subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)
            try:
                (place / "file").write_text("mounted")
                await until(lambda: children_of(zygote_of(runner)) != [spare])
                result = await runner.run(one)
            finally:
                subprocess.run(["umount", place], check=True)
            assert result.committed
            assert (tmp_path / "ws" / "seen").read_text() == "mounted"

    asyncio.run(main())


REPLACES = """
import asyncio, json, os, shutil, subprocess, sys
from pathlib import Path
from forkrun import Job, Runner

shutil.copytree("/etc", "etc", symlinks=True, ignore_dangling_symlinks=True, ignore=lambda at, names:
    [n for n in names if at == "/etc" and n not in ("passwd", "group", "ld.so.cache", "alternatives")])
Path("etc/os-release").write_text("old")
subprocess.run(["mount", "--bind", "etc", "/etc"], check=True)

async def main():
    async with Runner() as runner:
        job = Job(prompt="go", model=sys.argv[1], cwd="ws")
        await runner.run(job)
        children = Path(f"/proc/{runner._launcher._zygote.pid}/task/{runner._launcher._zygote.pid}/children")
        while not children.read_text():
            await asyncio.sleep(0.01)
        spare = int(children.read_text())
        Path("etc/new").write_text("new")
        os.rename("etc/new", "etc/os-release")
        async with runner.spawn(job) as run:
            is_spare = run.pid == spare
            await run.result()
    print(json.dumps({"spare": is_spare, "seen": Path("ws/seen").read_text().split()}))

asyncio.run(main())
"""


@needs_spares
def test_what_is_replaced_meanwhile_is_seen(tmp_path) -> None:
    """A spare shows the files of when it was begun; where one has been replaced since, it does not
    keep the old one."""
    (tmp_path / "ws").mkdir()
    model = script(
        tmp_path / "s.jsonl",
        call("bash", command="cat /etc/os-release >> seen; echo >> seen"),
        {"text": "done"},
    )
    done = subprocess.run(
        ["unshare", "-m", sys.executable, "-c", REPLACES, model],
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"spare": True, "seen": ["old", "new"]}


@needs_spares
def test_an_owner_that_closes_leaves_no_spare(tmp_path) -> None:
    """When the runner has closed, the spare is gone too."""

    async def main() -> None:
        async with Runner() as runner:
            await runner.run(job(tmp_path, {"text": "done"}))
            spare = await spare_of(runner)
            assert os.path.exists(f"/proc/{spare}")
        assert not os.path.exists(f"/proc/{spare}")

    asyncio.run(main())


def test_what_outlives_a_killed_guardian_is_killed_by_it(tmp_path) -> None:
    """Without a process namespace a command can kill the process that watches over it; what it
    leaves behind comes to the zygote, which kills it."""
    command = "setsid sleep 3333 & echo $! > pid; kill -9 $(ps -o ppid= -p $PPID)"

    async def main() -> None:
        async with Runner() as runner:
            one = job(
                tmp_path,
                call("bash", command=command),
                {"text": "done"},
                sandbox="none",
                workspace="live",
                limits=Limits(memory_bytes=None, processes=None),
            )
            await runner.run(one)
            left = int((tmp_path / "ws" / "pid").read_text())
            await runner.run(job(tmp_path, {"text": "done"}))
            wait_until(lambda: not _lives(left))

    asyncio.run(main())


FORKS_THAT_DRAW = """
import os, random, sys, tempfile, uuid
package = type(sys)("forkrun_sandbox")
package.__path__ = [sys.argv[1]]
sys.modules["forkrun_sandbox"] = package
sys.path[:0] = sys.argv[2:-1]
from forkrun.zygote_main import main
random.random(); next(tempfile._get_candidate_names())
def draw(*, summary_fd, **others):
    names = next(tempfile._get_candidate_names()), uuid.uuid4(), random.random()
    os.write(summary_fd, repr(names).encode())
    os._exit(7)
main(draw)
"""


def test_forks_draw_different_random_numbers(monkeypatch) -> None:
    """What is random in one fork is not the same in the next; each status comes back whole."""
    argv = [sys.executable, "-I", "-S", "-c", FORKS_THAT_DRAW, *package_folders()]
    monkeypatch.setattr(
        forkrun.zygote, "zygote_argv", lambda *fds: [*argv, ",".join(map(str, fds))]
    )

    async def main() -> None:
        zygote = Zygote({})
        drawn: list[str] = []
        for _ in range(3):
            child = await zygote.start()
            with open(child.stdout, "rb") as pipe:
                drawn += eval(pipe.read(), {"UUID": str})
            ended = await child.reap()
            assert (ended.status, ended.signal) == (7, None)
            child.channel.close()
            child.upper.close()
            os.close(child.stderr)
        await zygote.close()
        assert len(set(drawn)) == len(drawn) == 9

    asyncio.run(main())
