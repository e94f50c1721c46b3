"""A patch gives, by git's hand and by ours, the tree that the commit gives."""

from __future__ import annotations

import io
import os
import shutil
import subprocess

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support_views import picture, work_in

from forkrun.errors import InputError
from forkrun.workspace.changes import read_changes
from forkrun.workspace.commit import commit_changes
from forkrun.workspace.dirs import open_tree
from forkrun.workspace.keep import apply_patch, keep_patch, save_patch
from forkrun.workspace.linediff import find_matches, split_lines, write_hunks
from forkrun.workspace.oldpatches import sweep_patches
from forkrun.workspace.patch import diffstat, printable, quote_path
from forkrun.workspace.selection import select_changes
from forkrun.workspace.unpatch import read_patch

CASES = {
    "text": "sed -i s/line5/changed/ text; sed -i '$d' text; sed -i 1i\\\\first text",
    "new and gone": "echo n > new; mkdir -p a/b; echo deep > a/b/c; rm text",
    "empty": ": > empty; : > text; rm was-empty",
    "binary": "head -c 100000 /dev/urandom > blob; printf 'a\\0b' > text; echo now text > bin",
    "binary gone": "rm bin",
    "large": "seq 1 400000 > large; seq 1 400000 | sed s/77/x/ > text",
    "executable": "chmod +x text; chmod -x script; echo more >> script",
    "symlinks": "ln -s text l1; ln -sfn elsewhere link; rm text; ln -s link text; rm link2; echo real > link2",
    "no newline": "printf 'a\\nb' > nonl; printf 'x' > text; printf 'one\\ntwo\\n' > nonl2",
    "crlf": "printf 'a\\r\\nb\\r\\nX\\r\\n' > crlf; printf '\\r\\n\\r\\n' > new-crlf; printf 'lone\\rcr\\n' > cr",
    "rename": "mv text text2; mv dir dir2",
    "names": "echo 1 > 'sp ace'; echo 2 > $'caf\\xe9'; echo 3 > $'tab\\tq\"b\\\\'; echo 4 > $'new\\nline'; echo 5 > -- ; echo 6 > 'é'; echo y >> 'old name'; echo 7 > ' lead'; echo 8 > 'trail '",
    "types": "rm text; mkdir text; echo i > text/in; rm -r dir; echo f > dir; rm link; mkdir link; echo j > link/j",
    "latin1": "printf 'caf\\xe9 2\\n' > latin; printf 'n\\xe9w\\n' > latin2",
    "looks like a patch": "printf 'diff --git a/x b/x\\n--- a/x\\n+++ b/x\\n@@ -1 +1 @@\\n-a\\n+b\\n' > text; printf -- '-- x\\n' > minus",
    "attributes": "echo '* text eol=crlf filter=evil ident' > .gitattributes; printf '$Id$\\nx\\n' > ident",
    "many hunks": "sed -i 's/line[0-9]*0$/zero/' long",
}  # fmt: skip


def fill(bench):
    bench.write("text", "".join(f"line{number}\n" for number in range(30)))
    bench.write("long", "".join(f"line{number}\n" for number in range(500)))
    bench.write("was-empty", "")
    bench.write("bin", b"\0\1\2" * 1000)
    bench.write("script", "#!/bin/sh\n", mode=0o755)
    bench.write("nonl", "a\nb\n")
    bench.write("nonl2", "one\ntwo")
    bench.write("crlf", "a\r\nb\r\nc\r\n")
    bench.write("dir/x", "x\n")
    bench.write("dir/sub/y", "y\n")
    bench.write("old name", "x\n")
    bench.write("latin", b"caf\xe9\n")
    os.symlink("text", bench.workspace / "link")
    os.symlink("text", bench.workspace / "link2")


def twins(bench, tmp_path):
    return [
        shutil.copytree(bench.workspace, tmp_path / name, symlinks=True) for name in ("git", "ours")
    ]


def git_apply(patch, tree):
    subprocess.run(["git", "init", "-q"], cwd=tree, check=True)
    done = subprocess.run(["git", "apply", patch], cwd=tree, capture_output=True, check=False)
    assert done.returncode == 0, (done.stderr, patch)
    shutil.rmtree(tree / ".git")


