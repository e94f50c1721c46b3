"""The last layer: which system calls there are at all, as a filter that the kernel runs.

An allow-list. What is known to be harmful fails with EPERM, what is unknown (future calls, other
machines' calls, x32) with ENOSYS, so that programs fall back as they would on an older kernel;
clone3 too, because a filter cannot read the flags behind its pointer and libc then uses clone.

Address families are filtered where a socket is made, never where it is used: the address of
connect(2) and sendto(2) is behind a pointer.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import struct

from . import kernel
from .fault import SandboxFault
from .numbers import numbers

_SECCOMP_SET_MODE_FILTER = 1
_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000

# Classic BPF, linux/bpf_common.h: load a word, jump, return; `A` is the accumulator.
_LOAD = 0x20  # A = word at k of struct seccomp_data
_AND = 0x54  # A &= k
_EQUAL = 0x15  # A == k
_GREATER = 0x25  # A > k
_AT_LEAST = 0x35  # A >= k
_ANY_BIT = 0x45  # A & k
_RETURN = 0x06

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, k

ALLOWED = frozenset(
    """
    accept accept4 access alarm arch_prctl bind brk cachestat capget capset chdir chown
    clock_getres clock_gettime clock_nanosleep close close_range connect copy_file_range dup dup2
    dup3 epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2
    execve execveat exit exit_group faccessat faccessat2 fadvise64 fallocate fchdir fchown fchownat
    fcntl fdatasync fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat fstatfs fsync
    ftruncate futex futex_requeue futex_wait futex_waitv futex_wake futimesat get_mempolicy
    get_robust_list get_thread_area getcpu getcwd getdents getdents64 getegid geteuid getgid
    getgroups getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom getresgid
    getresuid getrlimit getrusage getsid getsockname getsockopt gettid gettimeofday getuid getxattr
    getxattrat inotify_add_watch inotify_init inotify_init1 inotify_rm_watch io_cancel io_destroy
    io_getevents io_pgetevents io_setup io_submit ioprio_get ioprio_set kill landlock_add_rule
    landlock_create_ruleset landlock_restrict_self lchown lgetxattr link linkat listen listxattr
    listxattrat llistxattr lremovexattr lseek lsetxattr lstat madvise map_shadow_stack mbind
    membarrier memfd_create mincore mkdir mkdirat mlock mlock2 mlockall mmap mprotect
    mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink mremap mseal msgctl
    msgget msgrcv msgsnd msync munlock munlockall munmap nanosleep newfstatat pause
    pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll prctl
    pread64 preadv preadv2 pselect6 pwrite64 pwritev pwritev2 read readahead readlink readlinkat
    readv recvfrom recvmmsg recvmsg remap_file_pages removexattr removexattrat rename renameat
    renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo
    rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max
    sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler
    sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam sched_setscheduler
    sched_yield seccomp select semctl semget semop semtimedop sendfile sendmmsg sendmsg sendto
    set_mempolicy set_mempolicy_home_node set_robust_list set_thread_area set_tid_address setfsgid
    setfsuid setgid setgroups setitimer setpgid setpriority setregid setresgid setresuid setreuid
    setsid setsockopt setuid setxattr setxattrat shmat shmctl shmdt shmget shutdown sigaltstack
    signalfd signalfd4 splice stat statfs statx symlink symlinkat sync sync_file_range
    syncfs sysinfo tee tgkill time timer_create timer_delete timer_getoverrun timer_gettime
    timer_settime timerfd_create timerfd_gettime timerfd_settime times tkill truncate umask uname
    unlink unlinkat utime utimensat utimes vfork vmsplice wait4 waitid write writev
    """.split()
)

DENIED = frozenset(
    """
    acct add_key adjtimex bpf chroot clock_adjtime clock_settime delete_module fanotify_init
    fanotify_mark finit_module fsconfig fsmount fsopen fspick init_module ioperm iopl kcmp
    kexec_file_load kexec_load keyctl listmount lookup_dcookie lsm_get_self_attr
    lsm_list_modules lsm_set_self_attr migrate_pages mount mount_setattr move_mount move_pages
    name_to_handle_at open_by_handle_at open_tree open_tree_attr perf_event_open pidfd_getfd
    pivot_root process_madvise process_mrelease process_vm_readv process_vm_writev ptrace quotactl
    quotactl_fd reboot request_key setdomainname sethostname setns settimeofday statmount swapoff
    swapon sysfs syslog umount2 unshare uselib userfaultfd ustat vhangup
    """.split()
)

_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_SOCK_STREAM, _SOCK_DGRAM, _SOCK_RAW = 1, 2, 3
_SOCK_TYPE_MASK = 0xF
_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_TERMINAL_WRITES = (0x5412, 0x541C, 0x5423)  # TIOCSTI, TIOCLINUX, TIOCSETD
_O_CREATES = 0o100 | 0o20000000  # O_CREAT, __O_TMPFILE
_S_IFMT, _S_IFCHR, _S_IFBLK = 0o170000, 0o020000, 0o060000
_RLIMIT_CORE = 4
_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0x40000, 0xFFFFFFFF)


@functools.cache
def assemble(*, network: str, set_bits: int, host_is_writable: bool) -> bytes:
    """Assemble the filter for this machine, as the kernel takes it.

    `network` is as in a Spec. `set_bits` are the mode bits that no file may get (04000, 06000).
    With `host_is_writable`, openat2 is refused: its mode hides behind a pointer. Raises
    SandboxFault.
    """
    machine = os.uname().machine
    try:
        program = compile_filter(
            machine, network=network, set_bits=set_bits, host_is_writable=host_is_writable
        )
    except KeyError:
        raise SandboxFault("seccomp", f"no table of system calls for {machine}") from None
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def restrict(program: bytes) -> str:
    """Put an assembled filter in force for this process and its descendants, for good."""
    address = ctypes.cast(ctypes.c_char_p(program), ctypes.c_void_p).value
    head = struct.pack("@HP", len(program) // 8, address)
    try:
        kernel.call("seccomp", _SECCOMP_SET_MODE_FILTER, 0, head)
    except OSError as refusal:
        raise SandboxFault("seccomp", str(refusal.strerror), errno=refusal.errno) from refusal
    return "seccomp"


def compile_filter(
    machine: str, *, network: str, set_bits: int, host_is_writable: bool
) -> list[Instruction]:
    """Assemble the filter for a machine ("x86_64", "aarch64"; else KeyError)."""
    table = numbers(machine)
    rules = _rules(network=network, set_bits=set_bits)
    allowed = ALLOWED if host_is_writable else ALLOWED | {"openat2"}
    program: list[Instruction] = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        _refuse(errno.ENOSYS),
        (_LOAD, 0, 0, 0),
    ]
    if machine == "x86_64":
        program += [(_AT_LEAST, 0, 1, _X32_BIT), _refuse(errno.ENOSYS)]
    program += _verdict(table, names=allowed, result=(_RETURN, 0, 0, _ALLOW))
    for name, checks in rules.items():
        if name in table:
            program += [(_EQUAL, 0, len(checks), table[name]), *checks]
    program += _verdict(table, names=DENIED, result=_refuse(errno.EPERM))
    program.append(_refuse(errno.ENOSYS))
    return program


def _refuse(number: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | number)


def _verdict(
    table: dict[str, int], *, names: frozenset[str], result: Instruction
) -> list[Instruction]:
    """Give `result` for these calls; neighbours in number share one comparison."""
    program: list[Instruction] = []
    for low, high in _ranges(sorted(table[name] for name in names if name in table)):
        if low == high:
            program += [(_EQUAL, 0, 1, low), result]
        else:
            program += [(_AT_LEAST, 0, 2, low), (_GREATER, 1, 0, high), result]
    return program


def _ranges(ordered: list[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for number in ordered:
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def _rules(*, network: str, set_bits: int) -> dict[str, list[Instruction]]:
    """Give the calls whose arguments decide. Each list ends in a return on every way."""
    modes = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "creat": 1}
    rules = {name: _without_bits(at, set_bits) for name, at in modes.items()}
    rules["open"] = _unless_creating(1, _without_bits(2, set_bits))
    rules["openat"] = _unless_creating(2, _without_bits(3, set_bits))
    rules["mknod"] = _no_device(1, set_bits)
    rules["mknodat"] = _no_device(2, set_bits)
    rules["clone"] = _without_bits(0, _NAMESPACES)
    rules["ioctl"] = _none_of(1, _TERMINAL_WRITES)
    rules["personality"] = _one_of(0, _PERSONALITIES)
    rules["setrlimit"] = [_argument(0), (_EQUAL, 0, 1, _RLIMIT_CORE), _refuse(0), _allow()]
    rules["prlimit64"] = _core_limit_kept()
    rules["socketpair"] = _one_of(0, (_AF_UNIX,))
    rules["socket"] = _socket(network)
    return rules


def _allow() -> Instruction:
    return (_RETURN, 0, 0, _ALLOW)


def _argument(index: int) -> Instruction:
    """Load the low word of an argument; the kernel itself takes these as 32 bits."""
    return (_LOAD, 0, 0, 16 + 8 * index)


def _without_bits(index: int, bits: int) -> list[Instruction]:
    return [_argument(index), (_ANY_BIT, 0, 1, bits), _refuse(errno.EPERM), _allow()]


def _unless_creating(flags: int, checks: list[Instruction]) -> list[Instruction]:
    return [_argument(flags), (_ANY_BIT, 1, 0, _O_CREATES), _allow(), *checks]


def _no_device(index: int, set_bits: int) -> list[Instruction]:
    """No device, not even the 0/0 one that overlays read as a deletion."""
    return [
        _argument(index),
        (_AND, 0, 0, _S_IFMT),
        (_EQUAL, 1, 0, _S_IFCHR),
        (_EQUAL, 0, 1, _S_IFBLK),
        _refuse(errno.EPERM),
        *_without_bits(index, set_bits),
    ]


def _none_of(index: int, values: tuple[int, ...]) -> list[Instruction]:
    checks = [(_EQUAL, len(values) - i, 0, value) for i, value in enumerate(values)]
    return [_argument(index), *checks, _allow(), _refuse(errno.EPERM)]


def _one_of(index: int, values: tuple[int, ...]) -> list[Instruction]:
    checks = [(_EQUAL, len(values) - i, 0, value) for i, value in enumerate(values)]
    return [_argument(index), *checks, _refuse(errno.EPERM), _allow()]


def _core_limit_kept() -> list[Instruction]:
    """Let `ulimit -c` succeed without effect: a limit of 1 is what stops dumps into a pipe too."""
    return [
        _argument(1),
        (_EQUAL, 1, 0, _RLIMIT_CORE),
        _allow(),
        _argument(2),
        (_EQUAL, 0, 2, 0),
        (_LOAD, 0, 0, 16 + 8 * 2 + 4),
        (_EQUAL, 1, 0, 0),
        _refuse(0),
        _allow(),
    ]


def _socket(network: str) -> list[Instruction]:
    """AF_UNIX always; with a network, TCP and UDP by their own protocol numbers and no other.

    With the host's network, NETLINK_ROUTE as well, which name resolution asks.
    """
    program = [_argument(0), (_EQUAL, 0, 1, _AF_UNIX), _allow()]
    if network == "none":
        return [*program, _refuse(errno.EPERM)]
    if network == "host":
        program += [
            (_EQUAL, 0, 3, _AF_NETLINK),
            _argument(2),
            (_EQUAL, 0, 1, 0),
            _allow(),
            _argument(0),
        ]
    stream = [(_EQUAL, 0, 4, _SOCK_STREAM), *_protocols(6)]
    datagram = [(_EQUAL, 0, 4, _SOCK_DGRAM), *_protocols(17)]
    return [
        *program,
        (_EQUAL, 2, 0, _AF_INET),
        (_EQUAL, 1, 0, _AF_INET6),
        _refuse(errno.EPERM),
        _argument(1),
        (_AND, 0, 0, _SOCK_TYPE_MASK),
        *stream,
        _argument(1),
        (_AND, 0, 0, _SOCK_TYPE_MASK),
        *datagram,
        _refuse(errno.EPERM),
    ]


def _protocols(own: int) -> list[Instruction]:
    return [_argument(2), (_EQUAL, 1, 0, 0), (_EQUAL, 0, 1, own), _allow()]
