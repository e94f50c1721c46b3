"""Calls that change the kernel's state, or show too much of it, are refused."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from support_sandbox import Person, all_three, require

from forkrun_sandbox.numbers import numbers

NUMBERS = numbers(os.uname().machine)
REFUSED = (
    *("mount", "umount2", "pivot_root", "chroot", "fsopen", "fsconfig", "fsmount", "fspick"),
    *("open_tree", "move_mount", "mount_setattr", "unshare", "setns", "keyctl", "add_key"),
    *("request_key", "bpf", "perf_event_open", "userfaultfd", "ptrace", "process_vm_readv"),
    *("process_vm_writev", "pidfd_getfd", "kcmp", "clock_settime", "settimeofday", "adjtimex"),
    *("sethostname", "setdomainname", "reboot", "init_module", "finit_module", "delete_module"),
    *("kexec_load", "swapon", "swapoff", "acct", "quotactl", "syslog", "open_by_handle_at"),
    *("name_to_handle_at", "fanotify_init", "vhangup", "move_pages", "migrate_pages"),
)
NOT_THERE = ("clone3", "io_uring_setup", "io_uring_enter", "io_uring_register", "memfd_secret")


def _call_each(names: dict[str, int]) -> str:
    return f"""
    def act():
        results = {{}}
        for name, number in {names!r}.items():
            ended = libc.syscall(number, 0, 0, 0, 0, 0, 0)
            results[name] = errno.errorcode[ctypes.get_errno()] if ended == -1 else "done"
        return results
    """


def test_harmful_calls_are_refused(workspace: Path, who: Person) -> None:
    """EPERM, whatever the arguments."""
    act = _call_each({name: NUMBERS[name] for name in REFUSED})
    assert who.act(act, cwd=workspace) == all_three(dict.fromkeys(REFUSED, "EPERM"))


def test_calls_with_a_fallback_are_not_there(workspace: Path, who: Person) -> None:
    """ENOSYS, so that programs take the older road."""
    act = _call_each({name: NUMBERS[name] for name in NOT_THERE})
    assert "EINVAL" in who.act_freely(act, cwd=workspace).values()
    assert who.act(act, cwd=workspace) == all_three(dict.fromkeys(NOT_THERE, "ENOSYS"))


def test_unknown_calls_are_not_there(workspace: Path, who: Person) -> None:
    """The x32 twins of calls and calls of the future are closed too."""
    calls = {"x32 write": 0x40000001, "none": 100_000, "470": 470, "-1": -1}
    act = _call_each(calls)
    assert who.act(act, cwd=workspace) == all_three(dict.fromkeys(calls, "ENOSYS"))


FLAGS = {"user": 0x10000000, "mount": 0x20000, "pid": 0x20000000, "net": 0x40000000}


def test_no_namespace_can_be_made(workspace: Path, who: Person) -> None:
    """clone with a namespace flag is refused; a user namespace can be made outside."""
    act = f"""
    def act():
        results = {{}}
        for name, flag in {FLAGS!r}.items():
            child = libc.syscall({NUMBERS["clone"]}, flag | 17, 0, 0, 0, 0)
            if child == 0:
                os._exit(0)
            if child > 0:
                os.waitpid(child, 0)
            results[name] = "made" if child > 0 else errno.errorcode[ctypes.get_errno()]
        return results
    """
    assert who.act_freely(act, cwd=workspace)["user"] == "made"
    assert who.act(act, cwd=workspace) == all_three(dict.fromkeys(FLAGS, "EPERM"))


def test_the_hosts_name_and_clock_stay(workspace: Path, who: Person) -> None:
    """The sandbox has a host name of its own, and no way to change any."""
    before = os.uname().nodename
    act = "def act(): return os.uname().nodename"
    assert who.act_freely(act, cwd=workspace) == before
    assert who.act(act, cwd=workspace) == all_three("sandbox")
    assert os.uname().nodename == before


def test_a_key_of_the_session_cannot_be_read(workspace: Path, who: Person) -> None:
    """A key that the caller has planted in its session keyring is not to be had inside."""
    require(os.path.exists("/proc/keys"), "a kernel without keys")
    key = NUMBERS["add_key"], NUMBERS["keyctl"]
    plant = f"""
    import ctypes, os, sys
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall({key[1]}, 1, None)
    number = libc.syscall({key[0]}, b"user", b"forkrun-canary", b"secret", 6, -3)
    assert number > 0, os.strerror(ctypes.get_errno())
    os.environ["KEY_NUMBER"] = str(number)
    os.execvp(sys.argv[1], sys.argv[1:])
    """
    plant = "\n".join(line.strip() for line in plant.splitlines())
    read = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(16)
size = libc.syscall(KEYCTL, 11, int(os.environ["KEY_NUMBER"]), buffer, 16, 0)
print("read" if size == 6 else os.strerror(ctypes.get_errno()))
""".replace("KEYCTL", str(key[1]))
    planted = [who.python, "-c", plant]
    control = who.run_freely([*planted, who.python, "-c", read], cwd=workspace)
    assert control.stdout == "read\n", control.stderr
    confined = who.argv("--env", "KEY_NUMBER", "--", who.python, "-c", read)
    ended = who.run_freely([*planted, *confined], cwd=workspace)
    assert ended.stdout == "Operation not permitted\n", ended.stderr
    listed = who.run_freely([*planted, *who.argv("--", "cat", "/proc/keys")], cwd=workspace)
    assert "forkrun-canary" not in listed.stdout


