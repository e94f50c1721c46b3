"""A commit that is killed at any instant is finished or undone by the next start."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from pathlib import Path

import pytest
from support_views import Bench, picture, require_overlay, work_in

from forkrun.workspace import steps
from forkrun.workspace.changes import read_changes
from forkrun.workspace.commit import commit_changes, interrupted, recover

SCRIPT = """
echo new > edit; rm gone; mkdir -p n/m; echo z > n/m/z; chmod 750 script; ln -sfn edit link; rm -r tree
rm was-file; mkdir was-file; echo i > was-file/i; rm -r was-dir; echo f > was-dir; chmod 700 inner
"""
_CALLS = (
    "open",
    "rename",
    "link",
    "unlink",
    "mkdir",
    "rmdir",
    "symlink",
    "chmod",
    "fchmod",
    "write",
    "fsync",
    "close",
)


@pytest.fixture
def quick_disk(tmp_path):
    """A directory whose fsync costs nothing, where there is one."""
    if not os.path.isdir("/dev/shm"):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as path:
        yield Path(path)


@pytest.fixture
def bench(quick_disk):
    """A workspace with something of every kind, seen through a copy (the commit is the same)."""
    made = Bench(quick_disk, "copy")
    yield made
    assert made.residue() == []


def fill(bench):
    for name in (
        "edit",
        "gone",
        "script",
        "tree/a",
        "tree/b/c",
        "was-file",
        "was-dir/x",
        "inner/x",
        "kept",
    ):
        bench.write(name, f"{name}\n")
    os.symlink("gone", bench.workspace / "link")


def clear(bench):
    for path in sorted(bench.workspace.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def in_child(act, *, kill_at=None, calls=_CALLS, kill_after_s=None):
    """Run something in a forked child that is killed: before its n-th call, or after a time."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, b"x")
            if kill_at is not None:
                _kill_before(kill_at, calls)
            act()
        finally:
            os._exit(0)
    os.close(writer)
    os.read(reader, 1)
    os.close(reader)
    if kill_after_s is not None:
        time.sleep(kill_after_s)
        os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def _kill_before(number, calls):
    left = [number]

    def counted(call):
        def run(*arguments, **options):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return run

    for name in calls:
        setattr(os, name, counted(getattr(os, name)))


def pictures(bench, script):
    """What the tree is before and after, and what must be done to get there."""
    fill(bench)
    before = picture(bench.workspace)
    with bench.view() as view:
        work_in(view, script)
        assert commit_changes(read_changes(view), state_dir=str(bench.state)).is_committed
    after = picture(bench.workspace)
    clear(bench)
    return before, after


def state_of(bench):
    return str(bench.state)


@pytest.mark.slow
def test_a_commit_killed_before_any_of_its_calls_is_made_good(bench):
    """Every instant between two system calls: wholly before or wholly after, and recover says which."""
    before, after = pictures(bench, SCRIPT)
    seen = set()
    number = 0
    while True:
        number += 1
        fill(bench)
        with bench.view() as view:
            work_in(view, SCRIPT)
            changes = read_changes(view)
            status = in_child(
                lambda c=changes: commit_changes(c, state_dir=state_of(bench)), kill_at=number
            )
            outcomes = [
                each.outcome for each in recover(str(bench.workspace), state_dir=state_of(bench))
            ]
        found = picture(bench.workspace)
        seen.update(outcomes)
        if outcomes == ["finished"]:
            assert found == after, number
        elif outcomes == ["undone"]:
            assert found == before, number
        else:
            assert outcomes == []
            assert found in (before, after), number
        assert bench.residue() == [], number
        clear(bench)
        if not os.WIFSIGNALED(status):
            break
    assert number > 100
    assert seen == {"finished", "undone"}


def test_an_undo_killed_before_any_of_its_calls_is_carried_on(bench, monkeypatch):
    """A commit that meets somebody at its last step, and is killed while it undoes: before."""
    before, _ = pictures(bench, SCRIPT)
    real = steps.do_step

    def do_step(place, step):
        if step.path == b"inner":
            raise steps.Moved(step.path, "changed")
        real(place, step)

    from forkrun.workspace import commit

    monkeypatch.setattr(commit, "do_step", do_step)
    number = 0
    while True:
        number += 7
        fill(bench)
        with bench.view() as view:
            work_in(view, SCRIPT)
            changes = read_changes(view)
            status = in_child(
                lambda c=changes: commit_changes(c, state_dir=state_of(bench)), kill_at=number
            )
            recover(str(bench.workspace), state_dir=state_of(bench))
        assert picture(bench.workspace) == before, number
        assert bench.residue() == [], number
        clear(bench)
        if not os.WIFSIGNALED(status):
            break


