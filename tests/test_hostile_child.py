"""Whatever a child does or fails to do, there is one result, of the right kind, and no child left."""

import asyncio
import json
import resource
import sys
from pathlib import Path

import msgspec
import pytest
from support_cli import call, script

import forkrun.starting
import forkrun.zygote
from forkrun import Job, Limits, Result, Runner
from forkrun.starting import package_folders

CHILD = str(Path(__file__).with_name("hostile_child.py"))
ZYGOTE = str(Path(__file__).with_name("hostile_zygote.py"))


@pytest.fixture
def run_child(start, tmp_path, monkeypatch):
    """Run a job whose worker is the hostile child, misbehaving in the way named."""
    model = script(
        tmp_path / "s.jsonl", {"text": "working", **call("bash", command="true")}, {"text": "FINAL"}
    )
    workspace = tmp_path / "ws"
    workspace.mkdir()

    def run(way: str, *, transcript: str | None = None, **limits: float) -> Result:
        program = CHILD if start == "exec" else ZYGOTE
        argv = [sys.executable, "-I", "-S", program, way, *package_folders()]
        monkeypatch.setattr(
            forkrun.starting, "worker_argv", lambda *fds: [*argv, ",".join(map(str, fds))]
        )
        monkeypatch.setattr(
            forkrun.zygote, "zygote_argv", lambda *fds: [*argv, ",".join(map(str, fds))]
        )
        job = Job(
            prompt="go",
            model=model,
            cwd=str(workspace),
            workspace="live",
            transcript=transcript,
            limits=Limits(**limits),
        )

        async def once() -> Result:
            async with Runner(start=start) as runner:
                return await runner.run(job)

        return asyncio.run(once())

    return run


def test_a_child_that_behaves_completes(run_child) -> None:
    """The control: the same child, told to do nothing wrong, brings back the summary."""
    result = run_child("none")
    assert (result.stop_reason, result.summary) == ("completed", "FINAL")


STEPS = ["start", "told", "ready", "asked", "turn", "running", "ran", "finish", "written"]


@pytest.mark.parametrize("how", ["exit0", "exit255", "SIGSEGV", "SIGKILL"])
@pytest.mark.parametrize("step", STEPS)
def test_a_death_at_any_step_is_a_crash(step: str, how: str, run_child) -> None:
    """Dying early is never a success; the result names the signal or the status."""
    result = run_child(f"{step}:{how}")
    assert result.stop_reason == "crashed"
    assert result.exit_code == 1
    said = how if how.startswith("SIG") else f"status {how.removeprefix('exit')}"
    assert said in result.error.message
    assert result.exit_signal == {"SIGSEGV": 11, "SIGKILL": 9}.get(how)
    if step in ("start", "told", "ready"):
        assert result.summary == ""
    elif step != "asked":  # there the child races the reply
        assert "working" in result.summary or "FINAL" in result.summary


@pytest.mark.parametrize("how", ["exit255", "SIGSEGV"])
def test_a_death_after_the_last_frame_is_a_crash(how: str, run_child) -> None:
    """The exit status counts too."""
    assert run_child(f"done:{how}").stop_reason == "crashed"


@pytest.mark.parametrize(
    "way",
    [
        *("length-zero", "length-huge", "garbage", "half-a-frame", "nested", "unknown-field"),
        *("unknown-message", "glued", "closed-channel", "ask-without-results", "foreign-id"),
        *("twice", "done-before-ready", "fault", "no-summary", "forged-summary", "stdout-flood"),
    ],
)
def test_a_broken_protocol_is_a_crash(way: str, run_child) -> None:
    """Hostile bytes and messages out of turn end the run as crashed, with the reason."""
    result = run_child(way)
    assert result.stop_reason == "crashed", result
    assert result.error.message
    assert json.loads(msgspec.json.encode(result))["type"] == "result"


def test_a_frame_over_the_cap_is_never_allocated(run_child) -> None:
    """The length is checked before the parent allocates anything for the frame."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert run_child("length-huge").stop_reason == "crashed"
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 64 * 1024


def test_a_flood_on_stdout_stays_bounded(run_child) -> None:
    """256 MiB on stdout neither block the child nor fill the parent."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert run_child("stdout-flood").stop_reason == "crashed"
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 64 * 1024


def test_a_huge_result_is_cut_to_what_a_tool_may_say(run_child, tmp_path) -> None:
    """Ten megabytes from a subverted child reach neither the transcript nor the model."""
    transcript = tmp_path / "t.jsonl"
    result = run_child("huge-result", transcript=str(transcript))
    assert (result.stop_reason, result.summary) == ("completed", "FINAL")
    assert transcript.stat().st_size < 200_000
    assert "larger than a tool's may be" in transcript.read_text()


def test_a_huge_fault_is_one_bounded_printable_line(run_child) -> None:
    """What a child says of itself is cut, and cannot act on a terminal."""
    result = run_child("huge-fault")
    assert result.stop_reason == "crashed"
    assert len(result.error.message) < 4_000
    assert "\x1b" not in result.error.message


@pytest.mark.parametrize("way", ["stderr-flood", "closed-streams", "fds"])
def test_noise_is_only_noise(way: str, run_child) -> None:
    """Floods of stderr, closed streams and descriptors sent along change nothing of the result."""
    result = run_child(way)
    assert (result.stop_reason, result.summary) == ("completed", "FINAL"), result.error


@pytest.mark.parametrize("step", ["told", "ready", "asked", "running", "finish"])
def test_a_child_that_hangs_is_ended_at_the_deadline(step: str, run_child) -> None:
    """A child that says nothing is killed when its time is up."""
    result = run_child(f"{step}:hang", timeout_s=0.5)
    assert result.stop_reason == "timeout"
    assert result.limit.kind == "wall_clock"


@pytest.mark.parametrize("how", ["SIGSTOP", "hang"])
def test_a_stopped_child_is_ended_when_idle(how: str, run_child) -> None:
    """A stopped child cannot be asked to end; it is killed all the same."""
    result = run_child(f"running:{how}", idle_timeout_s=0.5)
    assert result.stop_reason == "idle_timeout"


def test_a_worker_at_its_bound_on_cpu_time_is_no_crash(run_child) -> None:
    """A worker that spins is ended by the kernel, and the result names the bound."""
    result = run_child("spin", cpu_s=1)
    assert result.stop_reason == "resource_limit", result.error
    assert (result.limit.kind, result.limit.value) == ("cpu", 1)


def test_cpu_time_that_was_not_used_is_a_crash(run_child) -> None:
    """The signal alone proves nothing: a child can send it to itself."""
    assert run_child("ready:SIGXCPU", cpu_s=60).stop_reason == "crashed"


def test_a_sandbox_that_cannot_be_had_is_no_run(run_child) -> None:
    """The child's word that it is not confined ends the run before any call of the model."""
    result = run_child("no-sandbox")
    assert (result.stop_reason, result.exit_code) == ("sandbox_unavailable", 125)
    assert "mount" in result.error.message
    assert result.turns == 0
