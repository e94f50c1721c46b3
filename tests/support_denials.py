"""Make a host that denies: a seccomp filter in front of a command, as containers and policies do."""

from __future__ import annotations

import errno
import os

import forkrun_sandbox
from forkrun_sandbox.numbers import numbers
from forkrun_sandbox.start import interpreter

NAMESPACES = 0x7E020000

_CODE = """
import ctypes, os, struct, sys, json
from forkrun_sandbox import kernel, seccomp
rules = json.loads(sys.argv[1])
program = [(0x20, 0, 0, 0)]
for number, error in rules["calls"]:
    program += [(0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | error)]
for number in rules["flagged"]:
    program += [(0x15, 0, 4, number), (0x20, 0, 0, 16), (0x45, 0, 1, rules["flags"]),
                (0x06, 0, 0, 0x00050000 | 1), (0x06, 0, 0, 0x7FFF0000)]
program.append((0x06, 0, 0, 0x7FFF0000))
kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
seccomp.restrict(b"".join(struct.pack("=HBBI", *i) for i in program))
os.execvp(sys.argv[2], sys.argv[2:])
"""

# What real hosts refuse: call names, with an errno name; "unshare" also stands for clone.
HOSTS = {
    "unshare": {"unshare": "EPERM"},
    "mount": {"mount": "EACCES", "fsopen": "EPERM", "open_tree": "EPERM", "move_mount": "EPERM"},
    "new mount calls": {"fsopen": "ENOSYS", "open_tree": "ENOSYS", "mount_setattr": "ENOSYS"},
    "landlock": {"landlock_create_ruleset": "ENOSYS"},
    "seccomp": {"seccomp": "EINVAL"},
    "keyctl": {"keyctl": "EPERM"},
}


def denying(*hosts: str, python: str) -> list[str]:
    """Give what to put in front of a command to run it on such a host."""
    import json

    table = numbers(os.uname().machine)
    calls = {name: number for host in hosts for name, number in HOSTS[host].items()}
    rules = {
        "calls": [(table[name], getattr(errno, number)) for name, number in calls.items()],
        "flagged": [table["clone"]] if "unshare" in hosts else [],
        "flags": NAMESPACES,
    }
    directory = os.path.dirname(os.path.abspath(forkrun_sandbox.__file__))
    bootstrap = interpreter("spec", "Spec")[4].rsplit("sys.argv[:4]", 1)[0]
    code = bootstrap + 'sys.argv[:4] = ["deny"]\n' + _CODE
    return [python, "-I", "-S", "-c", code, directory, "x", "y", json.dumps(rules)]
