"""What programs do all day works inside: the confinement is for what they must not do."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support_sandbox import Person, require

from forkrun_sandbox.gitdirs import git_directories
from forkrun_sandbox.toolchains import toolchains


def _ok(who: Person, workspace: Path, code: str, *options: str) -> str:
    ended = who.run(["bash", "-ec", code], *options, cwd=workspace)
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    return ended.stdout


PYTHON = """
import asyncio, concurrent.futures as c, multiprocessing as m, os, socket, subprocess, sys, tempfile
import threading, time

async def main():
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    assert await reader.read() == b""
    writer.close()
    child = await asyncio.create_subprocess_exec("echo", "x", stdout=subprocess.PIPE)
    assert (await child.communicate())[0] == b"x\\n"
    assert await asyncio.to_thread(lambda: 3) == 3

def double(x):
    return 2 * x

if __name__ == "__main__":
    asyncio.run(main())
    for method in ("fork", "spawn", "forkserver"):
        with m.get_context(method).Pool(2) as pool:
            assert pool.map(double, [1, 2]) == [2, 4]
    with c.ProcessPoolExecutor(2) as pool:
        assert list(pool.map(double, [1])) == [2]
    m.Semaphore().acquire()
    with tempfile.TemporaryDirectory() as d:
        assert os.path.exists(d)
    assert subprocess.run(["sh", "-c", "exit 4"]).returncode == 4
    master, slave = os.openpty()
    os.write(slave, b"x")
    assert os.read(master, 1) == b"x"
    assert os.path.expanduser("~") == os.environ["HOME"] and os.listdir(os.environ["HOME"]) == []
    import pwd, getpass
    assert pwd.getpwuid(os.getuid()).pw_dir == os.environ["HOME"]
    print("all")
"""


def test_python_at_work(who: Person, workspace: Path) -> None:
    """asyncio, multiprocessing by every method, subprocess, threads, pseudo-terminals."""
    (workspace / "work.py").write_text(PYTHON)
    who.owns(workspace)
    assert _ok(who, workspace, f"{who.python} work.py") == "all\n"


GIT = (
    "export GIT_DISCOVERY_ACROSS_FILESYSTEM=1 GIT_CONFIG_COUNT=3 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'"
    " GIT_CONFIG_KEY_1=user.name GIT_CONFIG_VALUE_1=a"
    " GIT_CONFIG_KEY_2=user.email GIT_CONFIG_VALUE_2=a@b.example; "
)


def test_git_at_work(who: Person, workspace: Path) -> None:
    """A repository is made, changed, branched, packed and cloned."""
    require(shutil.which("git"), "no git")
    code = (
        "git init -q .; echo x > f; git add f; git commit -qm one; git checkout -qb b;"
        "echo y > f; git commit -qam two; git gc -q; git stash list; git clone -q . copy;"
        "git log --oneline | wc -l"
    )
    assert _ok(who, workspace, GIT + code).strip() == "2"


def test_git_in_a_subdirectory_and_in_a_worktree(who: Person, workspace: Path, place: Path) -> None:
    """Where the git directory lies outside, it is found by its files and is readable."""
    require(shutil.which("git"), "no git")
    repository = place / "repository"
    (repository / "sub").mkdir(parents=True)
    who.owns(repository)
    who.owns(place)
    setup = (
        "git init -q . && echo x > sub/f && git add . && git commit -qm one"
        f" && git worktree add -q {place}/tree"
    )
    assert who.run_freely(["bash", "-ec", GIT + setup], cwd=repository).returncode == 0
    for directory in (repository / "sub", place / "tree"):
        found = git_directories(str(directory))
        assert str(repository / ".git") in found
        readable = [word for path in found for word in ("--readable", path)]
        told = _ok(who, directory, GIT + "git log --oneline; git status --short .", *readable)
        assert told.endswith("one\n"), told


def test_a_git_file_that_lies_is_not_followed(place: Path, workspace: Path) -> None:
    """A .git file in the workspace cannot make a foreign directory readable."""
    other = place / "other"
    subprocess.run(["git", "init", "-q", str(other)], check=True)
    for target in (other / ".git", Path("/etc"), Path.home()):
        (workspace / ".git").write_text(f"gitdir: {target}\n")
        assert git_directories(str(workspace)) == ()


def test_a_compiler_at_work(who: Person, workspace: Path) -> None:
    """C is compiled, linked and run."""
    require(shutil.which("gcc"), "no gcc")
    code = "echo 'int main(){return 0;}' > a.c; gcc -O1 -o a a.c -lm; ./a; echo built"
    assert _ok(who, workspace, code) == "built\n"


def test_node_at_work(who: Person, workspace: Path) -> None:
    """node serves, connects and starts a child."""
    require(shutil.which("node"), "no node")
    code = """