def test_set_id_programs_give_no_rights(workspace: Path, who: Person) -> None:
    """A set-user-id program runs with no more rights than its caller, and none can be made."""
    act = """
    def act():
        status = open("/proc/self/status").read()
        wanted = ("NoNewPrivs:\\t1", "CapEff:\\t0000000000000000", "CapBnd:\\t0000000000000000")
        return [line in status for line in wanted]
    """
    assert who.act(act, cwd=workspace) == all_three([True, True, True])
    nosuid = "def act(): return bool(os.statvfs('/usr/bin').f_flag & os.ST_NOSUID)"
    assert who.act_freely(nosuid, cwd=workspace) is False
    assert who.act(nosuid, cwd=workspace) == all_three(True)


SET_ID = {
    "chmod": "os.close(os.open(n, os.O_CREAT | os.O_WRONLY)); os.chmod(n, 0o4755)",
    "fchmod": "os.fchmod(os.open(n, os.O_CREAT | os.O_WRONLY), 0o4755)",
    "open": "os.open(n, os.O_CREAT | os.O_WRONLY, 0o4755)",
    "mknod": "os.mknod(n, 0o104755)",
    "openat2": "checked(libc.syscall(437, -100, n.encode(),"
    " (ctypes.c_uint64 * 3)(os.O_CREAT | os.O_WRONLY, 0o4755, 0), 24))",
}


def test_no_set_id_program_can_be_left_on_the_host(workspace: Path, who: Person) -> None:
    """In a workspace that is written in place no file can get the set-user-id bit."""
    tries = "".join(
        f"    try:\n        n = f'{way}-{{os.getpid()}}'\n        {code}\n    except OSError: pass\n"
        for way, code in SET_ID.items()
    )
    act = f"""
def act():
{tries}
    return sorted(n.split("-")[0] for n in os.listdir() if os.stat(n).st_mode & 0o6000)
"""
    control = (
        "import shutil\n"
        + act.replace("    return", "    found =", 1)
        + "    for n in os.listdir(): os.unlink(n)\n    return found\n"
    )
    assert who.act_freely(control, cwd=workspace) == sorted(SET_ID)
    assert who.act(act, cwd=workspace) == all_three([])


def test_no_device_can_be_made(workspace: Path, who: Person) -> None:
    """Not even the device 0/0, which an overlay reads as a deletion."""
    act = "def act(): os.mknod(f'd{os.getpid()}', 0o020666, 0); return 'made'"
    assert who.act_freely(act, cwd=workspace) == "made"
    assert who.act(act, cwd=workspace) == all_three("EPERM")


def test_terminals_cannot_be_typed_into(workspace: Path, who: Person) -> None:
    """TIOCSTI and TIOCLINUX are refused, also with other bits set above the 32 that count."""
    act = """
    def act():
        master, slave = os.openpty()
        result = []
        for request in (0x5412, 0x100005412, 0x541C, 0x5423):
            libc.syscall(IOCTL, slave, ctypes.c_ulong(request), b"x")
            result.append(errno.errorcode.get(ctypes.get_errno()))
        return result
    """.replace("IOCTL", str(NUMBERS["ioctl"]))
    assert who.act(act, cwd=workspace) == all_three(["EPERM"] * 4)


def test_there_is_no_terminal(workspace: Path, who: Person) -> None:
    """The caller's terminal is not the controlling terminal of anything inside."""
    command = ["sh", "-c", "(exec 3</dev/tty) 2>/dev/null && echo tty || echo none"]
    for words, expected in ((command, "tty"), (who.argv("--", *command), "none")):
        script = ["script", "-qec", shlex.join(words), "/dev/null"]
        assert who.run_freely(script, cwd=workspace).stdout.strip() == expected


@pytest.mark.parametrize("limit", ["0", "1", "unlimited"])
def test_no_core_is_dumped(workspace: Path, who: Person, limit: str) -> None:
    """A crash leaves no core file; asking for one seems to work and changes nothing."""
    code = f"ulimit -c {limit} 2>/dev/null; ulimit -c; kill -SEGV $$"
    ended = who.run(["sh", "-c", code], cwd=workspace)
    assert ended.returncode == 128 + 11
    assert ended.stdout.strip() in ("0", "1")
    assert not list(workspace.iterdir())
