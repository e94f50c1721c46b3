"""A commit takes effect as a whole, or not at all, and never over what somebody else did."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
import sys
import threading

import pytest
import support_views
from support_views import picture, unshare, work_in

from forkrun.errors import WorkspaceError
from forkrun.workspace.changes import read_changes
from forkrun.workspace.commit import commit_changes
from forkrun.workspace.dirs import open_tree
from forkrun.workspace.lock import workspace_lock
from forkrun.workspace.selection import select_changes

EVERYTHING = """
echo new > edit; rm gone; mkdir -p n/m/o; echo z > n/m/o/z; chmod 750 script; ln -sfn edit link
rm -r tree; rm was-file; mkdir was-file; echo i > was-file/i; rm -r was-dir; echo f > was-dir
rm link-to-file; echo real > link-to-file; mkdir empty; mkdir -p shut/d; echo s > shut/d/f; chmod 000 shut/d
printf 'no newline' > nonl; printf 'a\\r\\nb\\r\\n' > crlf; truncate -s 5M hole; printf end >> hole
head -c 300000 /dev/urandom > blob; chmod 700 inner; mv moved-dir moved-to; chmod 444 readonly; echo q >> deep/a/b/c
"""


def fill(bench):
    for name in (
        "edit",
        "gone",
        "script",
        "tree/a",
        "tree/b/c",
        "was-file",
        "was-dir/x",
        "moved-dir/f",
        "deep/a/b/c",
        "kept",
    ):
        bench.write(name, f"{name}\n")
    bench.write("inner/x")
    bench.write("readonly", "r\n")
    os.symlink("gone", bench.workspace / "link")
    os.symlink("edit", bench.workspace / "link-to-file")


def wanted(bench, script, tmp_path):
    """The picture of a tree in which the script was run directly."""
    twin = tmp_path / "twin"
    shutil.copytree(bench.workspace, twin, symlinks=True)
    subprocess.run(["bash", "-c", script], cwd=twin, check=True)
    for name in ("blob",):
        if (twin / name).exists():
            (twin / name).unlink()
    found = picture(twin)
    subprocess.run(["chmod", "-R", "u+rwX", twin], check=True)
    return found


def test_a_commit_gives_the_very_tree_of_the_view(bench, tmp_path):
    """All kinds of changes at once: the tree is, byte for byte and mode for mode, the child's."""
    fill(bench)
    expected = wanted(bench, EVERYTHING, tmp_path)
    outcome, chosen = bench.run(EVERYTHING)
    assert outcome.is_committed
    assert chosen.withheld == ()
    found = picture(bench.workspace)
    assert len((bench.workspace / "blob").read_bytes()) == 300_000
    del found["blob"]
    assert found == expected
    assert (bench.workspace / "hole").stat().st_blocks * 512 < 1_000_000
    (bench.workspace / "shut/d").chmod(0o700)


def test_what_a_commit_does_not_touch_keeps_its_inode_and_times(bench):
    """Files that were not changed are the same files as before."""
    fill(bench)
    before = os.lstat(bench.workspace / "kept")
    bench.run(EVERYTHING)
    after = os.lstat(bench.workspace / "kept")
    assert (before.st_ino, before.st_mtime_ns, before.st_ctime_ns) == (
        after.st_ino,
        after.st_mtime_ns,
        after.st_ctime_ns,
    )
    (bench.workspace / "shut/d").chmod(0o700)


def test_modes_attributes_and_links_of_a_replaced_file_are_kept(bench):
    """An edit keeps mode and extended attributes, and does not reach another link of the file."""
    at = bench.write("f", "old\n", mode=0o640)
    os.setxattr(at, "user.note", b"mine")
    os.link(at, bench.workspace / "other")
    outcome, _ = bench.run("echo new > f")
    assert outcome.is_committed
    assert at.stat().st_mode & 0o7777 == 0o640
    assert os.getxattr(at, "user.note") == b"mine"
    assert (bench.workspace / "other").read_text() == "old\n"


