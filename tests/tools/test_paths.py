"""Paths of the workspace, on both roads: openat2 and the walk where there is none."""

import ctypes
import errno
import itertools
import os
import threading
import time

import pytest
from support_tools import opened

from forkrun.tools import kernel
from forkrun.tools.paths import Workspace

AT_FDCWD = -100
RENAME_EXCHANGE = 2


def no_openat2(directory, path, *, flags):
    """Stand for a kernel that does not have it."""
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


@pytest.fixture(params=["openat2", "walk"])
def road(request, monkeypatch):
    """The way in which paths are opened."""
    if request.param == "walk":
        monkeypatch.setattr(kernel, "openat2", no_openat2)
    return request.param


def test_open_takes_no_link(ws, road):
    """A resolved path is opened as it is: a link in it, or at its end, is an error."""
    (ws / "d").mkdir()
    (ws / "d" / "f").write_text("x")
    (ws / "l").symlink_to("d")
    (ws / "d" / "lf").symlink_to("f")
    with Workspace(str(ws)) as workspace:
        os.close(workspace.open("d/f", flags=os.O_RDONLY))
        os.close(workspace.open("d", flags=os.O_RDONLY))
        os.close(workspace.open(".", flags=os.O_RDONLY))
        for path in ("l/f", "d/lf"):
            with pytest.raises(OSError) as caught:
                workspace.open(path, flags=os.O_RDONLY)
            assert caught.value.errno in {errno.ELOOP, errno.ENOTDIR}


def test_tools_work(ws, road):
    """The file tools do the same on both roads."""
    (ws / "real").mkdir()
    (ws / "link").symlink_to("real")
    (ws / "out").symlink_to("..")
    with opened(ws) as box:
        box.ok("write_file", path="link/a/b/c.txt", content="1\n")
        box.ok("edit_file", path="real/a/b/c.txt", old_string="1", new_string="2")
        assert box.ok("read_file", path="link/a/../a/b/c.txt") == "     1\t2"
        assert box.ok("glob", pattern="**/*.txt") == "real/a/b/c.txt"
        assert box.ok("grep", pattern="2", path="real") == "real/a/b/c.txt:1:2"
        assert box("write_file", path="out/x", content="1").denied
        assert "No such file" in box.fails("read_file", path="real/none")
    assert os.listdir(ws.parent) == ["ws"]


def test_link_swapped_in_between(ws, road):
    """While somebody swaps a directory and a link to the outside, nothing outside is touched."""
    outside = ws.parent / "outside"
    outside.mkdir()
    (outside / "f").write_text("secret")
    (ws / "real").mkdir()
    (ws / "real" / "f").write_text("inside")
    (ws / "spare").symlink_to(outside)
    stop = threading.Event()

    def swap():
        exchange = ctypes.CDLL(None).renameat2
        names = os.fsencode(ws / "real"), os.fsencode(ws / "spare")
        while not stop.is_set():
            exchange(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE)

    thread = threading.Thread(target=swap)
    thread.start()
    done = 0
    try:
        with opened(ws) as box:
            deadline = time.monotonic() + 20
            tries = itertools.count()
            while next(tries) < 150 or (not done and time.monotonic() < deadline):
                text = box("read_file", path="real/f").text
                assert "secret" not in text
                done += "inside" in text or "written" in text
                box("write_file", path="real/f", content="written")
                box("edit_file", path="real/f", old_string="written", new_string="inside")
                assert "secret" not in box("grep", pattern=".", path="real", glob="*").text
    finally:
        stop.set()
        thread.join()
    assert done
    assert (outside / "f").read_text() == "secret"
    assert os.listdir(outside) == ["f"]


@pytest.mark.parametrize("path", ["x" * 300, "/".join(["d"] * 3000), "a/" * 5000])
def test_names_that_are_too_long(ws, road, path):
    """A name or path that is too long for the system is an error."""
    with opened(ws) as box:
        box.fails("read_file", path=path)
        box.fails("grep", pattern="x", path=path)
    with opened(ws) as box:
        box.fails("write_file", path="x" * 300, content="x")


def test_messages_name_no_other_path_of_the_host(ws):
    """An error about the outside names the path as it was given and the workspace, no more."""
    target = ws.parent / "a-place-nobody-should-learn-of"
    target.mkdir()
    (ws / "l").symlink_to(target)
    with opened(ws) as box:
        for path in ("l", "l/x", "../x", "/etc/passwd"):
            text = box.fails("read_file", path=path)
            assert target.name not in text and str(ws) in text
