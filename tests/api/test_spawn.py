"""`spawn`, `run` and `Runner`: the life of a run in the hands of a host program."""

import asyncio
from pathlib import Path

import pytest
from support_api import replies, sleeping, until

import forkrun
from forkrun.models.base import Request


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    folder.mkdir()
    return folder


STEP = {"tool_use": [{"name": "bash", "input": {"command": "echo hello"}}]}


def test_run_gives_the_result(tmp_path: Path, workspace: Path) -> None:
    """`await run(…)` gives the one result of the run."""
    model = replies(tmp_path / "s", STEP, {"text": "FINAL"})
    result = asyncio.run(forkrun.run("go", model=model, cwd=workspace, label="one"))
    assert (result.stop_reason, result.summary, result.turns) == ("completed", "FINAL", 2)
    assert result.label == "one"


def test_events_come_in_order_and_the_result_last(tmp_path: Path, workspace: Path) -> None:
    """The first event is `started`, the last the result, the times never go back."""
    model = replies(tmp_path / "s", STEP, {"text": "FINAL"})

    async def watch() -> tuple[list[forkrun.Event], forkrun.Result, int | None]:
        async with forkrun.spawn("go", model=model, cwd=workspace) as run:
            pid = run.pid
            events = [event async for event in run.events()]
            return events, await run.result(), pid

    events, result, pid = asyncio.run(watch())
    assert isinstance(pid, int)
    assert isinstance(events[0], forkrun.StartedEvent)
    assert isinstance(events[-1], forkrun.ResultEvent)
    assert events[-1].result == result
    assert sum(isinstance(event, forkrun.ResultEvent) for event in events) == 1
    assert [event.t for event in events] == sorted(event.t for event in events)


def test_leaving_the_block_ends_the_tree(tmp_path: Path, workspace: Path) -> None:
    """A block left in the middle of a command leaves no process; the result says "cancelled"."""
    model = sleeping(tmp_path / "s")

    async def leave() -> tuple[forkrun.Result, list[forkrun.Event]]:
        async with forkrun.spawn("go", model=model, cwd=workspace) as run:
            async for event in run.events():
                if isinstance(event, forkrun.ToolCallEvent):
                    break
        return await run.result(), [event async for event in run.events()]

    result, rest = asyncio.run(leave())
    assert result.stop_reason == "cancelled"
    assert isinstance(rest[-1], forkrun.ResultEvent)


def test_an_error_in_the_block_ends_the_tree(tmp_path: Path, workspace: Path) -> None:
    """The host's own exception passes through, after the tree is gone."""
    model = sleeping(tmp_path / "s")

    async def fail() -> None:
        async with forkrun.spawn("go", model=model, cwd=workspace):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(fail())


def test_cancel_gives_a_result(tmp_path: Path, workspace: Path) -> None:
    """`run.cancel()` ends the run; `result()` returns instead of raising."""
    model = sleeping(tmp_path / "s")

    async def cancel() -> forkrun.Result:
        async with forkrun.spawn("go", model=model, cwd=workspace) as run:
            run.cancel()
            return await run.result()

    assert asyncio.run(cancel()).stop_reason == "cancelled"


@pytest.mark.parametrize("way", ["wait_for", "timeout", "task"])
def test_cancelling_the_awaiting_task_ends_the_tree(
    way: str, tmp_path: Path, workspace: Path
) -> None:
    """A host's time limit and its `task.cancel()` raise what they always raise, with no child."""
    model = sleeping(tmp_path / "s")
    seen: list[forkrun.Event] = []

    async def host() -> None:
        run = forkrun.run("go", model=model, cwd=workspace, on_event=seen.append)
        if way == "wait_for":
            await asyncio.wait_for(run, 0.3)
        elif way == "timeout":
            async with asyncio.timeout(0.3):
                await run
        else:
            task = asyncio.ensure_future(run)
            await asyncio.sleep(0.3)
            task.cancel()
            await task

    with pytest.raises(asyncio.CancelledError if way == "task" else TimeoutError):
        asyncio.run(host())
    assert isinstance(seen[-1], forkrun.ResultEvent)
    assert seen[-1].result.stop_reason == "cancelled"


def test_a_cancel_in_the_middle_of_the_end_is_not_lost(tmp_path: Path, workspace: Path) -> None:
    """A cancellation that comes while the block ends is raised when the tree is gone."""
    model = sleeping(tmp_path / "s")

    async def host() -> None:
        leaving = asyncio.Event()

        async def block() -> None:
            async with forkrun.spawn("go", model=model, cwd=workspace):
                leaving.set()

        task = asyncio.ensure_future(block())
        await leaving.wait()
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(host())