@pytest.mark.parametrize("case", CASES)
def test_git_and_we_apply_what_the_commit_commits(bench, tmp_path, case):
    """The commit, `git apply` and our own reader give the same tree."""
    fill(bench)
    by_git, by_us = twins(bench, tmp_path)
    patch = str(tmp_path / "patch")
    with bench.view() as view:
        work_in(view, CASES[case])
        chosen = select_changes(view, read_changes(view), may_write=lambda path: True)
        stats = save_patch(chosen.changes, path=patch)
        assert commit_changes(chosen.changes, state_dir=str(bench.state)).is_committed
    assert diffstat(stats)
    committed = picture(bench.workspace)
    git_apply(patch, by_git)
    assert picture(by_git) == committed
    assert apply_patch(patch, workspace=str(by_us), state_dir=str(bench.state)).is_committed
    assert picture(by_us) == committed
    assert os.listdir(bench.state / "journals") == []


def test_what_git_cannot_say_is_kept_for_us(bench, tmp_path):
    """Empty directories and exact modes come back with our own reader."""
    fill(bench)
    (bench.workspace / "closed").mkdir()
    _, by_us = twins(bench, tmp_path)
    patch = str(tmp_path / "patch")
    with bench.view() as view:
        work_in(
            view,
            "mkdir -p e/f; chmod 600 text; chmod 750 dir; rmdir closed; echo s > secret; chmod 400 secret; rm -r dir/sub; mkdir -m 700 private; echo p > private/p",
        )
        changes = read_changes(view)
        save_patch(changes, path=patch)
        commit_changes(changes, state_dir=str(bench.state))
    assert apply_patch(patch, workspace=str(by_us), state_dir=str(bench.state)).is_committed
    assert picture(by_us) == picture(bench.workspace)


def test_a_kept_patch_is_applied_by_the_result_that_names_it(bench):
    """After a failed run: the patch lies where the result says, and can be applied later."""
    bench.write("f", "old\n")
    with bench.view() as view:
        work_in(view, "echo new > f; echo n > n")
        path, stats = keep_patch(read_changes(view), state_dir=str(bench.state), run_id="r1")
    assert (bench.workspace / "f").read_text() == "old\n"
    assert [(each.path, each.added, each.deleted) for each in stats] == [("f", 1, 1), ("n", 1, 0)]
    result = bench.state / "result.json"
    result.write_bytes(
        b'{"type":"started"}\n' + msgspec.json.encode({"type": "result", "patch": path}) + b"\n"
    )
    assert apply_patch(
        str(result), workspace=str(bench.workspace), state_dir=str(bench.state)
    ).is_committed
    assert picture(bench.workspace).keys() == {"f", "n"}
    assert (bench.workspace / "f").read_text() == "new\n"
    assert sweep_patches(str(bench.state), keep_days=1) == 0
    os.utime(path, (0, 0))
    assert sweep_patches(str(bench.state), keep_days=1) == 1


LATER = {
    "changed": (lambda ws: (ws / "f").write_text("theirs\n"), [("f", "changed")]),
    "deleted": (lambda ws: (ws / "f").unlink(), [("f", "deleted")]),
    "created": (lambda ws: (ws / "n").write_text("theirs\n"), [("n", "created")]),
    "a deletion of what changed": (
        lambda ws: (ws / "gone").write_text("theirs\n"),
        [("gone", "changed")],
    ),
    "another type": (lambda ws: ((ws / "f").unlink(), (ws / "f").mkdir()), [("f", "changed")]),
    "a binary file": (lambda ws: (ws / "bin").write_bytes(b"\0x"), [("bin", "changed")]),
}


