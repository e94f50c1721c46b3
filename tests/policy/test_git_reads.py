"""Allowed git reads run nothing that a repository's configuration names; a real git is the judge."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from forkrun.policy import Policy

READS = Policy.parse(
    allow=["bash(git status *)", "bash(git diff *)", "bash(git log *)", "bash(git show *)"]
)
HOOK = "#!/bin/sh\ntouch P\n"


def git(repository: Path, *argv: str) -> None:
    subprocess.run(["git", *argv], cwd=repository, check=True, capture_output=True, env=env())


def env() -> dict[str, str]:
    who = {"NAME": "a", "EMAIL": "a@example.org"}
    people = {f"GIT_{p}_{k}": v for p in ("AUTHOR", "COMMITTER") for k, v in who.items()}
    return {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", **people}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Make a repository with one commit and one changed file."""
    git(tmp_path, "init", "-q")
    (tmp_path / "f").write_text("a\n")
    (tmp_path / ".gitattributes").write_text("f diff=evil\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "x")
    (tmp_path / "f").write_text("b\n")
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "post-index-change").write_text(HOOK)
    (hooks / "post-index-change").chmod(0o755)
    return tmp_path


def run(command: str, repository: Path, extra: dict[str, str]) -> tuple[bool, bytes]:
    """Run a command; say whether P appeared, and what it printed."""
    (repository / "P").unlink(missing_ok=True)
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=repository,
        env=env() | extra,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert not extra or done.returncode == 0, done.stderr
    return (repository / "P").exists(), done.stdout


@pytest.mark.parametrize(
    ("key", "value", "command"),
    [
        ("diff.external", "touch P #", "git diff"),
        ("diff.evil.command", "touch P #", "git diff"),
        ("diff.evil.textconv", "touch P; cat", "git diff"),
        ("diff.evil.textconv", "touch P; cat", "git log -p"),
        ("diff.evil.textconv", "touch P; cat", "git show"),
        ("core.fsmonitor", "touch P; false", "git status"),
        ("core.fsmonitor", "touch P; false", "git diff"),
        ("core.hooksPath", "hooks", "touch -d 2001-01-01 .gitattributes; git status"),
    ],
)
def test_a_read_runs_nothing_that_the_configuration_names(
    key: str, value: str, command: str, repository: Path
) -> None:
    """It does without the variables of the policy (the control), and not with them."""
    git(repository, "config", key, value)
    ran, _ = run(command, repository, {})
    assert ran, "the control failed"
    ran, _ = run(command, repository, READS.environment_for(command))
    assert not ran


def test_reads_say_what_they_always_say(repository: Path) -> None:
    """Switching programs off does not change what git prints, in either exit code or text."""
    for command in ("git diff", "git status -s", "git log --format=%s", "git show --stat"):
        plain, safe = (run(command, repository, e)[1] for e in ({}, READS.environment_for("git")))
        assert plain == safe
        assert plain


@pytest.mark.parametrize(
    "command",
    [
        "git -c core.fsmonitor='touch P; false' status",
        "git -c diff.external='touch P #' diff",
        "git --exec-path=evil status",
        "git -C . -c diff.external='touch P #' diff",
        "git --config-env=diff.external=X diff",
        "git diff --output=P",
        "git log --outpu=P",
        "git log -1 --output P",
        "git diff --ext-diff",
        "git diff --text",
        "git show --show-signature",
        "timeout 3 git diff",
        "command git diff",
        "env git diff",
        "GIT_EXTERNAL_DIFF='touch P #' git diff",
        "GIT_CONFIG_COUNT=1 git diff",
        "HOME=. git diff",
        "XDG_CONFIG_HOME=. git status",
        "git push",
    ],
)
def test_what_would_switch_them_on_again_is_denied(command: str) -> None:
    """Global options, unsafe options, variables and wrappers void the rule."""
    assert READS.judge("bash", command) is not None


@pytest.mark.parametrize(
    "command", ["git diff", "git diff HEAD~1 -- f", "git log --oneline -3", "git status -sb"]
)
def test_ordinary_reads_are_allowed(command: str) -> None:
    """The rule does what it is for."""
    assert READS.judge("bash", command) is None


def test_only_policies_about_single_commands_change_git() -> None:
    """Where all of bash is allowed, or the command is another, nothing is set."""
    assert Policy.parse().environment_for("git diff") == {}
    assert Policy.parse(allow=["bash"]).environment_for("git diff") == {}
    assert READS.environment_for("ls") == {}
