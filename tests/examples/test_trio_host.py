"""examples/trio_host.py, run as it stands."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from support_api import program, replies
from support_cli import environment

EXAMPLE = Path(__file__).parents[2] / "examples" / "trio_host.py"

if find_spec("trio_asyncio") is None:  # not imported here: that replaces the event loop policy
    pytest.skip("trio-asyncio is not installed", allow_module_level=True)


def test_it_runs_a_subagent(tmp_path: Path) -> None:
    """The example prints tool calls to stderr and the summary to stdout."""
    workspace = tmp_path / "ws"
    workspace.mkdir()
    call = {"name": "glob", "input": {"pattern": "*"}}
    model = replies(tmp_path / "s", {"tool_use": [call]}, {"text": "FINAL"})
    done = subprocess.run(
        [sys.executable, "-X", "dev", str(EXAMPLE), model, "Look around"],
        cwd=workspace,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "FINAL\n"), done.stderr
    assert " glob\n" in done.stderr


CUT = """
import sys, trio, trio_asyncio, forkrun
async def main():
    async with trio_asyncio.open_loop():
        with trio.move_on_after(0.5) as scope:
            await trio_asyncio.aio_as_trio(forkrun.run)("go", model=sys.argv[1], cwd="ws")
        print(scope.cancelled_caught)
trio.run(main)
"""


def test_a_cancel_scope_ends_the_tree(tmp_path: Path) -> None:
    """A cancel scope that runs out kills the child and gives control back to trio."""
    (tmp_path / "ws").mkdir()
    call = {"name": "bash", "input": {"command": "sleep 60"}}
    model = replies(tmp_path / "s", {"tool_use": [call]})
    assert program(CUT, model, cwd=tmp_path).stdout == "True\n"