def test_a_recovery_that_is_killed_is_carried_on(bench):
    """Killed in the commit, killed again in the recovery: the third start makes it good."""
    before, after = pictures(bench, SCRIPT)
    choose = random.Random(7)
    for _ in range(30):
        fill(bench)
        with bench.view() as view:
            work_in(view, SCRIPT)
            changes = read_changes(view)
            kill_at = choose.randrange(60, 260)
            in_child(
                lambda c=changes: commit_changes(c, state_dir=state_of(bench)), kill_at=kill_at
            )
            again = choose.randrange(1, 120)
            in_child(
                lambda: recover(str(bench.workspace), state_dir=state_of(bench)), kill_at=again
            )
            recover(str(bench.workspace), state_dir=state_of(bench))
        assert picture(bench.workspace) in (before, after), (kill_at, again)
        assert bench.residue() == [], (kill_at, again)
        clear(bench)


def test_recovery_does_not_overwrite_what_somebody_did_since(bench):
    """Killed half way, then somebody edits a file whose turn had not come: all of ours is undone."""
    fill(bench)
    with bench.view() as view:
        work_in(view, "echo mine > edit; echo mine > kept; echo n > n")
        changes = read_changes(view)
        # The plan, the mark, the first file; killed before the fourth.
        in_child(
            lambda: commit_changes(changes, state_dir=state_of(bench)), kill_at=4, calls=["rename"]
        )
    assert (bench.workspace / "edit").read_text() == "mine\n"
    assert (bench.workspace / "kept").read_text() == "kept\n"
    (bench.workspace / "kept").write_text("theirs, longer\n")
    (recovery,) = recover(str(bench.workspace), state_dir=state_of(bench))
    assert recovery.outcome == "undone"
    assert (bench.workspace / "kept").read_text() == "theirs, longer\n"
    assert (bench.workspace / "edit").read_text() == "edit\n"
    assert not (bench.workspace / "n").exists()


def test_the_next_commit_recovers_first(bench):
    """Nobody has to call recover: a commit in the same workspace does, and says so."""
    fill(bench)
    with bench.view() as view, bench.view() as other:
        work_in(view, "echo mine > edit; rm gone")
        work_in(other, "echo o > other")
        changes = read_changes(view)
        in_child(
            lambda: commit_changes(changes, state_dir=state_of(bench)), kill_at=3, calls=["rename"]
        )
        assert list(bench.state.rglob("committing"))
        assert interrupted(str(bench.state)) == (str(bench.workspace),)
        outcome = commit_changes(read_changes(other), state_dir=state_of(bench))
    assert outcome.is_committed
    assert [(each.outcome, sorted(each.paths)) for each in outcome.recovered] == [
        ("finished", ["edit", "gone"])
    ]
    assert (bench.workspace / "edit").read_text() == "mine\n"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("form", ["overlay", "copy"])
def test_a_hundred_kills_of_a_commit_of_two_hundred_files(quick_disk, form):
    """SIGKILL at a hundred random instants: the tree is wholly before or wholly after."""
    if form == "overlay":
        (quick_disk / "probe").mkdir()
        require_overlay(quick_disk / "probe")
    (quick_disk / "b").mkdir()
    bench = Bench(quick_disk / "b", form)
    script = "for i in $(seq 200); do echo new$i > d$((i % 7))/f$i; done; rm d1/f1; mkdir n; echo n > n/n"

    def refill():
        for number in range(1, 201):
            bench.write(f"d{number % 7}/f{number}", f"old{number}\n")

    def attempt(kill_after_s):
        refill()
        with bench.view() as view:
            work_in(view, script)
            changes = read_changes(view)
            start = time.monotonic()
            status = in_child(
                lambda: commit_changes(changes, state_dir=str(bench.state)),
                kill_after_s=kill_after_s,
            )
            took = time.monotonic() - start
            outcomes = [
                each.outcome for each in recover(str(bench.workspace), state_dir=str(bench.state))
            ]
        found = picture(bench.workspace)
        assert bench.residue() == []
        clear(bench)
        return found, outcomes, took, status

    refill()
    before = picture(bench.workspace)
    after, _, took, _ = attempt(None)
    assert len(after) == len(before) + 1
    seen = []
    choose = random.Random(11)
    for _ in range(100):
        found, outcomes, _, _ = attempt(choose.uniform(0, took))
        assert found in (before, after)
        seen += outcomes
        if outcomes:
            assert found == {"finished": after, "undone": before}[outcomes[0]]
    assert {"finished", "undone"} <= set(seen)
