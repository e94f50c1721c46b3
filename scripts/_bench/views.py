"""A private view of a workspace: opened, read and committed, beside other ways to get a copy."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator

from _bench.measure import Once, Table, in_turn
from forkrun.workspace.changes import read_changes
from forkrun.workspace.commit import commit_changes
from forkrun.workspace.records import Changes
from forkrun.workspace.selection import select_changes
from forkrun.workspace.views import Form, View, open_view

SIZES = (500, 50_000)
FILES_IN_DIRECTORY = 100
EDITS = 5
CP = "`cp -a`"


def tables(options: argparse.Namespace) -> Iterator[Table]:
    for size in SIZES:
        rounds = options.rounds or (20 if size < 10_000 else 3)
        with Tree(size) as tree:
            yield _views(tree, rounds=rounds)
            yield _commits(tree, rounds=rounds)


def _views(tree: Tree, *, rounds: int) -> Table:
    contenders = {
        "open a view (overlay)": tree.opening("overlay"),
        "open a view (copy, where no overlay can be had)": tree.opening("copy"),
        CP: tree.copying(["cp", "-a", tree.path]),
        "`git worktree add`": tree.working(),
    }
    return Table(
        title=f"A private view of {tree.size:,} files",
        unit="ms",
        rows=in_turn(contenders, rounds=rounds),
        baseline=CP,
        notes=["An overlay is mounted by the child as it starts, which is part of its start."],
    )


def _commits(tree: Tree, *, rounds: int) -> Table:
    contenders = {
        f"read {EDITS} edits": tree.reading(),
        f"read and commit {EDITS} edits": tree.committing(),
        "`git status`": tree.running(["git", "status", "--porcelain"]),
    }
    return Table(
        title=f"Changes to a tree of {tree.size:,} files",
        unit="ms",
        rows=in_turn(contenders, rounds=rounds),
        notes=["A commit waits for the disk (fsync of each file, the journal and directories)."],
    )


class Tree:
    """A repository of many small files, and what is measured of it. A context manager."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._count = 0

    def __enter__(self) -> Tree:
        self._stack = contextlib.ExitStack()
        self._folder = self._stack.enter_context(tempfile.TemporaryDirectory())
        self.path = os.path.join(self._folder, "tree")
        self._state = os.path.join(self._folder, "state")
        for number in range(self.size):
            directory = os.path.join(self.path, f"d{number // FILES_IN_DIRECTORY}")
            if number % FILES_IN_DIRECTORY == 0:
                os.makedirs(directory)
            with open(os.path.join(directory, f"f{number}.py"), "w", encoding="utf-8") as file:
                file.write(f"value = {number}\n" * 10)
        git = ["git", "-C", self.path, "-c", "user.name=b", "-c", "user.email=b@b"]
        git += ["-c", "gc.auto=0"]  # which would go on in the background
        for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
            subprocess.run([*git, *command], check=True)
        return self

    def __exit__(self, *details: object) -> None:
        self._stack.close()

    def opening(self, form: Form) -> Once:
        def once() -> float:
            opened = self._view(form)
            began = time.perf_counter()
            opened.__enter__()
            taken = time.perf_counter() - began
            opened.__exit__(None, None, None)
            return taken * 1000

        return once

    def reading(self) -> Once:
        def once() -> float:
            with self._view("overlay") as view:
                self._edit(view)
                began = time.perf_counter()
                _chosen(view)
                return (time.perf_counter() - began) * 1000

        return once

    def committing(self) -> Once:
        def once() -> float:
            with self._view("overlay") as view:
                self._edit(view)
                began = time.perf_counter()
                done = commit_changes(_chosen(view), state_dir=self._state)
                taken = time.perf_counter() - began
            if not done.is_committed:
                raise RuntimeError(f"conflicts: {done.conflicts}")
            return taken * 1000

        return once

    def copying(self, command: list[str]) -> Once:
        def once() -> float:
            target = os.path.join(self._folder, "copy")
            taken = _timed([*command, target])
            shutil.rmtree(target)
            return taken

        return once

    def working(self) -> Once:
        def once() -> float:
            target = os.path.join(self._folder, "worktree")
            git = ["git", "-C", self.path, "worktree"]
            taken = _timed([*git, "add", "-q", "--detach", target])
            subprocess.run([*git, "remove", "--force", target], check=True)
            return taken

        return once

    def running(self, command: list[str]) -> Once:
        return lambda: _timed(command, cwd=self.path)

    def _view(self, form: Form) -> contextlib.AbstractContextManager[View]:
        self._count += 1
        return open_view(self.path, run_id=f"run{self._count}", state_dir=self._state, form=form)

    def _edit(self, view: View) -> None:
        """Leave in the upper directory what a child's edits of files leave there."""
        assert view.upper is not None
        for number in range(EDITS):
            directory = os.path.join(view.upper, f"d{number}")
            os.mkdir(directory, 0o755)
            name = f"f{number * FILES_IN_DIRECTORY}.py"
            with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
                file.write(f"edited = {self._count}\n")


def _chosen(view: View) -> Changes:
    changes = read_changes(view)
    return select_changes(view, changes, may_write=lambda path: True).changes


def _timed(command: list[str], *, cwd: str | None = None) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, cwd=cwd, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - began) * 1000