def test_setuid_bits_do_not_come_out_of_a_view(bench):
    """A program that the child has made setuid is committed without that bit."""
    outcome, _ = bench.run("cp /bin/true t; chmod 6755 t; mkdir d; chmod 3777 d")
    assert outcome.is_committed
    assert (bench.workspace / "t").stat().st_mode & 0o7777 == 0o755
    assert (bench.workspace / "d").stat().st_mode & 0o7777 == 0o777


CONFLICTS = {
    "changed": (
        "echo mine > f",
        lambda ws: (ws / "f").write_text("theirs, later\n"),
        ("f", "changed"),
    ),
    "changed in place of a rename": (
        "echo mine > t; mv t f",
        lambda ws: (ws / "f").write_text("theirs, later\n"),
        ("f", "changed"),
    ),
    "replaced": (
        "echo mine > f",
        lambda ws: ((ws / "t").write_text("theirs\n"), os.rename(ws / "t", ws / "f")),
        ("f", "changed"),
    ),
    "chmod": ("echo mine > f", lambda ws: (ws / "f").chmod(0o600), ("f", "changed")),
    "deleted": ("echo mine > f", lambda ws: (ws / "f").unlink(), ("f", "deleted")),
    "deleted, and renamed over": (
        "echo mine > t; mv t f",
        lambda ws: (ws / "f").unlink(),
        ("f", "deleted"),
    ),
    "created": ("echo mine > n", lambda ws: (ws / "n").write_text("theirs\n"), ("n", "created")),
    "changed, and ours deletes": (
        "rm f",
        lambda ws: (ws / "f").write_text("theirs\n"),
        ("f", "changed"),
    ),
    "created in a directory that ours deletes": (
        "rm -r d",
        lambda ws: (ws / "d/n").write_text("theirs\n"),
        ("d/n", "created"),
    ),
    "changed in a directory that ours makes again": (
        "rm -r d; mkdir d",
        lambda ws: (ws / "d/x").write_text("theirs\n"),
        ("d/x", "changed"),
    ),
    "directory deleted": (
        "echo mine > d/x",
        lambda ws: shutil.rmtree(ws / "d"),
        ("d/x", "deleted"),
    ),
    "link changed": (
        "ln -sfn d l",
        lambda ws: ((ws / "l").unlink(), os.symlink("x", ws / "l")),
        ("l", "changed"),
    ),
    "mode of a directory": ("chmod 700 d", lambda ws: (ws / "d").chmod(0o750), ("d", "changed")),
}


@pytest.mark.parametrize("case", CONFLICTS)
def test_somebody_was_quicker(bench, case):
    """A path of ours that somebody touched since the start: nothing is committed, and it is named."""
    script, theirs, named = CONFLICTS[case]
    bench.write("f", "old\n")
    bench.write("d/x", "old\n")
    os.symlink("f", bench.workspace / "l")
    after = {}

    def meanwhile():
        theirs(bench.workspace)
        after.update(picture(bench.workspace))

    outcome, _ = bench.run(script + "; echo more > innocent", meanwhile=meanwhile)
    assert not outcome.is_committed
    assert named in [(each.path, each.did) for each in outcome.conflicts]
    assert picture(bench.workspace) == after


INNOCENT = {
    "another file": lambda ws: (ws / "g").write_text("theirs\n"),
    "a file beside": lambda ws: (ws / "d/theirs").write_text("theirs\n"),
    "a deletion beside": lambda ws: (ws / "d/y").unlink(),
    "reading": lambda ws: (ws / "f").read_text(),
    "the same new directory": lambda ws: ((ws / "n").mkdir(), (ws / "n/theirs").write_text("t\n")),
}


@pytest.mark.parametrize("case", INNOCENT)
def test_what_somebody_did_beside_is_no_conflict(bench, case):
    """What others do to other paths meanwhile stays, and ours is committed."""
    bench.write("f", "old\n")
    bench.write("g", "old\n")
    bench.write("d/x", "old\n")
    bench.write("d/y", "old\n")

    outcome, _ = bench.run(
        "echo mine > f; echo mine > d/x; echo mine > d/mine; mkdir n; echo mine > n/mine; mv f f2; mv f2 f",
        meanwhile=lambda: INNOCENT[case](bench.workspace),
    )
    assert outcome.conflicts == ()
    assert (bench.workspace / "d/mine").read_text() == "mine\n"
    assert (bench.workspace / "n/mine").read_text() == "mine\n"
    if case == "the same new directory":
        assert (bench.workspace / "n/theirs").read_text() == "t\n"