@pytest.mark.parametrize("case", LATER)
def test_a_patch_meets_the_same_conflicts(bench, case):
    """A file that changed since the patch was made: nothing is applied, and it is named."""
    theirs, named = LATER[case]
    for name in ("f", "gone"):
        bench.write(name, "old\n")
    bench.write("bin", b"\0\1")
    with bench.view() as view:
        work_in(view, "echo new > f; rm gone; echo n > n; printf '\\0\\2' > bin")
        path, _ = keep_patch(read_changes(view), state_dir=str(bench.state), run_id="r1")
    theirs(bench.workspace)
    before = picture(bench.workspace)
    outcome = apply_patch(path, workspace=str(bench.workspace), state_dir=str(bench.state))
    assert [(each.path, each.did) for each in outcome.conflicts] == named
    assert picture(bench.workspace) == before
    os.unlink(path)


def test_a_conflict_of_the_run_stays_one_for_its_patch(bench):
    """What somebody changed during the run is not overwritten by applying the patch later."""
    bench.write("f", "old\n")
    with bench.view() as view:
        work_in(view, "echo mine > f")
        bench.write("f", "theirs\n")
        path, _ = keep_patch(read_changes(view), state_dir=str(bench.state), run_id="r1")
    outcome = apply_patch(path, workspace=str(bench.workspace), state_dir=str(bench.state))
    assert [(each.path, each.did) for each in outcome.conflicts] == [("f", "changed")]
    assert (bench.workspace / "f").read_text() == "theirs\n"
    os.unlink(path)


def test_gits_own_files_are_in_no_patch(bench, tmp_path):
    """Git takes no patch that touches .git, so ours leaves it out and says so."""
    bench.write(".git/config", "x\n")
    patch = tmp_path / "patch"
    with bench.view() as view:
        work_in(view, "echo evil > .git/config; echo n > n")
        save_patch(read_changes(view), path=str(patch))
    text = patch.read_text()
    assert "# left-out .git/config\n" in text
    assert "evil" not in text


HOSTILE = [
    b"diff --git a/../x b/../x\nnew file mode 100644\n",
    b"diff --git a/.git/x b/.git/x\nnew file mode 100644\n",
    b"diff --git a//etc/x b//etc/x\nnew file mode 100644\n",
    b"diff --git a/x b/x\nrename from x\nrename to y\n",
    b"diff --git a/x b/x\nnew file mode 160000\nindex " + b"0" * 40 + b".." + b"1" * 40 + b"\n",
    b"diff --git a/x b/x\nindex 123..456 100644\n--- a/x\n+++ b/x\n",
    b"diff --git a/x b/x\nnew file mode 100644\nindex " + b"0" * 40 + b".." + b"1" * 40 + b"\n--- /dev/null\n+++ b/x\n@@ -0,0 +1,2 @@\n+a\n",
    b"diff --git a/x b/x\nnew file mode 100644\nindex " + b"0" * 40 + b".." + b"1" * 40 + b"\n--- /dev/null\n+++ b/x\n@@ -0,0 +1,1 @@\n+a\n",
    b"diff --git a/x b/x\nnew file mode 100644\nindex " + b"0" * 40 + b".." + b"1" * 40 + b"\nGIT binary patch\nliteral 999999999999\nx\n",
    b"diff --git a/x b/x\nnew file mode 100644\nindex " + b"0" * 40 + b".." + b"1" * 40 + b"\nGIT binary patch\nliteral 9\nJ!!!!!!!!!!\n\n",
    b"# directory 755 ../up\n",
    b"diff --git a/x b/x\nnew file mode 9z\n",
]  # fmt: skip


@pytest.mark.parametrize("content", HOSTILE)
def test_a_patch_that_is_not_good_is_refused(tmp_path, content):
    """Paths that lead out, cut or forged contents: one clear error, and nothing is changed."""
    (tmp_path / "ws").mkdir()
    patch = tmp_path / "patch"
    patch.write_bytes(content)
    with pytest.raises(InputError, match=r"line \d"):
        apply_patch(str(patch), workspace=str(tmp_path / "ws"), state_dir=str(tmp_path / "state"))
    assert os.listdir(tmp_path / "ws") == []


