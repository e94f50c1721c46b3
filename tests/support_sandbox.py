"""Run acts inside a sandbox and, as the positive control, outside of it.

An act is the source of a Python function `act()` that returns something JSON can say. It is run by
the child of a sandbox, by a grandchild and by a great-grandchild in a session of its own; an
OSError that it lets out becomes its errno name.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import pwd
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import forkrun_sandbox
from forkrun.starting import package_folders
from forkrun_sandbox.start import interpreter

USER_ID = 64321
WHO = ("root", "user")
EVERYBODY = [(name, start) for name in WHO for start in ("exec", "warm")]
FORKED = str(Path(__file__).with_name("forked_program.py"))

_RUNNER = """
import errno, json, os, sys, ctypes
libc = ctypes.CDLL(None, use_errno=True)

def checked(result):
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result

def attempt():
    try:
        return act()
    except OSError as refusal:
        return errno.errorcode.get(refusal.errno, str(refusal))

def in_fork(body):
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            os.write(write, json.dumps(body()).encode())
        finally:
            os._exit(0)
    os.close(write)
    told = b""
    while chunk := os.read(read, 65536):
        told += chunk
    os.wait()
    return json.loads(told)

def in_session():
    os.setsid()
    return in_fork(attempt)

{act}

print(json.dumps([attempt(), in_fork(attempt), in_fork(in_session)]))
"""


def require(condition: object, reason: str) -> None:
    """Skip where something is not there; fail where CI says that it must be."""
    if condition:
        return
    if os.environ.get("FORKRUN_REQUIRE_SANDBOX") == "1":
        pytest.fail(f"FORKRUN_REQUIRE_SANDBOX is set, but: {reason}")
    pytest.skip(reason)


class Person:
    """Who runs the test: root, or an ordinary user. `python` is an interpreter that both can use.

    `start` is how the child of a sandbox comes to be: "exec", or "warm", as a fork of a zygote.
    """

    def __init__(self, name: str, *, start: str = "exec") -> None:
        self.name = name
        self.start = start
        self.is_root = name == "root"
        if self.is_root:
            require(os.geteuid() == 0, "not run as root")
        self.python = sys.executable if self.is_root else _python_for_all()
        drops = os.geteuid() == 0 and not self.is_root
        self.ids: dict[str, Any] = (
            {"user": USER_ID, "group": USER_ID, "extra_groups": []} if drops else {}
        )
        self.uid = USER_ID if drops else os.geteuid()
        if start == "warm":
            self.need_forkrun()

    def need_forkrun(self) -> None:
        """Skip where this person has no interpreter for which forkrun's requirements were built."""
        code = "import sys; sys.path[:0] = sys.argv[1:]; import forkrun.runner"
        if not _runs(self.python, code, *package_folders()[1:], uid=self.ids.get("user")):
            pytest.skip(f"{self.python} of {self.name} cannot import what forkrun needs")

    def owns(self, directory: Path) -> Path:
        """Hand a directory and what is in it to this person, and make the way to it passable."""
        if self.ids:
            for path in (directory, *directory.rglob("*")):
                os.chown(path, USER_ID, USER_ID, follow_symlinks=False)
            for above in directory.parents:
                if above.stat().st_uid == 0 and above != Path("/") and not above.stat().st_mode & 1:
                    above.chmod(0o755)
        return directory

    def argv(self, *options: str) -> list[str]:
        """Give the command line of the sandbox, with the interpreter of this person."""
        if self.start == "warm":
            return [self.python, "-I", "-S", FORKED, ":".join(package_folders()), *options]
        return [self.python, *interpreter("__main__", "program", *options)[1:]]

    def run(
        self,
        command: list[str],
        *options: str,
        cwd: Path,
        timeout: float = 60,
        before: Sequence[str] = (),
        **more: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a sandbox whose workspace is `cwd`; `before` starts the sandbox."""
        argv = [*before, *self.argv(*options, "--", *command)]
        return self.run_freely(argv, cwd=cwd, timeout=timeout, **more)

    def run_freely(
        self, command: list[str], *, cwd: Path, timeout: float = 60, **more: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command without a sandbox."""
        return subprocess.run(
            command,
            cwd=cwd,
            **{"stdin": subprocess.DEVNULL, "capture_output": True, **more},
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
            **self.ids,
        )

    def act(self, source: str, *options: str, cwd: Path, **more: Any) -> list[Any]:
        """Run an act in a sandbox: as child, grandchild and great-grandchild."""
        script = _script(source)
        return _told(self.run([self.python, "-I", "-c", script], *options, cwd=cwd, **more))

    def act_freely(self, source: str, *, cwd: Path, **more: Any) -> Any:
        """Run an act without a sandbox; the three must agree."""
        told = _told(self.run_freely([self.python, "-I", "-c", _script(source)], cwd=cwd, **more))
        assert told[0] == told[1] == told[2], told
        return told[0]


def all_three(*expected: object) -> Any:
    """Equal to a list of three results that are each one of those expected."""

    class Matches:
        def __eq__(self, other: object) -> bool:
            return isinstance(other, list) and len(other) == 3 and all(o in expected for o in other)

        __hash__ = None  # type: ignore[assignment]

        def __repr__(self) -> str:
            return f"three of {expected}"

    return Matches()


def eventually(condition: Callable[[], bool], *, within_s: float = 10.0) -> bool:
    """Poll a condition until it holds; say whether it did."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def processes_with(mark: str) -> Iterator[int]:
    """Give the living processes whose command line has `mark` in it."""
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                line = Path(f"/proc/{name}/cmdline").read_bytes()
                state = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()[0]
            except OSError:
                continue
            if mark.encode() in line and state not in (b"Z", b"X"):
                yield int(name)


def name_of(number: int | None) -> str:
    """Give the name of an error number."""
    return errno.errorcode.get(number or 0, str(number))


def _script(source: str) -> str:
    return _RUNNER.replace("{act}", textwrap.dedent(source))


def _told(ended: subprocess.CompletedProcess[str]) -> list[Any]:
    assert ended.returncode == 0, (
        f"status {ended.returncode}: {ended.args[-1]}\n{ended.stdout}\n{ended.stderr}"
    )
    told: list[Any] = json.loads(ended.stdout)
    return told


def _python_for_all() -> str:
    if os.geteuid() != 0:
        return sys.executable
    for candidate in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        code = "import sys; sys.exit(sys.version_info < (3, 11))"
        if _runs(candidate, code, uid=USER_ID):
            return candidate
    require(False, "no Python 3.11 that an ordinary user may run")
    raise AssertionError


@functools.cache
def _runs(python: str, code: str, *arguments: str, uid: int | None) -> bool:
    """Say whether a user (None: the one of the tests) can run this code with this interpreter."""
    ids: dict[str, Any] = {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}
    command = [python, "-I", "-c", code, *arguments]
    try:
        ended = subprocess.run(command, stderr=subprocess.DEVNULL, check=False, **ids)
    except OSError:
        return False
    return ended.returncode == 0


def user_name(uid: int) -> str:
    """Give the name of a user, or its number."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


_CHILD = """
import os, sys
from forkrun_sandbox.enter import enter
from forkrun_sandbox.spec import Spec, Limits
parent = int(sys.argv[3]) if len(sys.argv) > 3 else None
spec = Spec(tier=sys.argv[1], workspace=os.getcwd(), home=os.getcwd(), limits=Limits())
enter(spec, parent_pidfd=parent)
open("started", "w").close()
os.execvp("bash", ["bash", "-c", sys.argv[2]])
"""


def child_argv(who: Person, tier: str, command: str) -> list[str]:
    """Give a child that enters by itself, so that its parent is whoever starts it."""
    directory = os.path.dirname(os.path.abspath(forkrun_sandbox.__file__))
    argv = interpreter("spec", "Spec", tier, command)
    bootstrap = argv[4].rsplit("sys.argv[:4]", 1)[0] + 'sys.argv[:4] = ["child"]\n' + _CHILD
    return [who.python, "-I", "-S", "-c", bootstrap, directory, "x", "y", tier, command]