def test_what_cannot_start_raises_on_entering(tmp_path: Path) -> None:
    """A workspace that does not exist is a UsageError of the block's first line."""

    async def enter() -> None:
        async with forkrun.spawn("go", model=replies(tmp_path / "s", STEP), cwd=tmp_path / "no"):
            raise AssertionError("entered")

    with pytest.raises(forkrun.UsageError, match="does not exist"):
        asyncio.run(enter())


def test_a_runner_ends_the_runs_that_still_go_on(tmp_path: Path, workspace: Path) -> None:
    """Leaving a `Runner` ends the tree of each run, though its task was never awaited."""
    model = sleeping(tmp_path / "s")

    async def host() -> list[str]:
        async with forkrun.Runner(model=model) as runner:
            tasks = [asyncio.ensure_future(runner.run("go", cwd=workspace)) for _ in range(2)]
            await asyncio.sleep(0.3)
        return [task.result().stop_reason for task in tasks]

    assert asyncio.run(host()) == ["cancelled", "cancelled"]


def test_a_runner_runs_many(tmp_path: Path, workspace: Path) -> None:
    """Runs of one runner go on together, each with its own result."""

    async def host() -> list[str]:
        async with forkrun.Runner(model=Echo()) as runner:
            runs = (runner.run(f"say {n}", cwd=workspace) for n in range(8))
            return [result.summary for result in await asyncio.gather(*runs)]

    assert asyncio.run(host()) == [f"say {n}" for n in range(8)]


class Echo:
    """A model of a host's own: it answers with the prompt."""

    name = "echo"

    async def reply(self, request: Request, heard: object) -> forkrun.Reply:
        import msgspec

        prompt = msgspec.json.decode(request.messages[0])["content"]
        text = prompt if isinstance(prompt, str) else prompt[-1]["text"]
        block = msgspec.json.encode({"type": "text", "text": text})
        return forkrun.Reply(
            content=(block,), stop_reason="end_turn", usage=forkrun.Usage(), model="echo"
        )

    async def close(self) -> None:
        """Hold nothing."""


def test_events_outside_of_the_block_are_an_error(tmp_path: Path) -> None:
    """Events are kept only where a block says that somebody may read them."""

    async def host() -> None:
        async with forkrun.Runner(model=replies(tmp_path / "s", STEP)) as runner:
            runner.spawn("go").events()

    with pytest.raises(forkrun.UsageError, match="inside the block"):
        asyncio.run(host())


def test_a_run_starts_once(tmp_path: Path, workspace: Path) -> None:
    """A run that has ended cannot be entered again."""

    async def host() -> None:
        async with forkrun.Runner(model=replies(tmp_path / "s", {"text": "x"})) as runner:
            run = runner.spawn("go", cwd=workspace)
            await run.result()
            async with run:
                pass

    with pytest.raises(forkrun.UsageError, match="once"):
        asyncio.run(host())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_turns": 3}, "max_turns"),
        ({"tool": ["bash"]}, "did you mean tools"),
        ({"tools": "bash"}, "tools"),
        ({"limits": {"max_turns": "many"}}, "limits.max_turns"),
        ({"workspace": "cloud"}, "workspace"),
        ({"tools": ["knife"]}, "knife"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_options_that_cannot_be_meant(options: dict, said: str, tmp_path: Path) -> None:
    """An unknown or ill-typed option is a UsageError that names it, before anything starts."""
    model = replies(tmp_path / "s", STEP)
    with pytest.raises(forkrun.UsageError) as caught:
        asyncio.run(forkrun.run("go", model=model, cwd=tmp_path, **options))
    assert said in f"{caught.value} {caught.value.hint}"


def test_a_job_takes_no_further_options(tmp_path: Path) -> None:
    """A whole `Job` may stand in place of the prompt, and then is all that counts."""
    job = forkrun.Job(prompt="go", cwd=str(tmp_path))
    model = replies(tmp_path / "s", {"text": "x"})
    assert asyncio.run(forkrun.run(job, model=model)).stop_reason == "completed"
    with pytest.raises(forkrun.UsageError, match="label"):
        asyncio.run(forkrun.run(job, model=model, label="x"))


def test_the_awaiting_side_sees_the_child_before_it_ends(tmp_path: Path, workspace: Path) -> None:
    """Inside the block `pid` is a live process; behind it, it is gone."""
    model = sleeping(tmp_path / "s")

    async def host() -> int:
        async with forkrun.spawn("go", model=model, cwd=workspace) as run:
            assert run.pid is not None
            assert Path(f"/proc/{run.pid}").exists()
            return run.pid

    pid = asyncio.run(host())
    until(lambda: not Path(f"/proc/{pid}").exists())