const http = require('http'), os = require('os'), cp = require('child_process');
const s = http.createServer((q, r) => r.end('hi')).listen(0, '127.0.0.1', () =>
  http.get({port: s.address().port, host: '127.0.0.1'}, r => r.on('data', d => {
    console.log(String(d), cp.execSync('echo x').toString().trim(), os.cpus().length > 0); s.close();
  })));
"""
    (workspace / "a.js").write_text(code)
    who.owns(workspace)
    assert _ok(who, workspace, "node a.js").strip() == "hi x true"


@pytest.mark.slow
def test_a_virtual_environment_whose_base_is_under_home(
    workspace: Path, place: Path, who: Person
) -> None:
    """Its pytest runs: the base is found by pyvenv.cfg and shown, the home directory is not."""
    if not who.is_root and os.geteuid() == 0:
        pytest.skip("the interpreter of this test run is closed to the ordinary user")
    environment = workspace / ".venv"
    base = os.path.realpath(who.python)
    subprocess.run([base, "-m", "venv", "--without-pip", str(environment)], check=True)
    found = toolchains({"HOME": os.path.expanduser("~"), "PATH": "/usr/bin"}, str(workspace))
    assert os.path.expanduser("~") not in found
    (workspace / "test_it.py").write_text(
        "import unittest\nclass T(unittest.TestCase):\n    def test_it(self): import ssl, sqlite3\n"
    )
    who.owns(workspace)
    readable = [word for path in found for word in ("--readable", path)]
    told = _ok(who, workspace, ".venv/bin/python -m unittest -q 2>&1; ls -A ~", *readable)
    assert "OK" in told


def test_root_on_a_tree_of_another_owner(workspace: Path) -> None:
    """Root runs as the owner of the workspace, and what is made belongs to that owner."""
    who = Person("root")
    os.chown(workspace, 54321, 54322)
    told = _ok(who, workspace, "id -u; id -g; id -G; touch made; whoami; ls -ld /usr ~ | wc -l")
    assert told.split() == ["54321", "54322", "54322", "agent", "2"]
    made = (workspace / "made").stat()
    assert (made.st_uid, made.st_gid) == (54321, 54322)


def test_another_root(workspace: Path, place: Path, who: Person) -> None:
    """In a root file system of the user's its own programs run, and nothing is written to it."""
    busybox = shutil.which("busybox")
    require(busybox, "no busybox to make a small root of")
    assert busybox is not None
    root = place / "root"
    for name in ("bin", "etc", "usr", "tmp", "home"):
        (root / name).mkdir(parents=True)
    shutil.copy(busybox, root / "bin" / "busybox")
    for name in ("sh", "cat", "ls", "touch"):
        (root / "bin" / name).symlink_to("busybox")
    (root / "etc" / "issue").write_text("a small root\n")
    before = sorted(root.rglob("*"))
    code = "cat /etc/issue; echo x > made; touch /etc/x || ls /usr/bin || echo closed"
    ended = who.run(["sh", "-c", code], "--root", str(root), "--env", "PATH=/bin", cwd=workspace)
    assert ended.stdout == "a small root\nclosed\n", ended.stderr
    assert (workspace / "made").read_text() == "x\n"
    assert sorted(root.rglob("*")) == before
    (root / "bin" / "sh").unlink()
    ended = who.run(["cat"], "--root", str(root), cwd=workspace)
    assert ended.returncode == 125
    assert "no usable /bin/sh" in ended.stderr


@pytest.mark.parametrize(
    ("command", "status"),
    [("exit 7", 7), ("kill -TERM $$", 143), ("kill -9 $$", 137), ("exit 300", 44)],
)
def test_the_status_is_a_shells(who: Person, workspace: Path, command: str, status: int) -> None:
    """The exit status of the command, or 128 and its signal."""
    assert who.run(["sh", "-c", command], cwd=workspace).returncode == status


def test_a_command_that_is_not_there(who: Person, workspace: Path) -> None:
    """127 where there is no such command, 126 where it is none."""
    (workspace / "data").write_text("x")
    assert who.run(["no-such-command"], cwd=workspace).returncode == 127
    assert who.run(["./data"], cwd=workspace).returncode == 126
