"""A private view of a large workspace: opened, five files edited, committed."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from _bench.measure import Table, in_turn
from forkrun import Job
from forkrun.models.base import Heard, Reply, Request, Usage

FILES, FOLDERS = 5_000, 50
EDIT = "for n in 1 2 3 4 5; do echo edited >> d$n/f$n; done"
COPY = "cp -a"


class Editing:
    """A model that has five files edited, and ends."""

    name = "offline"

    def __init__(self) -> None:
        self.asked_at = 0.0

    async def reply(self, request: Request, heard: Heard) -> Reply:
        self.asked_at = self.asked_at or time.monotonic()
        call = (
            b'{"type":"tool_use","id":"t1","name":"bash","input":{"command":"'
            + EDIT.encode()
            + b'"}}'
        )
        is_first = request.number == 0
        return Reply(
            content=(call if is_first else b'{"type":"text","text":"done"}',),
            stop_reason="tool_use" if is_first else "end_turn",
            usage=Usage(),
            model=self.name,
        )

    async def close(self) -> None:
        """Hold nothing."""


def tables(options: argparse.Namespace) -> Iterator[Table]:
    from _bench.api import Bench

    with Bench() as bench:
        make_tree(bench.workspace)
        model = Editing()
        runner = bench.runner(model, start="warm")
        contenders = {
            "a run that commits 5 edits, whole": _run(bench, runner, model, until_asked=False),
            "the same, until the model is asked": _run(bench, runner, model, until_asked=True),
            COPY: lambda: _copied(bench.workspace),
            "git worktree add": lambda: _worktree(bench.workspace),
        }
        rows = in_turn(contenders, rounds=options.rounds or 7)
    yield Table(title=f"A workspace of {FILES:,} files", unit="ms", rows=rows, baseline=COPY)
    from _bench import views

    yield from views.tables(options)


def make_tree(root: str) -> None:
    """Lay small files into a directory and commit them to git."""
    for folder in range(FOLDERS):
        os.makedirs(f"{root}/d{folder}", exist_ok=True)
        for number in range(FILES // FOLDERS):
            with open(f"{root}/d{folder}/f{number}", "w", encoding="utf-8") as file:
                file.write(f"{folder} {number}\n" * 20)
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        _git(root, *arguments)


def _git(root: str, *arguments: str) -> None:
    identity = ["-c", "user.name=bench", "-c", "user.email=bench@example.invalid"]
    subprocess.run(["git", "-C", root, *identity, *arguments], check=True, capture_output=True)


def _run(bench: Any, runner: Any, model: Editing, *, until_asked: bool) -> Callable[[], float]:
    def once() -> float:
        model.asked_at = 0.0
        began = time.monotonic()
        result = bench.loop.run(runner.run(Job(prompt="Edit.", cwd=bench.workspace)))
        ended = time.monotonic()
        if result.stop_reason != "completed" or len(result.changes) != 5:
            raise RuntimeError(str(result.error or result.changes))
        return ((model.asked_at if until_asked else ended) - began) * 1000

    return once


def _copied(root: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        subprocess.run(["cp", "-a", root, f"{folder}/copy"], check=True)
        return (time.monotonic() - began) * 1000


def _worktree(root: str) -> float:
    place = tempfile.mkdtemp()
    os.rmdir(place)
    began = time.monotonic()
    _git(root, "worktree", "add", "-q", "--detach", place)
    took = (time.monotonic() - began) * 1000
    shutil.rmtree(place)
    with contextlib.suppress(subprocess.CalledProcessError):
        _git(root, "worktree", "prune")
    return took
