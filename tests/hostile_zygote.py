"""A zygote whose forks misbehave in one named way: the real one, forking the hostile child.

Usage: hostile_zygote.py WAY SANDBOX_FOLDER PATH_ENTRY… CONTROL_FD
"""

import os
import runpy
import sys

way, sandbox_folder, *entries, control = sys.argv[1:]
package = type(sys)("forkrun_sandbox")
package.__path__ = [sandbox_folder]
sys.modules["forkrun_sandbox"] = package
sys.path[:0] = entries

from forkrun.zygote_main import main  # noqa: E402

CHILD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hostile_child.py")


def be_hostile(
    *, channel_fd: int, upper_fd: int, summary_fd: int, parent_pidfd: int, begun: object
) -> None:
    """Be the hostile child, in the place of a worker; behind a PID 1, as a worker is."""
    os.dup2(summary_fd, 1)
    os.close(summary_fd)
    sys.argv = [CHILD, way, sandbox_folder, *entries, f"{channel_fd},{upper_fd}"]
    runpy.run_path(CHILD, run_name="__main__")


main(be_hostile)
