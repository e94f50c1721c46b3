"""What a view changed comes back as data, whatever it is."""

from __future__ import annotations

import os
import socket
import stat

import pytest
from support_views import picture, work_in

from forkrun.errors import UsageError, WorkspaceError
from forkrun.workspace.changes import read_changes
from forkrun.workspace.views import check_workspace, open_view, sweep_views


def kinds(bench, script):
    with bench.view() as view:
        work_in(view, script)
        changes = read_changes(view)
        return [(each.kind, each.path) for each in changes.entries], changes


def test_every_kind_of_change_is_named(bench):
    """Added, modified, deleted, mode and symlink are told apart."""
    for name in ("edit", "gone", "chmod"):
        bench.write(name)
    os.symlink("edit", bench.workspace / "link")
    found, _ = kinds(
        bench, "echo y > edit; rm gone; chmod 600 chmod; ln -sfn chmod link; echo n > new"
    )
    assert found == [
        ("mode", "chmod"), ("modified", "edit"), ("deleted", "gone"), ("symlink", "link"), ("added", "new"),
    ]  # fmt: skip


def test_what_was_touched_but_is_the_same_is_no_change(bench):
    """A new time, or the same bytes written again, change nothing."""
    bench.write("a", "same\n")
    bench.write("b", "same\n")
    bench.write("d/c", "same\n")
    os.symlink("a", bench.workspace / "l")
    script = "touch a; echo same > b2; mv b2 b; rm -r d; mkdir d; echo same > d/c; rm l; ln -s a l; touch t; rm t"
    assert kinds(bench, script)[0] == []


def test_a_directory_made_again_loses_what_is_not_in_it(bench):
    """A directory that is removed and made again (opaque) shows what was in it as deleted."""
    bench.write("d/a")
    bench.write("d/e/b")
    found, _ = kinds(bench, "rm -r d; mkdir d; echo n > d/n")
    assert found == [("deleted", "d/a"), ("deleted", "d/e"), ("deleted", "d/e/b"), ("added", "d/n")]


def test_a_rename_is_a_deletion_and_an_addition(bench):
    """A renamed file, and a renamed directory, are seen at both places."""
    bench.write("a")
    bench.write("d/b")
    found, _ = kinds(bench, "mv a a2; mv d d2")
    assert found == [
        ("deleted", "a"), ("added", "a2"), ("deleted", "d"), ("deleted", "d/b"), ("added", "d2"), ("added", "d2/b"),
    ]  # fmt: skip


def test_a_change_of_type_is_told(bench):
    """File and directory in each other's place are a deletion and an addition; a link replaces."""
    bench.write("f")
    bench.write("d/x")
    bench.write("l")
    found, _ = kinds(bench, "rm f; mkdir f; rm -r d; echo d > d; rm l; ln -s f l")
    assert found == [
        ("deleted", "d"), ("added", "d"), ("deleted", "d/x"), ("deleted", "f"), ("added", "f"), ("symlink", "l"),
    ]  # fmt: skip


def test_special_files_are_withheld(bench):
    """FIFOs and sockets are named, neither opened nor committed."""
    bench.write("was")
    script = """mkfifo fifo; rm was; mkfifo was
python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("sock")'"""
    _, changes = kinds(bench, script)
    assert [(each.path, each.reason) for each in changes.withheld] == [
        ("fifo", "a FIFO cannot be committed"),
        ("sock", "a socket cannot be committed"),
        ("was", "a FIFO cannot be committed"),
    ]
    assert changes.entries == ()


def test_names_that_are_not_utf8_survive(bench):
    """A name is bytes: invalid UTF-8, newlines, quotes and control characters are kept."""
    found, _ = kinds(
        bench, r"""echo 1 > $'caf\xe9'; echo 2 > $'new\nline'; echo 3 > $'esc\e[31m"q\\'"""
    )
    assert sorted(path for _, path in found) == sorted(
        ["caf\udce9", "new\nline", 'esc\x1b[31m"q\\']
    )