def test_a_file_written_just_before_the_start_is_no_conflict(bench):
    """The start is an instant: what was written a microsecond before it is not somebody else's."""
    for number in range(20):
        bench.write("f", f"{number}\n")
        outcome, _ = bench.run("echo mine > f")
        assert outcome.is_committed


def test_a_file_written_just_after_the_start_is_a_conflict(bench):
    """What is written in the first microsecond of a run is somebody else's."""
    for number in range(20):
        bench.write("f", "old\n")
        with bench.view() as view:
            bench.write("f", f"{number}\n")
            work_in(view, "echo mine > f")
            outcome = commit_changes(read_changes(view), state_dir=str(bench.state))
        assert [each.path for each in outcome.conflicts] == ["f"]


def test_the_second_of_two_siblings_finds_the_conflict(bench):
    """Two runs over one workspace: the first commit wins, the second is told."""
    bench.write("f", "old\n")
    with bench.view() as one, bench.view() as other:
        work_in(one, "echo one > f; mkdir -p out; echo 1 > out/one")
        assert "old" in work_in(other, "cat f; echo other > f; echo 2 > free")
        first = commit_changes(read_changes(one), state_dir=str(bench.state))
        second = commit_changes(read_changes(other), state_dir=str(bench.state))
    assert first.is_committed
    assert [(each.path, each.did) for each in second.conflicts] == [("f", "changed")]
    assert (bench.workspace / "f").read_text() == "one\n"
    assert not (bench.workspace / "free").exists()


def test_siblings_that_touch_different_files_both_commit(bench):
    """Each writes into the same new directory: both are committed."""
    with bench.view() as one, bench.view() as other:
        work_in(one, "mkdir out; echo 1 > out/one")
        work_in(other, "mkdir out; echo 2 > out/other")
        outcomes = [
            commit_changes(read_changes(view), state_dir=str(bench.state)) for view in (one, other)
        ]
    assert [each.is_committed for each in outcomes] == [True, True]
    assert sorted(os.listdir(bench.workspace / "out")) == ["one", "other"]


def test_a_change_between_reading_and_committing_is_a_conflict(bench):
    """The last look is under the lock, just before the steps."""
    bench.write("f", "old\n")
    with bench.view() as view:
        work_in(view, "echo mine > f; echo n > n")
        changes = read_changes(view)
        bench.write("f", "theirs\n")
        outcome = commit_changes(changes, state_dir=str(bench.state))
    assert [(each.path, each.did) for each in outcome.conflicts] == [("f", "changed")]
    assert sorted(os.listdir(bench.workspace)) == ["f"]


def test_a_failure_in_the_middle_leaves_the_tree_as_it_was(bench):
    """A step that cannot be done (a removed directory is a mount point) undoes all before it."""
    if os.geteuid() != 0:
        pytest.skip("needs a mount that the parent sees")
    fill(bench)
    with bench.view() as view:
        work_in(
            view,
            "rm -r tree; echo new > edit; rm gone; echo n > n; rm -r was-dir; echo x > was-dir",
        )
        chosen = select_changes(view, read_changes(view), may_write=lambda path: True)
        at = bench.workspace / "tree/b"
        before = picture(bench.workspace)
        subprocess.run(["mount", "--bind", at, at], check=True)
        try:
            with pytest.raises(WorkspaceError):
                commit_changes(chosen.changes, state_dir=str(bench.state))
        finally:
            subprocess.run(["umount", at], check=True)
    assert picture(bench.workspace) == before


def test_a_file_that_is_a_mount_point_is_written_in_place(bench):
    """A single file that is bind-mounted cannot be renamed over: its content is replaced."""
    if os.geteuid() != 0:
        pytest.skip("needs a mount that the parent sees")
    at = bench.write("f", "old\n")
    inode = at.stat().st_ino
    with bench.view() as view:
        work_in(view, "echo new content > f; echo n > n")
        changes = read_changes(view)
        subprocess.run(["mount", "--bind", at, at], check=True)
        try:
            outcome = commit_changes(changes, state_dir=str(bench.state))
        finally:
            subprocess.run(["umount", at], check=True)
    assert outcome.is_committed
    assert at.read_text() == "new content\n"
    assert at.stat().st_ino == inode


