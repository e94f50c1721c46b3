"""The right tier, or a refusal that names what is missing; never less in silence."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from support_denials import denying
from support_sandbox import Person, require

LEVELS = {
    # host that denies: tier for required, lsm, best-effort
    "unshare": (None, "lsm", "lsm"),
    "mount": (None, "lsm", "lsm"),
    "landlock": (None, None, "full"),
    "seccomp": (None, None, "none"),
}


def _run_on(
    host: str, who: Person, workspace: Path, level: str
) -> subprocess.CompletedProcess[str]:
    argv = who.argv(
        "-v", "--sandbox", level, "--", "sh", "-c", "echo ran; touch /var/tmp/x-forkrun"
    )
    return who.run_freely([*denying(host, python=who.python), *argv], cwd=workspace)


@pytest.mark.parametrize("host", LEVELS)
@pytest.mark.parametrize("level", ["required", "lsm", "best-effort"])
def test_a_host_that_denies(who: Person, workspace: Path, host: str, level: str) -> None:
    """A layer that is denied costs its tier: the next one that the level allows, or 125."""
    expected = LEVELS[host][("required", "lsm", "best-effort").index(level)]
    ended = _run_on(host, who, workspace, level)
    assert "tier full refused" in ended.stderr
    assert "remedy: " in ended.stderr
    if expected is None:
        assert (ended.returncode, ended.stdout) == (125, "")
        assert "cannot be had here" in ended.stderr
    else:
        assert ended.stdout == "ran\n", ended.stderr
        assert f"tier {expected}: " in ended.stderr
        assert "missing: " in ended.stderr.split(f"tier {expected}: ")[1]
    assert not Path("/var/tmp/x-forkrun").exists()


def test_a_host_without_keyctl(who: Person, workspace: Path) -> None:
    """Where a container denies keyctl to us and so to the child, the tier stays and that is said."""
    ended = _run_on("keyctl", who, workspace, "required")
    assert ended.stdout == "ran\n"
    assert "tier full: " in ended.stderr
    assert "missing: keyring: keyctl: Operation not permitted" in ended.stderr


def test_a_level_of_none_asks_for_nothing(who: Person, workspace: Path) -> None:
    """On the user's word nothing is confined, and that is said."""
    ended = who.run(["sh", "-c", "echo $$"], "-v", "--sandbox", "none", cwd=workspace)
    assert ended.returncode == 0
    assert "tier none: rlimits" in ended.stderr
    assert "missing: mount" in ended.stderr


def test_doctor_says_whether_required_works(who: Person, workspace: Path) -> None:
    """Every layer with its state and how it was tried; what is missing with a remedy."""
    import forkrun_sandbox

    directory = os.path.dirname(os.path.abspath(forkrun_sandbox.__file__))
    from forkrun_sandbox.start import interpreter

    bootstrap = interpreter("spec", "Spec")[4].rsplit("sys.argv[:4]", 1)[0]
    code = bootstrap + (
        "import json; from dataclasses import asdict; from forkrun_sandbox import probe\n"
        "print(json.dumps(asdict(probe.examine())))"
    )
    argv = [who.python, "-I", "-S", "-c", code, directory, "x", "y"]
    full = json.loads(who.run_freely(argv, cwd=workspace).stdout)
    assert full["tier"] == "full" and full["required_works"]
    denied = who.run_freely([*denying("unshare", python=who.python), *argv], cwd=workspace)
    told = json.loads(denied.stdout)
    assert told["tier"] == "lsm" and not told["required_works"]
    user = next(layer for layer in told["layers"] if layer["name"] == "user")
    assert not user["works"] and user["remedy"] and user["probed_by"]


def test_a_bwrap_that_only_answers_is_not_believed(
    who: Person, workspace: Path, place: Path
) -> None:
    """A program called bwrap that is first on PATH and does nothing proves nothing."""
    (place / "bwrap").write_text("#!/bin/sh\necho bubblewrap 0.9\n")
    (place / "bwrap").chmod(0o755)
    environment = {**os.environ, "PATH": f"{place}:{os.environ['PATH']}"}
    argv = who.argv("--sandbox", "required", "--", "echo", "ran")
    argv = [*denying("unshare", python=who.python), *argv]
    ended = who.run_freely(argv, cwd=workspace, env=environment)
    assert (ended.returncode, ended.stdout) == (125, "")


def test_the_bwrap_tier_confines(who: Person, workspace: Path, outside: Path) -> None:
    """Where our own mount calls are refused and bubblewrap's are not, it takes their place."""
    require(os.path.exists("/usr/bin/bwrap"), "no bubblewrap installed")
    command = (
        f"id -u; cat {outside}/secret; touch /usr/x; echo in > written; unshare -U true; ls /proc"
    )
    argv = who.argv("-v", "--sandbox", "required", "--", "sh", "-c", command)
    argv = [*denying("new mount calls", python=who.python), *argv]
    ended = who.run_freely(argv, cwd=workspace)
    assert "tier bwrap: " in ended.stderr, ended.stderr
    assert "canary" not in ended.stdout
    assert ended.stdout.startswith(f"{workspace.stat().st_uid}\n")
    assert (workspace / "written").read_text() == "in\n"
    assert "unshare failed: Operation not permitted" in ended.stderr
    assert sum(word.isdigit() for word in ended.stdout.split()) <= 8
