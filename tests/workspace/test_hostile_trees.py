"""What a child, or whoever made the repository, has written to keep the parent busy: bounded."""

from __future__ import annotations

import os
import time
import tracemalloc

import pytest
from support_views import work_in

from forkrun.errors import WorkspaceError
from forkrun.ignoring import MAX_RULES, is_ignored, read_rules
from forkrun.workspace import changes as changes_module
from forkrun.workspace.changes import read_changes
from forkrun.workspace.commit import commit_changes
from forkrun.workspace.dirs import open_tree, remove_tree
from forkrun.workspace.gitfiles import Ignored, parse_index
from forkrun.workspace.selection import select_changes

SOON_S = 10.0


@pytest.fixture
def soon():
    """The test takes no longer than a moment of this thread's processor time."""
    began = time.thread_time()
    yield
    assert time.thread_time() - began < SOON_S


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        ("*a" * 60 + "*b", "a" * 200),
        ("a*" * 60 + "b", "a" * 255),
        ("**/*a*/" * 100 + "b", "aa/" * 1300 + "c"),
        ("**/a/" * 200 + "b", "a/" * 1000 + "c"),
        ("**/" + "a/" * 500 + "b", "a/" * 1000 + "a"),
        ("[" * 1000, "["),
        ("x" + " " * 1_000_000, "y"),
    ],
)
@pytest.mark.usefixtures("soon")
def test_a_rule_costs_no_more_than_its_length(rule, name):
    """However many stars, directories or brackets a rule has, a name that it misses is quickly
    passed over."""
    rules = read_rules(rule, base="")
    for _ in range(50):
        assert not is_ignored(name, rules)


@pytest.mark.usefixtures("soon")
def test_a_child_cannot_stall_the_commit_with_an_ignore_file(bench):
    """Its .gitignore is matched against a name of its own, and both are committed."""
    outcome, _ = bench.run(
        "printf '%s\\n' $(printf '*a%.0s' $(seq 60))'*b' > .gitignore;"
        " touch $(printf 'a%.0s' $(seq 200))"
    )
    assert outcome.is_committed
    assert len(list(bench.workspace.iterdir())) == 2


@pytest.mark.usefixtures("soon")
def test_rules_are_bounded_in_number_and_time():
    """Of one file a fixed number counts; all together are given up after a time, with a remedy."""
    text = "\n".join(f"*a*{each}*b" for each in range(2 * MAX_RULES))
    assert len(read_rules(text, base="")) == MAX_RULES
    ignored = Ignored(lambda path: text.encode(), repository=None, max_s=0.5)
    with pytest.raises(WorkspaceError, match="take too long") as caught:
        for each in range(1_000_000):
            ignored(f"a{each}", is_directory=False)
    assert "--commit-ignored" in caught.value.hint


def _entry(strip: bytes, name: bytes) -> bytes:
    return bytes(60) + min(len(name), 0xFFF).to_bytes(2, "big") + strip + name + b"\0"


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(
    ("first", "others"),
    [
        (b"x" * 100_000, _entry(b"\0", b"y")),  # each path a little longer than the last
        (b"x" * 4_000, _entry(b"\1", b"y")),  # none too long, but many
        (b"x", _entry(b"\xff" * 2_000_000 + b"\0", b"y")),  # a number of two million bytes
    ],
    ids=["long", "many", "number"],
)
def test_an_index_unfolds_to_no_more_than_it_weighs(first, others):
    """Version 4 compresses paths: one that unfolds out of proportion names nothing, at no cost."""
    count = max(1, 3_000_000 // len(others))
    content = b"DIRC" + (4).to_bytes(4, "big") + (count + 1).to_bytes(4, "big")
    content += _entry(b"\0", first) + others * count
    tracemalloc.start()
    try:
        assert parse_index(content) <= {"x"}
        assert tracemalloc.get_traced_memory()[1] < 4 * len(content)
    finally:
        tracemalloc.stop()


DEEP = """
import os
for _ in range(1500):
    os.mkdir("d")
    os.chdir("d")
for each in range(3000):
    open(f"f{each}", "w").close()
os.mkdir(".vscode")
open(".vscode/tasks.json", "w").close()
"""


@pytest.mark.slow
def test_many_files_in_a_deep_tree_are_settled_in_seconds(bench):
    """1,500 directories in each other with 3,000 files: chosen, planned and committed."""
    try:
        with bench.view() as view:
            work_in(view, f"python3 -c '{DEEP}'")
            began = time.thread_time()
            chosen = select_changes(view, read_changes(view), may_write=lambda path: True)
            assert time.thread_time() - began < SOON_S / 2
            assert commit_changes(chosen.changes, state_dir=str(bench.state)).is_committed
            assert time.thread_time() - began < 2 * SOON_S
        assert [each.path for each in chosen.withheld] == ["d/" * 1500 + ".vscode"]
        with open_tree(str(bench.workspace)) as tree:
            assert len(tree.names("d" + "/d" * 1499)) == 3000
    finally:
        with open_tree(str(bench.workspace)) as tree:  # deeper than shutil can go
            remove_tree(tree.fd, "d")


@pytest.mark.usefixtures("soon")
def test_a_file_of_holes_is_not_committed(bench):
    """What is larger than the view may hold is withheld, by itself and together; what is not, and
    a large file that has not grown, is committed."""
    os.truncate(bench.write("theirs"), 2**40)
    with bench.view() as view:
        work_in(
            view,
            "truncate -s 1T huge; for i in 1 2 3; do truncate -s 40M f$i; done; echo x >> theirs",
        )
        changes = read_changes(view, max_bytes=100 * 2**20)
        chosen = select_changes(view, changes, may_write=lambda path: True)
        assert commit_changes(chosen.changes, state_dir=str(bench.state)).is_committed
    assert sorted(os.listdir(bench.workspace)) == ["f1", "f2", "theirs"]
    assert [each.path for each in chosen.withheld] == ["f3", "huge"]
    assert "with its holes" in chosen.withheld[0].reason
    assert (bench.workspace / "theirs").stat().st_size == 2**40 + 2


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("make", ["mkfifo", "touch"])
def test_what_cannot_be_committed_counts_as_well(bench, make):
    """A tree of FIFOs is given up at the same number of paths as one of files."""
    with bench.view() as view:
        work_in(view, f"{make} $(seq 30)")
        with pytest.raises(WorkspaceError, match="more than 20 paths"):
            read_changes(view, max_entries=20)


@pytest.mark.usefixtures("soon")
def test_the_paths_of_changes_are_bounded_together(bench, monkeypatch):
    """However few the entries are, their paths are no longer than can be held."""
    monkeypatch.setattr(changes_module, "MAX_PATHS_BYTES", 20_000)
    with bench.view() as view:
        work_in(view, "mkdir -p $(printf 'd/%.0s' $(seq 300))")
        with pytest.raises(WorkspaceError, match="longer than 20000 bytes together"):
            read_changes(view)
