"""`forkrun apply` and `forkrun recover`: what runs have left is committed, finished or undone."""

from __future__ import annotations

import math
import os

from forkrun.cli import tell
from forkrun.errors import UsageError
from forkrun.result import EXIT_CODES
from forkrun.settled import in_words
from forkrun.settling import conflict_in_words
from forkrun.state import made_state_folder, state_folder
from forkrun.text import sayable
from forkrun.transaction import tidy
from forkrun.workspace import commit
from forkrun.workspace.keep import apply_patch
from forkrun.workspace.views import check_workspace

SHOWN = 20


def apply(patch_or_result: str, *, cwd: str) -> int:
    """Commit a kept patch, name what it changed on stdout, and give the exit code."""
    _check(cwd)
    state = made_state_folder(os.environ)
    done = apply_patch(patch_or_result, workspace=cwd, state_dir=state)
    for each in done.recovered:
        tell(recovery_in_words(in_words(each)))
    if not done.is_committed:
        tell(f"error: {conflict_in_words(done.conflicts).message}")
        return EXIT_CODES["conflict"]
    tell(f"applied: {patch_or_result}")
    return 0


def recover(cwd: str) -> int:
    """Make good the commits that were killed in a workspace, and remove what killed runs have left;
    say also where else there were commits."""
    _check(cwd)
    state = state_folder(os.environ)
    recovered = tidy(cwd, environ=os.environ, keep_days=math.inf, runs_follow=False)
    for each in recovered:
        tell(recovery_in_words(each))
    if not recovered:
        tell(f"nothing to recover in {os.path.realpath(cwd)}")
    for workspace in commit.interrupted(state):
        tell(f"a commit was killed, or is under way, in {sayable(workspace)}")
    return 0


def recovery_in_words(recovery: commit.Recovery) -> str:
    """Say how a commit that was killed was made good."""
    paths = ", ".join(recovery.paths[:SHOWN])
    more = f" and {len(recovery.paths) - SHOWN} more" if len(recovery.paths) > SHOWN else ""
    return f"a commit that was killed was {recovery.outcome}: {paths}{more}"


def _check(cwd: str) -> None:
    if not os.path.isdir(cwd):
        raise UsageError(f"the workspace is no directory: {cwd}")
    check_workspace(cwd, home=os.environ.get("HOME") or "/")
