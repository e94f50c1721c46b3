"""The road of systems that are not Linux, as far as it runs here: by the process table alone."""

import subprocess

import psutil
from support_cli import wait_until

from forkrun.elsewhere import end_descendants, measure


def test_a_tree_is_measured_and_ended() -> None:
    """Three processes are counted, with their memory; afterwards only the root is left."""
    with subprocess.Popen(["bash", "-c", "sleep 60 & bash -c 'sleep 60; :'; :"]) as root:
        wait_until(lambda: measure(root.pid).processes == 4)
        assert (measure(root.pid).memory_bytes or 0) > 1_000_000
        root.send_signal(19)  # SIGSTOP: else it would start what comes next
        end_descendants(root.pid)
        left = psutil.Process(root.pid).children(recursive=True)
        assert all(process.status() == psutil.STATUS_ZOMBIE for process in left)
        root.kill()
    assert measure(root.pid).processes == 0


def test_a_process_that_is_gone_uses_nothing() -> None:
    """Nothing is raised for a process id that nobody has."""
    with subprocess.Popen(["true"]) as gone:
        pass
    assert measure(gone.pid).processes == 0
    end_descendants(gone.pid)