def test_a_patch_of_git_itself_is_read(tmp_path):
    """What `git diff --full-index --binary` writes can be applied too."""
    ws = tmp_path / "ws"
    ws.mkdir()
    for name, content in {
        "a": b"1\n2\n3\n",
        "sp ace": b"x\n",
        "bin": b"\0" * 500,
        "gone": b"g\n",
        "é": b"1\n",
    }.items():
        (ws / name).write_bytes(content)
    old = shutil.copytree(ws, tmp_path / "old")
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *command], cwd=ws, check=True)
    (ws / "a").write_bytes(b"1\n2\nthree")
    (ws / "bin").write_bytes(b"\0new" * 300)
    (ws / "gone").unlink()
    (ws / "sp ace").write_bytes(b"y\n")
    (ws / "é").write_bytes(b"2\n")
    (ws / "n").write_bytes(b"n\n")
    subprocess.run([*git, "add", "-A"], cwd=ws, check=True)
    patch = tmp_path / "patch"
    done = subprocess.run(
        [*git, "diff", "--cached", "--full-index", "--binary", "--no-renames"],
        cwd=ws,
        check=True,
        capture_output=True,
    )
    patch.write_bytes(done.stdout)
    shutil.rmtree(ws / ".git")
    assert apply_patch(
        str(patch), workspace=str(old), state_dir=str(tmp_path / "state")
    ).is_committed
    assert picture(old) == picture(ws)


LINES = st.lists(st.sampled_from([b"a\n", b"b\n", b"\n", b"c\r\n", b"d"]), max_size=40)


@settings(max_examples=300, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(old=LINES, new=LINES)
def test_matches_are_equal_and_in_order(old, new):
    """Whatever the lines: every match is one, in order, and hunks turn the old into the new."""
    at = other = 0
    for start, new_start, length in find_matches(old, new):
        assert start >= at and new_start >= other and length > 0
        assert old[start : start + length] == new[new_start : new_start + length]
        at, other = start + length, new_start + length
    list(write_hunks(old, new))


@settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_text_survives_the_way_through_a_patch(data, tmp_path_factory):
    """Text → patch → our reader gives the text again, whatever its line ends."""
    from forkrun.workspace.patch import write_patch
    from forkrun.workspace.records import Change, Changes, Node

    old, new = (b"".join(data.draw(LINES)) for _ in range(2))
    top = tmp_path_factory.mktemp("any")
    for name, content in (("old", old), ("new", new)):
        (top / name).mkdir()
        (top / name / "f").write_bytes(content)
    node = Node(type="file", mode=0o644)
    with open_tree(str(top / "old")) as one, open_tree(str(top / "new")) as other:
        entry = Change(path="f", kind="modified", before=node, after=node)
        out = io.BytesIO()
        write_patch(Changes(workspace="", entries=(entry,), source=other, old=one), out)
        out.seek(0)
        if old != new:
            fd = read_patch(out, one, workspace="").source.open_file("f")
            with open(fd, "rb") as file:
                assert file.read() == new


def test_an_edit_in_a_long_file_is_a_short_hunk():
    """One line of ten thousand: the hunk has seven lines, in no time."""
    old = split_lines(b"".join(b"%d\n" % number for number in range(10_000)))
    new = [*old]
    new[5_000] = b"changed\n"
    (hunk,) = write_hunks(old, new)
    assert hunk.splitlines()[0] == b"@@ -4998,7 +4998,7 @@"
    assert len(hunk.splitlines()) == 9


def test_names_are_safe_to_print():
    """Escape sequences and bytes that are not UTF-8 do not reach the terminal."""
    assert printable("a\x1b[31m\udce9é\n") == "a\\x1b[31m\\xe9é\\n"
    assert quote_path("plain/a.b") == "plain/a.b"
    assert quote_path('q"\t\udce9') == '"q\\"\\t\\351"'


def test_a_patch_to_what_is_no_file_leaves_it_there(bench):
    """--patch /dev/stdout and the like are written to, never replaced."""
    with bench.view() as view:
        work_in(view, "echo n > n")
        changes = read_changes(view)
        reader, writer = os.pipe()
        save_patch(changes, path=f"/dev/fd/{writer}")
        os.close(writer)
        with open(reader, "rb") as file:
            assert b"+n\n" in file.read()
