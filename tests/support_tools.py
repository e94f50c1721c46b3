"""A toolbox on a workspace of its own, in this process or in one that is set up differently."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from forkrun.protocol import ToolCall, ToolLimits
from forkrun.tools import Toolbox, allow_everything

ALL = ("bash", "read_file", "write_file", "edit_file", "glob", "grep")
PATH = "/usr/local/bin:/usr/bin:/bin"
DRIVER = Path(__file__).with_name("toolbox_driver.py")


class Box:
    """An open toolbox, and short ways to call it."""

    def __init__(self, toolbox, workspace):
        self.toolbox = toolbox
        self.workspace = workspace

    def __call__(self, tool, **arguments):
        """Run one call and give its ToolResult."""
        return self.raw(tool, json.dumps(arguments).encode())

    def raw(self, tool, text):
        """Run one call whose input is this text."""
        return self.toolbox.run(ToolCall(id="t1", name=tool, input=text))

    def ok(self, tool, **arguments):
        """Run a call that must succeed; give its text."""
        result = self(tool, **arguments)
        assert not result.is_error, result.text
        return result.text

    def fails(self, tool, **arguments):
        """Run a call that must fail without being a fault of the tool; give its text."""
        result = self(tool, **arguments)
        assert result.is_error, result.text
        assert "reason of its own" not in result.text
        assert "Traceback" not in result.text
        return result.text

    def sh(self, command):
        """Lay files out with a shell, outside the toolbox."""
        subprocess.run(["bash", "-c", command], cwd=self.workspace, check=True)


@contextmanager
def opened(workspace, *, tools=ALL, env=None, limits=None, judge=allow_everything, alive=None):
    """Open a toolbox on a directory."""
    more = {} if alive is None else {"alive": alive}
    with Toolbox(
        str(workspace),
        tools=tools,
        env={"PATH": PATH, "HOME": "/nonexistent"} if env is None else env,
        limits=limits or ToolLimits(),
        judge=judge,
        **more,
    ) as toolbox:
        yield Box(toolbox, Path(workspace))


@pytest.fixture
def ws(tmp_path):
    """An empty workspace with nothing beside it but what a test puts there."""
    workspace = tmp_path / "ws"
    workspace.mkdir()
    return workspace


@pytest.fixture
def box(ws):
    """A toolbox on that workspace."""
    with opened(ws) as made:
        yield made


@pytest.fixture(params=["ripgrep", "python"])
def searcher(request, ws, tmp_path):
    """A toolbox with ripgrep on its PATH, and one without."""
    path = tmp_path / "path"
    path.mkdir()
    wanted = ["bash", "rg"] if request.param == "ripgrep" else ["bash"]
    for name in wanted:
        found = shutil.which(name)
        if found is None:
            pytest.skip(f"{name} is not installed")
        (path / name).symlink_to(found)
    with opened(ws, env={"PATH": str(path)}) as made:
        yield made


def drive(workspace, calls, *, before=(), env=None, limits=None, **options):
    """Run calls in a toolbox of another process; give its results as dicts.

    `calls` are pairs of a tool and its arguments; `before` is the argv that the driver's own is
    appended to ("unshare …"); `options` go to subprocess.run.
    """
    answer = workspace.parent / "answer.json"
    job = {
        "workspace": str(workspace),
        "env": {"PATH": PATH} if env is None else env,
        "calls": calls,
        "limits": limits or {},
        "answer": str(answer),
        "path": [entry for entry in sys.path if entry],
    }
    argv = [*before, sys.executable, str(DRIVER), json.dumps(job)]
    ended = subprocess.run(argv, timeout=60, check=False, **options)
    assert ended.returncode == 0, (argv, ended)
    return json.loads(answer.read_text())


def pids_with(mark):
    """List the processes whose command line contains a mark."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if (
            any(mark in word for word in process.info["cmdline"] or [])
            and process.pid != os.getpid()
        ):
            found.append(process.pid)
    return found
