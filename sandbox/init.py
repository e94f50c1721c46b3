"""PID 1 of a sandbox as a program of its own: one page of code instead of an interpreter.

All that PID 1 does once the sandbox stands is to reap and to watch. An interpreter that waits for
that holds some 2 MiB of pages of its own, for each sandbox; and what is not in memory cannot be
misused. `init.S` is the source of the program, with what it expects; it is run from a sealed file
in memory (memfd_create(2), execveat(2)).

Where that cannot be done - another machine, a kernel that forbids to run such files - PID 1 stays
an interpreter: `guard.run_init`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct

from . import kernel

NAME = b"forkrun-init"
WORKER = 2  # the first child of PID 1
# The program's descriptors, and where those begin that are not.
TOLD, WATCHED, STATUS = 3, (4, 5), 6
ASIDE = 16

_X86_64 = """
    4889e3bf0400000031f6b89d0000000f05bf0f000000488b7308b89d0000000f054881ec0001000048c7c7ffffff
    ff4889e6ba010000004531d2b83d0000000f054883f802747548c7c3ffffffff4885c00f889b000000740231db48
    8d7c2410c70703000000c7470401000000c7470804000000c7470c01000000c7471005000000c7471401000000be
    030000004889dab8070000000f05668b44241e660b442426754ebf03000000488d742440ba8000000031c00f05e9
    6cffffffbf060000004889e6ba04000000b8010000000f058b3c2489f883e07f74088db880000000eb09c1ef0881
    e7ff000000b8e70000000f05bf89000000ebf2
"""
_AARCH64 = """
    f3030091800080d2010080d2e81480d2010000d4e00180d2610640f9e81480d2010000d4ff0304d100008092e103
    0091220080d2030080d2882080d2010000d41f0800f1e00300540b0080d21f0000f12b05005460000054ff7f0ca9
    eb030391e04300912a00805269008052092800298900805209280129a900805209280229610080d2e2030baa0300
    80d2040080d2280980d2010000d4e93f4079ea4f407929010a2a89020035600080d2e1030191021080d2e80780d2
    010000d4dbffff17c00080d2e1030091820080d2080880d2010000d4e00340b90118001261000034200002110200
    0014003c0853c80b80d2010000d420118052fdffff17
"""
# The code, and e_machine of elf(5).
_MACHINES = {"x86_64": (_X86_64, 62), "aarch64": (_AARCH64, 183)}
_ADDRESS, _PAGE = 0x400000, 0x10000
_HEADER_BYTES, _SEGMENT_BYTES, _SEGMENTS = 64, 56, 2
_LOAD, _STACK, _READ, _WRITE, _EXECUTE = 1, 0x6474E551, 4, 2, 1
_MFD_CLOEXEC, _MFD_ALLOW_SEALING, _MFD_EXEC = 1, 2, 0x10
_F_DUPFD_CLOEXEC, _F_ADD_SEALS, _ALL_SEALS = 1030, 1033, 0xF

_Strings = ctypes.c_char_p * 2
_programs: list[int] = []


def code(machine: str) -> bytes:
    """Give the instructions of the program. Raises KeyError for a machine that it has none for."""
    return bytes.fromhex(_MACHINES[machine][0])


def program(machine: str) -> bytes:
    """Give the program as an ELF file: headers and code in one segment; elf(5)."""
    instructions, number = code(machine), _MACHINES[machine][1]
    start = _HEADER_BYTES + _SEGMENTS * _SEGMENT_BYTES
    size = start + len(instructions)
    identity = b"\x7fELF\x02\x01\x01" + bytes(9)  # 64 bits, little-endian
    header = identity + struct.pack(
        "<HHIQQQIHHHHHH",
        *(2, number, 1, _ADDRESS + start, _HEADER_BYTES, 0, 0),
        *(_HEADER_BYTES, _SEGMENT_BYTES, _SEGMENTS, 0, 0, 0),
    )
    load = (_LOAD, _READ | _EXECUTE, 0, _ADDRESS, _ADDRESS, size, size, _PAGE)
    stack = (_STACK, _READ | _WRITE, 0, 0, 0, 0, 0, 16)
    return (
        header + b"".join(struct.pack("<IIQQQQQQ", *each) for each in (load, stack)) + instructions
    )


def load() -> None:
    """Have the program ready, for this process and those that are forked from it."""
    if _programs:
        return
    with contextlib.suppress(OSError, KeyError):
        _programs.append(_file_of(program(os.uname().machine)))


def loaded() -> tuple[int, ...]:
    """Give the descriptor of the program, if it is there."""
    return tuple(_programs)


def run() -> None:
    """Be the program, on its descriptors; return only where that cannot be done.

    Our one child must be the worker, as process 2.
    """
    load()
    arguments, environment = _Strings(NAME, None), _Strings(None, None)
    for image in _programs:
        with contextlib.suppress(OSError):
            kernel.call("execveat", image, b"", arguments, environment, kernel.AT_EMPTY_PATH)


def _file_of(content: bytes) -> int:
    flags = _MFD_CLOEXEC | _MFD_ALLOW_SEALING
    try:
        descriptor = kernel.call("memfd_create", NAME, flags | _MFD_EXEC)
    except OSError:  # before Linux 6.3, where every such file can be run
        descriptor = kernel.call("memfd_create", NAME, flags)
    try:
        os.write(descriptor, content)
        kernel.call("fcntl", descriptor, _F_ADD_SEALS, _ALL_SEALS)
        return aside(descriptor)
    finally:
        os.close(descriptor)


def aside(descriptor: int) -> int:
    """Duplicate a descriptor to a number that is not one of the program's, closed by exec."""
    return kernel.call("fcntl", descriptor, _F_DUPFD_CLOEXEC, ASIDE)
