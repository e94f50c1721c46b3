"""PID 1 of a sandbox is one page of code; where that cannot be run, an interpreter does the same."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from support_sandbox import Person, require

from forkrun_sandbox import init
from forkrun_sandbox.confine import kernel_version

SOURCE = Path(init.__file__).with_name("init.S")
LOOK = "cat /proc/1/comm; grep -c '^Cap.*:[[:space:]]0*$' /proc/1/status; tr '\\0' ' ' </proc/1/cmdline"
# In a process namespace of its own the setting is its own: Linux 6.3.
NO_FILES_IN_MEMORY = [
    *("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"),
    'echo 2 >/proc/sys/vm/memfd_noexec && exec "$@"',
    "sh",
]


@pytest.fixture(params=["program", "interpreter"])
def form(request: pytest.FixtureRequest) -> list[str]:
    """What to put in front of a sandbox so that its PID 1 is of this form."""
    if request.param == "program":
        return []
    require(os.geteuid() == 0 and kernel_version() >= (6, 3), "root and Linux 6.3")
    return NO_FILES_IN_MEMORY


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_code_is_what_its_source_assembles_to(machine: str, tmp_path: Path) -> None:
    """Nobody has to believe a hexadecimal number."""
    prefix = "" if machine == platform.machine() else f"{machine}-linux-gnu-"
    if not (shutil.which(f"{prefix}gcc") and shutil.which(f"{prefix}objcopy")):
        pytest.skip(f"no assembler for {machine}")
    made, flat = tmp_path / "init.o", tmp_path / "init.bin"
    subprocess.run([f"{prefix}gcc", "-c", "-nostdlib", SOURCE, "-o", made], check=True)
    subprocess.run([f"{prefix}objcopy", "-O", "binary", "-j", ".text", made, flat], check=True)
    assert flat.read_bytes() == init.code(machine)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="no program for it")
def test_pid_1_is_the_program_and_has_no_rights(who: Person, workspace: Path) -> None:
    """It is named, holds no capability whoever started it, and has dropped its interpreter."""
    name, rights, arguments = who.run(["bash", "-c", LOOK], cwd=workspace).stdout.splitlines()
    assert name == init.NAME.decode()
    assert int(rights) >= 4  # inheritable, permitted, effective and ambient are empty
    assert arguments.split()[0] == init.NAME.decode()


@pytest.mark.parametrize("who", ["root"], indirect=True)
def test_without_files_in_memory_pid_1_is_an_interpreter(who: Person, workspace: Path) -> None:
    """The kernel refuses to run the program: nothing else is lost, and nothing is said."""
    require(kernel_version() >= (6, 3), "Linux 6.3")
    ended = who.run(["bash", "-c", LOOK], cwd=workspace, before=NO_FILES_IN_MEMORY)
    name, rights, *_ = ended.stdout.splitlines()
    assert name.startswith("python")
    assert int(rights) >= 4
    assert ended.returncode == 0


@pytest.mark.parametrize("who", ["root"], indirect=True)
@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -9 $$", 137), ("kill -TERM $$", 143)],
)
def test_a_sandbox_ends_as_what_ran_in_it(
    who: Person, workspace: Path, form: list[str], script: str, status: int
) -> None:
    """Exit statuses and signals come through PID 1 unchanged."""
    ended = who.run(["bash", "-c", script], cwd=workspace, before=form)
    assert ended.returncode % 256 == status, ended.stderr


@pytest.mark.parametrize("who", ["root"], indirect=True)
def test_orphans_are_reaped(who: Person, workspace: Path, form: list[str]) -> None:
    """A hundred daemons whose parents have ended leave no zombie."""
    script = """
        for i in $(seq 100); do (setsid true &); done
        for i in $(seq 200); do
            sleep 0.01
            grep -qs '^State:.Z' /proc/[0-9]*/status || { echo none; exit; }
        done
        grep -h '^Name' $(grep -ls '^State:.Z' /proc/[0-9]*/status)
    """
    ended = who.run(["bash", "-c", script], cwd=workspace, before=form)
    assert ended.stdout == "none\n", ended


@pytest.mark.parametrize("who", ["root"], indirect=True)
def test_nobody_inside_can_end_or_read_pid_1(who: Person, workspace: Path, form: list[str]) -> None:
    """Signals from within do not reach it, and its memory is not to be had; a child's own are."""
    act = """
        import signal
        def act():
            found = []
            for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP):
                try:
                    os.kill(1, number)
                except PermissionError:
                    pass
            for pid in (1, os.getpid()):
                try:
                    open(f"/proc/{pid}/mem", "rb").close()
                    found.append("read")
                except OSError:
                    found.append("refused")
            return found
    """

    assert who.act(act, cwd=workspace, before=form) == [["refused", "read"]] * 3
