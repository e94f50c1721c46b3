"""The filter for both machines, run by a simulator: every call gets the verdict that it should."""

from __future__ import annotations

import errno
import os

import pytest

from forkrun_sandbox import seccomp
from forkrun_sandbox.numbers import numbers

ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW = "allow"
numbers_of = {machine: numbers(machine) for machine in ARCH}


def simulate(
    program: list[seccomp.Instruction], *, arch: int, number: int, arguments: tuple[int, ...] = ()
) -> str:
    """Run classic BPF over one struct seccomp_data; give "allow" or the name of the error."""
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    words = {0: number & 0xFFFFFFFF, 4: arch}
    for index, value in enumerate(padded):
        words[16 + 8 * index] = value & 0xFFFFFFFF
        words[20 + 8 * index] = (value >> 32) & 0xFFFFFFFF
    accumulator = at = 0
    while True:
        code, if_true, if_false, k = program[at]
        at += 1
        if code == 0x20:
            accumulator = words[k]
        elif code == 0x54:
            accumulator &= k
        elif code == 0x06:
            if k == 0x7FFF0000:
                return ALLOW
            assert k >> 16 == 0x0005
            return errno.errorcode.get(k & 0xFFFF, "0")
        else:
            holds = {
                0x15: accumulator == k,
                0x25: accumulator > k,
                0x35: accumulator >= k,
                0x45: bool(accumulator & k),
            }[code]
            at += if_true if holds else if_false


@pytest.fixture(params=["x86_64", "aarch64"])
def machine(request: pytest.FixtureRequest) -> str:
    """Both machines that there are tables of."""
    machine: str = request.param
    return machine


def _verdict(
    machine: str,
    name: str,
    *arguments: int,
    network: str = "loopback",
    host_is_writable: bool = True,
) -> str:
    program = seccomp.compile_filter(
        machine, network=network, set_bits=0o6000, host_is_writable=host_is_writable
    )
    number = numbers(machine)[name]
    return simulate(program, arch=ARCH[machine], number=number, arguments=arguments)


def test_every_call_of_the_table_has_its_verdict(machine: str) -> None:
    """Allowed, refused or not there: no number falls through to another's verdict."""
    program = seccomp.compile_filter(
        machine, network="none", set_bits=0o6000, host_is_writable=True
    )
    decided = set(seccomp._rules(network="none", set_bits=0o6000))
    table = numbers(machine)
    names = {number: name for name, number in table.items()}
    for number in range(600):
        name = names.get(number, "")
        if name in decided:
            continue
        expected = "ENOSYS"
        if name in seccomp.ALLOWED:
            expected = ALLOW
        elif name in seccomp.DENIED:
            expected = "EPERM"
        assert simulate(program, arch=ARCH[machine], number=number) == expected, name


def test_the_lists_do_not_overlap_and_name_calls_that_are(machine: str) -> None:
    """A call is in one list at most, and both lists are of real calls."""
    decided = set(seccomp._rules(network="none", set_bits=0))
    assert not seccomp.ALLOWED & seccomp.DENIED
    assert not (seccomp.ALLOWED | seccomp.DENIED) & decided
    known = numbers("x86_64").keys() | numbers("aarch64").keys()
    assert not (seccomp.ALLOWED | seccomp.DENIED | decided) - known


def test_other_machines_and_x32_do_not_exist(machine: str) -> None:
    """A call by the 32-bit road, or with the x32 bit, is not there."""
    program = seccomp.compile_filter(machine, network="host", set_bits=0, host_is_writable=False)
    assert simulate(program, arch=0x40000003, number=1) == "ENOSYS"
    assert simulate(program, arch=ARCH[machine], number=0x40000000 | 1) == "ENOSYS"
    assert simulate(program, arch=ARCH[machine], number=-1) == "ENOSYS"


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("clone", (0x01200011,), ALLOW),
        ("clone", (0x10000000 | 17,), "EPERM"),
        ("clone", (0x20000,), "EPERM"),
        ("clone3", (), "ENOSYS"),
        ("ioctl", (0, 0x5401), ALLOW),
        ("ioctl", (0, 0x5412), "EPERM"),
        ("ioctl", (0, 1 << 32 | 0x5412), "EPERM"),
        ("fchmodat", (-100, 0, 0o755), ALLOW),
        ("fchmodat", (-100, 0, 0o4755), "EPERM"),
        ("fchmodat2", (-100, 0, 0o2755), "EPERM"),
        ("openat", (-100, 0, 0, 0o4755), ALLOW),
        ("openat", (-100, 0, os.O_CREAT, 0o4755), "EPERM"),
        ("openat", (-100, 0, os.O_CREAT, 0o644), ALLOW),
        ("openat2", (), "ENOSYS"),
        ("mknodat", (-100, 0, 0o010644), ALLOW),
        ("mknodat", (-100, 0, 0o020644), "EPERM"),
        ("mknodat", (-100, 0, 0o060644), "EPERM"),
        ("prlimit64", (0, 7, 1), ALLOW),
        ("prlimit64", (0, 4, 0), ALLOW),
        ("prlimit64", (0, 4, 1 << 40), "0"),
        ("personality", (0xFFFFFFFF,), ALLOW),
        ("personality", (0x0400000,), "EPERM"),
        ("socketpair", (1,), ALLOW),
        ("socketpair", (16,), "EPERM"),
    ],
)
def test_arguments_decide(
    machine: str, name: str, arguments: tuple[int, ...], expected: str
) -> None:
    """The calls that are neither good nor bad in themselves."""
    assert _verdict(machine, name, *arguments) == expected


@pytest.mark.parametrize("network", ["none", "loopback", "host"])
def test_families(machine: str, network: str) -> None:
    """Which socket(2) calls there are with each network: all families, types, some protocols."""
    flags = 0o2000000 | 0o4000
    program = seccomp.compile_filter(
        machine, network=network, set_bits=0o6000, host_is_writable=True
    )
    internet = {(1, 0), (1, 6), (2, 0), (2, 17)}
    for family in range(46):
        for kind in range(1, 11):
            for protocol in (0, 1, 6, 17, 58, 132, 136, 255, 262):
                is_expected = family == 1 or (
                    network != "none" and family in (2, 10) and (kind, protocol) in internet
                )
                is_expected |= (network, family, protocol) == ("host", 16, 0)
                verdict = simulate(
                    program,
                    arch=ARCH[machine],
                    number=numbers_of[machine]["socket"],
                    arguments=(family, kind | flags, protocol),
                )
                assert (verdict == ALLOW) == is_expected, (family, kind, protocol)


def test_openat2_is_there_where_nothing_of_the_host_is_writable(machine: str) -> None:
    """In a private view a mode does no harm, and file tools want the call."""
    assert _verdict(machine, "openat2", host_is_writable=False) == ALLOW
