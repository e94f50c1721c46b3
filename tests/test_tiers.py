"""Which confinement a run gets on hosts that deny some of it, and what it says: never silence."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support_cli import call, environment, script
from support_denials import denying

WRITES = (call("bash", command="echo changed > a.txt"), {"text": "done"})


def run_on(host: str | None, tmp_path: Path, *arguments: str, without_bwrap: bool = True):
    """Run a job on a host that denies what `host` names; give exit code, result and stderr."""
    workspace = tmp_path / "ws"
    workspace.mkdir(exist_ok=True)
    (workspace / "a.txt").write_text("before\n")
    model = script(tmp_path / "script.jsonl", *WRITES)
    front = denying(*([host] if host else []), python=sys.executable)
    done = subprocess.run(
        [
            *(*front, sys.executable, "-m", "forkrun", "spawn", "--prompt", "go", "--model", model),
            *("--output-format", "json", *arguments),
        ],
        cwd=workspace,
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    result = json.loads(done.stdout) if done.stdout else {}
    return done.returncode, result, done.stderr.decode()


def test_the_full_tier_where_nothing_is_denied(tmp_path: Path) -> None:
    """The control: the same filter, denying nothing, leaves the full tier in force."""
    code, result, stderr = run_on(None, tmp_path)
    assert (code, result["sandbox"]["tier"]) == (0, "full"), stderr
    missing = {each["layer"] for each in result["sandbox"]["missing"]}
    assert missing <= (set() if os.geteuid() == 0 else {"memory"})
    assert (tmp_path / "ws" / "a.txt").read_text() == "changed\n"


WITHOUT_SETPCAP = """
import asyncio, ctypes, os, sys
if len(sys.argv) == 3:
    assert ctypes.CDLL(None).prctl(24, 8, 0, 0, 0) == 0  # PR_CAPBSET_DROP, CAP_SETPCAP
    os.execv(sys.executable, [sys.executable, "-c", os.environ["CODE"], *sys.argv[1:], "again"])

from forkrun import Job, Runner

async def main():
    async with Runner(start=sys.argv[1]) as runner:
        for _ in range(2):
            result = await runner.run(Job(prompt="go", model=sys.argv[2]))
            print(result.stop_reason, result.sandbox.tier, result.error)

asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights to do without")
def test_root_in_a_container_may_lack_a_right(start: str, tmp_path: Path) -> None:
    """With what namespaces need and not CAP_SETPCAP, as some containers have it, all is the same."""
    workspace = tmp_path / "ws"
    workspace.mkdir()
    model = script(tmp_path / "script.jsonl", {"text": "done"})
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SETPCAP, start, model],
        cwd=workspace,
        env=environment(tmp_path, CODE=WITHOUT_SETPCAP),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.splitlines() == ["completed full None"] * 2, done.stderr


@pytest.mark.parametrize("host", ["unshare", "mount", "seccomp", "landlock"])
def test_required_ends_before_anything_is_run(host: str, tmp_path: Path) -> None:
    """125, the layer by name with its remedy, no turn of the model, no byte changed."""
    code, result, stderr = run_on(host, tmp_path)
    assert (code, result["stop_reason"]) == (125, "sandbox_unavailable"), stderr
    assert result["turns"] == 0
    assert "remedy" in result["error"]["message"] or "doctor" in result["error"]["message"]
    assert (tmp_path / "ws" / "a.txt").read_text() == "before\n"


def test_lsm_goes_on_without_namespaces(tmp_path: Path) -> None:
    """Where namespaces are denied, the level lsm runs by Landlock and seccomp, and says so."""
    code, result, stderr = run_on("unshare", tmp_path, "--sandbox", "lsm")
    assert (code, result["sandbox"]["tier"]) == (0, "lsm"), stderr
    layers = {each["layer"] for each in result["sandbox"]["missing"]}
    assert {"user", "mount", "pid", "net"} <= layers
    assert "not confined by user" in stderr
    assert (tmp_path / "ws" / "a.txt").read_text() == "changed\n"


@pytest.mark.parametrize("host", ["unshare", "mount", "landlock"])
def test_best_effort_goes_on_and_says_what_is_missing(host: str, tmp_path: Path) -> None:
    """The run completes; what is not enforced stands in the result and on stderr."""
    code, result, stderr = run_on(host, tmp_path, "--sandbox", "best-effort")
    assert code == 0, stderr
    assert result["sandbox"]["missing"]
    assert "not confined by" in stderr


def test_none_is_the_users_word(tmp_path: Path) -> None:
    """With `none` nothing is asked for, and everything that is missing is named."""
    code, result, stderr = run_on("unshare", tmp_path, "--sandbox", "none")
    assert (code, result["sandbox"]["tier"]) == (0, "none"), stderr
    assert result["sandbox"]["missing"]