def test_closed_directories_are_read(bench):
    """A directory and a file of mode 000 are read, and their modes told."""
    _, changes = kinds(bench, "mkdir -p c/d; echo s > c/d/f; chmod 000 c/d/f c/d c")
    assert [(each.path, each.after.mode) for each in changes.entries] == [
        ("c", 0),
        ("c/d", 0),
        ("c/d/f", 0),
    ]


def test_thousands_of_levels_are_survived(bench):
    """A tree deeper than any path is read to the longest path, and wholly removed."""
    with bench.view() as view:
        work_in(
            view, 'python3 -c \'import os\nfor i in range(3000):\n os.mkdir("d"); os.chdir("d")\''
        )
        changes = read_changes(view)
    assert len(changes.entries) == 2048
    assert [each.reason for each in changes.withheld] == ["the path is longer than 4095 bytes"]


def test_too_many_changes_are_refused(bench):
    """There is a bound on the number of changes that are held in memory."""
    with bench.view() as view:
        work_in(view, "mkdir n; cd n; touch $(seq 100)")
        with pytest.raises(WorkspaceError, match="more than 50 paths"):
            read_changes(view, max_entries=50)


def test_links_out_of_the_view_are_not_followed(bench, tmp_path):
    """A link in place of a directory is a link: nothing beyond it is read or changed."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text("keep")
    bench.write("d/f")
    found, _ = kinds(bench, f"rm -r d; ln -s {outside} d; ln -s {outside}/f leaf")
    assert found == [("deleted", "d"), ("symlink", "d"), ("deleted", "d/f"), ("symlink", "leaf")]
    assert picture(outside).keys() == {"f"}


def test_the_workspace_is_untouched_by_a_view(bench):
    """Working in a view, and leaving it, change nothing: bytes, modes, times of all entries."""
    bench.write("a")
    bench.write("d/b", mode=0o600)
    os.symlink("a", bench.workspace / "l")
    before = picture(bench.workspace)
    stats = [os.lstat(bench.workspace / name) for name in (".", "a", "d", "d/b", "l")]
    kinds(bench, "echo y > a; rm -r d; rm l; echo n > n")
    after = [os.lstat(bench.workspace / name) for name in (".", "a", "d", "d/b", "l")]
    assert picture(bench.workspace) == before
    assert [(one.st_mtime_ns, one.st_ino) for one in stats] == [
        (one.st_mtime_ns, one.st_ino) for one in after
    ]


def test_a_view_of_a_dead_owner_is_swept_and_a_live_one_kept(bench):
    """What a killed run left goes with the next start; what is in use stays."""
    with bench.view() as view:
        dead = bench.state / "views" / "dead"
        (dead / "work" / "work").mkdir(parents=True)
        (dead / "work" / "work").chmod(0)
        assert sweep_views(str(bench.state)) == 1
        assert os.path.isdir(view.directory)


@pytest.mark.parametrize("what", ["/", "home", "above"])
def test_a_workspace_that_contains_the_home_directory_is_refused(tmp_path, what):
    """The root, the home directory and what contains it are no workspaces; a project in it is."""
    home = tmp_path / "above" / "home"
    (home / "project").mkdir(parents=True)
    check_workspace(str(home / "project"), home=str(home))
    with pytest.raises(UsageError):
        check_workspace(
            {"/": "/", "home": str(home), "above": str(home.parent)}[what], home=str(home)
        )


def test_a_state_directory_in_the_workspace_is_refused(tmp_path):
    """A view of the workspace cannot lie in it."""
    with (
        pytest.raises(UsageError),
        open_view(str(tmp_path), run_id="r", state_dir=str(tmp_path / "s")),
    ):
        pass


def test_a_socket_of_the_workspace_can_be_deleted(bench):
    """Whatever stands in the workspace, its deletion is a change like any other."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(bench.workspace / "sock"))
    if bench.form == "copy":
        pytest.skip("a copy has no sockets")
    found, _ = kinds(bench, "rm sock")
    assert found == [("deleted", "sock")]
    assert stat.S_ISSOCK(os.lstat(bench.workspace / "sock").st_mode)
