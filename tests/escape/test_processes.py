"""Processes of the host can be neither seen, read, traced nor signalled."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support_sandbox import EVERYBODY, Person, all_three

pytestmark = pytest.mark.parametrize("who", EVERYBODY, indirect=True, ids="-".join)

KEY = "canary-key-51c0ffee"


@pytest.fixture
def victim(who: Person) -> Iterator[int]:
    """A process of the same user on the host, with a key in its environment."""
    child = subprocess.Popen(
        [who.python, "-c", "print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"API_KEY": KEY},
        **who.ids,
    )
    assert child.stdout is not None
    child.stdout.readline()
    yield child.pid
    child.kill()
    child.communicate()


FIND_KEY = f"""
def act():
    found = []
    for name in os.listdir("/proc"):
        try:
            if {KEY!r}.encode() in open(f"/proc/{{name}}/environ", "rb").read():
                found.append("found")
        except OSError:
            pass
    return found[:1]
"""


def test_no_environment_of_the_host_is_readable(who: Person, workspace: Path, victim: int) -> None:
    """A key in the environment of another process of the same user is found nowhere in /proc."""
    assert who.act_freely(FIND_KEY, cwd=workspace) == ["found"]
    assert who.act(FIND_KEY, cwd=workspace) == all_three([])


def test_the_callers_environment_does_not_arrive(who: Person, workspace: Path) -> None:
    """A key in the caller's environment is neither in the child's nor in that of PID 1."""
    environment = {**os.environ, "API_KEY": KEY, "LD_PRELOAD_X": KEY}
    act = FIND_KEY.replace("found = []", "found = [v for v in os.environ.values() if v == KEY]")
    act = f"KEY = {KEY!r}\n{act}"
    assert who.act_freely(act, cwd=workspace, env=environment) == [KEY]
    assert who.act(act, cwd=workspace, env=environment) == all_three([])


def test_only_processes_of_the_sandbox_are_there(who: Person, workspace: Path) -> None:
    """/proc shows PID 1, the worker and what it has started, and nobody else."""
    act = "def act(): return sum(name.isdigit() for name in os.listdir('/proc')) <= 5"
    assert who.act_freely(act, cwd=workspace) is False
    assert who.act(act, cwd=workspace) == all_three(True)


def test_nothing_can_be_traced(who: Person, workspace: Path) -> None:
    """ptrace, to attach and to seize, is refused for PID 1, the parent and the worker."""
    act = """
    def act():
        for request in (16, 0x4206):
            for target in (1, os.getppid(), 2):
                assert libc.ptrace(request, target, None, None) == -1
                assert ctypes.get_errno() == errno.EPERM
        return "refused"
    """
    assert who.act(act, cwd=workspace) == all_three("refused")


def test_a_child_can_be_traced_outside(who: Person, workspace: Path) -> None:
    """The control: outside, a process may trace its child."""
    act = """
    import signal
    def act():
        child = os.fork()
        if child == 0:
            signal.pause()
        try:
            return checked(libc.ptrace(16, child, None, None))
        finally:
            os.kill(child, 9)
            os.waitpid(child, 0)
    """
    assert who.act_freely(act, cwd=workspace) == 0
    assert who.act(act, cwd=workspace) == all_three("EPERM")


def test_pid_1_cannot_be_read(who: Person, workspace: Path) -> None:
    """What belongs to the trusted PID 1 is closed to the worker; its own is open."""
    act = """
    def peek(path):
        try:
            if os.path.basename(path) in ("cwd", "exe", "root", "0"):
                os.readlink(path)
            else:
                os.close(os.open(path, os.O_RDONLY))
        except OSError as refusal:
            return refusal.errno in (errno.EACCES, errno.EPERM)
        return False
    def act():
        names = ("environ", "mem", "maps", "cwd", "exe", "root", "fd/0")
        return [[peek(f"/proc/{who}/{name}") for name in names] for who in ("1", "self")]
    """
    assert who.act(act, cwd=workspace) == all_three([[True] * 7, [False] * 7])


def test_pid_1_cannot_be_ended(who: Person, workspace: Path) -> None:
    """No signal from inside ends or stops PID 1."""
    act = """
    import signal
    def act():
        for number in range(1, 65):
            try:
                os.kill(1, number)
            except OSError:
                pass
        return open("/proc/1/stat").read().split()[2] in "SR"
    """
    assert who.act(act, cwd=workspace) == all_three(True)


def test_a_process_of_the_host_cannot_be_signalled(
    who: Person, workspace: Path, victim: int
) -> None:
    """The number of a process of the host means nothing inside."""
    act = f"def act(): os.kill({victim}, 0); return 'signalled'"
    assert who.act_freely(act, cwd=workspace) == "signalled"
    assert who.act(act, cwd=workspace) == all_three("ESRCH", "EPERM")


def test_memory_of_another_process_cannot_be_read(who: Person, workspace: Path) -> None:
    """process_vm_readv and pidfd_getfd are refused, even for one's own processes."""
    act = """
    import struct
    def act():
        result = []
        for number in ({vm}, 438):
            libc.syscall(number, os.getppid(), 0, 0, 0, 0, 0)
            result.append(errno.errorcode.get(ctypes.get_errno()))
        return result
    """.replace("{vm}", "310" if os.uname().machine == "x86_64" else "270")
    assert who.act(act, cwd=workspace) == all_three(["EPERM", "EPERM"])


def test_descriptors_of_the_caller_do_not_arrive(
    who: Person, workspace: Path, outside: Path
) -> None:
    """An open file that the caller lets its children inherit is not there inside."""
    secret = os.open(outside / "secret", os.O_RDONLY)
    os.set_inheritable(secret, True)
    try:
        act = f"""
        def act():
            return os.pread({secret}, 6, 0).decode()
        """
        assert who.act_freely(act, cwd=workspace, pass_fds=(secret,)) == "canary"
        assert who.act(act, cwd=workspace, pass_fds=(secret,)) == all_three("EBADF")
        listed = who.run(["sh", "-c", "ls /proc/self/fd"], cwd=workspace, pass_fds=(secret,))
        assert listed.stdout.split() == ["0", "1", "2", "3"]
    finally:
        os.close(secret)


def test_python_of_the_workspace_is_not_imported(who: Person, workspace: Path) -> None:
    """Modules that lie in the workspace are not what the sandbox itself imports."""
    for name in ("ctypes", "json", "signal", "dataclasses", "sitecustomize", "forkrun_sandbox"):
        (workspace / f"{name}.py").write_text("import os; os.write(2, b'HIJACK'); os._exit(9)")
    ended = who.run(["true"], cwd=workspace, env={**os.environ, "PYTHONPATH": str(workspace)})
    assert (ended.returncode, "HIJACK" in ended.stderr) == (0, False)
    control = [sys.executable, "-c", "import signal"]
    assert subprocess.run(
        control, cwd=workspace, env={"PYTHONPATH": str(workspace)}, check=False, capture_output=True
    ).returncode