def test_the_lock_dies_with_its_holder(bench):
    """A commit waits for the lock and says so; a holder that is killed holds nothing."""
    with bench.view() as view:
        work_in(view, "echo n > n")
        changes = read_changes(view)
        holder = subprocess.Popen(
            ["python3", "-c", "import fcntl, os, sys\nfd = os.open(sys.argv[1], os.O_RDONLY)\n"
             "fcntl.flock(fd, fcntl.LOCK_EX)\nprint('held', flush=True)\nsys.stdin.read()", bench.workspace],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(WorkspaceError, match="locked"):
            commit_changes(changes, state_dir=str(bench.state), lock_timeout_s=0.05)
        holder.kill()
        holder.communicate()
        assert commit_changes(changes, state_dir=str(bench.state)).is_committed


def test_commits_are_one_after_the_other(bench):
    """Many siblings that commit at once: all are committed, none is lost."""
    for number in range(6):
        bench.write(f"f{number}", "old\n")
    done = []

    def one(number):
        with bench.view() as view:
            work_in(view, f"echo {number} > f{number}; mkdir out; echo {number} > out/{number}")
            done.append(commit_changes(read_changes(view), state_dir=str(bench.state)).is_committed)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [True] * 6
    assert len(os.listdir(bench.workspace / "out")) == 6


def test_a_lock_file_serves_where_a_directory_cannot_be_locked(tmp_path, monkeypatch):
    """The fallback is a file of its own, and excludes as well."""
    real = fcntl.flock

    def flock(fd, operation):
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            raise OSError(9, "as on NFS")
        return real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    fallback = str(tmp_path / "locks" / "one")
    with open_tree(str(tmp_path)) as tree, workspace_lock(tree.fd, fallback=fallback, timeout_s=1):
        second = workspace_lock(tree.fd, fallback=fallback, timeout_s=0.01)
        with pytest.raises(WorkspaceError):
            second.__enter__()


def test_a_view_on_a_tmpfs_is_read_by_its_descriptor(bench):
    """The upper directory may be one that only a descriptor still reaches, its namespace dead."""
    if bench.form == "copy":
        pytest.skip("a copy has no upper directory")
    bench.write("f", "old\n")
    script = """
set -e
mount -t tmpfs tmpfs "$2"
mkdir -m 755 "$2/upper" "$2/work"
exec 7< "$2/upper"
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work,userxattr" "$1"
cd "$1"; echo new > f; echo n > n; rm -f g
python3 -c 'import os, socket, sys
with socket.socket(socket.AF_UNIX) as out:
    out.connect(sys.argv[1]); socket.send_fds(out, [b"x"], [7])' "$3"
"""
    import socket

    bench.write("g")
    with bench.view() as view, socket.socket(socket.AF_UNIX) as listener:
        at = os.path.join(view.directory, "sock")
        listener.bind(at)
        listener.listen()
        done = subprocess.run(
            [*unshare(), "bash", "-c", script, "-", view.workspace, view.upper, at],
            check=True,
            capture_output=True,
        )
        assert done.returncode == 0
        peer, _ = listener.accept()
        with peer:
            _, (upper, *_), _, _ = socket.recv_fds(peer, 1, 1)
        try:
            outcome = commit_changes(read_changes(view, upper_fd=upper), state_dir=str(bench.state))
        finally:
            os.close(upper)
    assert outcome.is_committed
    assert picture(bench.workspace).keys() == {"f", "n"}
    assert (bench.workspace / "f").read_text() == "new\n"


INSIDE = """
import os, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from support_views import Bench, picture, work_in
from forkrun.errors import WorkspaceError
from forkrun.workspace import commit, steps
from forkrun.workspace.changes import read_changes
from forkrun.workspace.commit import commit_changes
bench = Bench.__new__(Bench)
bench.workspace, bench.state, bench.form, bench.count = Path(sys.argv[1]), Path(sys.argv[3]), "copy", 0
real, before = steps.do_step, picture(bench.workspace)
def late(place, step):
    if step.act == "mode":
        raise steps.Moved(step.path, "changed")
    real(place, step)
for do_step, is_committed in ((late, False), (real, True)):
    commit.do_step = do_step
    with bench.view() as view:
        work_in(view, sys.argv[4])
        outcome = commit_changes(read_changes(view), state_dir=sys.argv[3])
    assert outcome.is_committed is is_committed, outcome
    assert (picture(bench.workspace) == before) is not is_committed
assert bench.residue() == []
print(sorted(picture(bench.workspace)))
"""


def test_a_commit_into_an_overlay_itself(bench, tmp_path):
    """In a container the workspace lies on an overlay, whose lower directories cannot be renamed."""
    if bench.form == "copy":
        pytest.skip("is about an overlay")
    fill(bench)
    script = "set -e; rm -r tree was-dir; echo f > was-dir; echo n > edit; mkdir -p n/m; echo 1 > n/m/x; chmod 700 inner; rm gone"
    mount = f"""
set -e
mount -t overlay overlay -o "lowerdir=$1,upperdir={tmp_path}/up,workdir={tmp_path}/wo,userxattr" "$1"
exec "{sys.executable}" -W error -c "$2" "$1" "{os.path.dirname(support_views.__file__)}" "{tmp_path}/inner-state" "$3"
"""
    (tmp_path / "up").mkdir()
    (tmp_path / "wo").mkdir()
    done = subprocess.run(
        [*unshare(), "bash", "-c", mount, "-", bench.workspace, INSIDE, script],
        capture_output=True, check=False, env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    (tmp_path / "wo/work").chmod(0o700)
    assert done.returncode == 0, done.stderr[-1500:].decode()
    assert "'n/m/x'" in done.stdout.decode()
    assert "'tree'" not in done.stdout.decode()


def test_a_full_disk_leaves_the_tree_as_it_was(bench):
    """New contents are ready before anything is replaced: where they do not fit, nothing is."""
    if os.geteuid() != 0:
        pytest.skip("needs a small filesystem that the parent sees")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", bench.workspace], check=True)
    try:
        bench.write("f", "old\n")
        before = picture(bench.workspace)
        with pytest.raises(WorkspaceError, match="No space left"):
            bench.run("echo new > f; rm -f g; head -c 3000000 /dev/zero | tr '\\\\0' x > big")
        assert picture(bench.workspace) == before
        assert bench.run("echo new > f")[0].is_committed
    finally:
        subprocess.run(["umount", bench.workspace], check=True)


def test_a_file_in_a_closed_directory_is_written_in_place(bench):
    """Where the directory may not be written, but the file may, its content is replaced."""
    at = bench.write("d/f", "old\n", mode=0o640)
    inode = at.stat().st_ino
    if os.geteuid() == 0:
        pytest.skip("root may write every directory")
    at.parent.chmod(0o555)
    outcome, _ = bench.run("echo newer > d/f; echo n > n")
    assert outcome.is_committed
    assert (at.read_text(), at.stat().st_ino, at.stat().st_mode & 0o777) == (
        "newer\n",
        inode,
        0o640,
    )
    with pytest.raises(WorkspaceError):
        bench.run("chmod 755 d; echo n > d/n; chmod 555 d; echo again > d/f")
    assert at.read_text() == "newer\n"
    at.parent.chmod(0o755)


def test_a_deletion_is_seen_by_the_index_of_git_beyond_the_names_that_are_listed(bench):
    """In a tree too large to be listed, a tracked file that somebody deleted is still a conflict."""
    for number in range(2100):
        bench.write(f"many/{number}", "")
    bench.write("z/tracked", "old\n")
    subprocess.run(["git", "init", "-q"], cwd=bench.workspace, check=True)
    subprocess.run(["git", "add", "z"], cwd=bench.workspace, check=True)

    def meanwhile():
        (bench.workspace / "z/tracked").unlink()
        subprocess.run(["git", "add", "-A", "z"], cwd=bench.workspace, check=True)

    outcome, _ = bench.run("echo mine > t; mv t z/tracked", meanwhile=meanwhile)
    assert [(each.path, each.did) for each in outcome.conflicts] == [("z/tracked", "deleted")]


def test_a_rename_in_a_large_tree_is_told_from_a_deletion(bench):
    """Beyond the names that are listed: renamed by us is no conflict, deleted by them is one."""
    for number in range(2100):
        bench.write(f"many/{number}", "")
    bench.write("z/a", "a\n")
    assert bench.run("mv z/a z/b")[0].is_committed
    outcome, _ = bench.run("echo mine > z/b", meanwhile=(bench.workspace / "z/b").unlink)
    assert [(each.path, each.did) for each in outcome.conflicts] == [("z/b", "deleted")]


def test_another_directory_in_the_workspaces_place_is_refused(bench, tmp_path):
    """A workspace that was moved away during the run gets nothing, nor does what stands there now."""
    bench.write("f", "old\n")
    with bench.view() as view:
        work_in(view, "echo new > f; echo n > n")
        changes = read_changes(view)
        bench.workspace.rename(tmp_path / "moved")
        bench.workspace.mkdir()
        with pytest.raises(WorkspaceError, match="another directory"):
            commit_changes(changes, state_dir=str(bench.state))
    assert os.listdir(bench.workspace) == []
    assert (tmp_path / "moved/f").read_text() == "old\n"


def test_a_copy_says_how_large_it_is(bench):
    """A copy reports bytes done and in all, leaves out what git ignores, and keeps to its bound."""
    if bench.form == "overlay":
        pytest.skip("nothing is copied")
    bench.write(".gitignore", "big/\n")
    bench.write("big/file", "x" * 10_000)
    bench.write("a", "x" * 100)
    seen = []
    with bench.view(progress=lambda done, total: seen.append((done, total))) as view:
        assert sorted(os.listdir(view.copy)) == [".gitignore", "a"]
    assert seen[-1] == (105, 105)
    with pytest.raises(WorkspaceError, match="too large"), bench.view(max_copy_bytes=50):
        pass


def test_as_root_everything_belongs_to_the_owner_of_the_workspace(bench):
    """Root commits the work of a child that ran as the owner: owners stay, new files are the owner's."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    bench.write("f", "old\n")
    bench.write("roots", "r\n", mode=0o666)
    for path in (bench.workspace, bench.workspace / "f"):
        os.chown(path, 1000, 1000)
    run = "setpriv --reuid 1000 --regid 1000 --clear-groups bash -c 'echo new > f; mkdir -p d/e; echo n > d/e/n; ln -s f l; echo more >> roots'"
    outcome, _ = bench.run(run)
    assert outcome.is_committed
    owners = {
        path: os.lstat(bench.workspace / path).st_uid
        for path in ("f", "d", "d/e", "d/e/n", "l", "roots")
    }
    assert owners == {"f": 1000, "d": 1000, "d/e": 1000, "d/e/n": 1000, "l": 1000, "roots": 0}


def test_what_was_given_to_the_old_content_does_not_pass_to_the_new(bench):
    """Neither capabilities nor a set-user-ID bit of a file stay when a child has rewritten it."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a file capabilities")
    raw = bytes.fromhex("0100000200200000000000000000000000000000")  # cap_net_raw+ep
    for path in ("tool", "kept"):
        os.setxattr(bench.write(path, mode=0o755), "security.capability", raw)
        os.setxattr(bench.workspace / path, "user.note", b"mine")
        (bench.workspace / path).chmod(0o6755)
    outcome, _ = bench.run("echo evil > new; chmod 6755 new; mv new tool; chmod 6755 tool")
    assert outcome.is_committed
    at = bench.workspace / "tool"
    assert at.read_text() == "evil\n"
    assert stat.S_IMODE(at.stat().st_mode) == 0o755
    assert os.listxattr(at) == ["user.note"]
    assert os.getxattr(bench.workspace / "kept", "security.capability") == raw
    assert stat.S_IMODE((bench.workspace / "kept").stat().st_mode) == 0o6755
