"""Owners, modes, times and attributes of what is read-only cannot be changed; nothing stays behind."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support_sandbox import Person, all_three

CHANGES = {
    "chmod": "os.chmod(path, 0o777)",
    "utime": "os.utime(path, (1, 1))",
    "chown": "os.chown(path, os.getuid(), os.getgid())",
    "setxattr": "os.setxattr(path, 'user.forkrun', b'x')",
    "truncate": "os.truncate(path, 0)",
    "rename": "os.rename(path, path + '.moved'); os.rename(path + '.moved', path)",
    "unlink": "os.unlink(path)",
}


def _change_each(path: str) -> str:
    lines = "".join(
        f"    try:\n        {code}\n        results[{name!r}] = 'done'\n"
        f"    except OSError as refusal:\n        results[{name!r}] = errno.errorcode[refusal.errno]\n"
        for name, code in CHANGES.items()
    )
    return f"def act():\n    results, path = {{}}, {path!r}\n{lines}    return results\n"


def test_a_readable_file_of_ones_own_cannot_be_changed(
    who: Person, workspace: Path, outside: Path
) -> None:
    """A file that is shown read-only keeps owner, mode, times, attributes, content and name."""
    path = outside / "secret"
    before = os.stat(path)
    results = who.act(_change_each(str(path)), "--readable", str(outside), cwd=workspace)
    assert results == all_three(dict.fromkeys(CHANGES, "EROFS"))
    after = os.stat(path)
    assert (after.st_mode, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_mode,
        before.st_mtime_ns,
        before.st_ctime_ns,
    )
    control = who.run_freely(
        [who.python, "-c", f"import os, errno\n{_change_each(str(path))}print(act())"],
        cwd=workspace,
    )
    assert control.stdout.count("done") == len(CHANGES), control


@pytest.mark.parametrize("path", ["/dev/null", "/usr/bin/env", "/etc/passwd", "/proc/self/comm"])
def test_devices_and_system_files_keep_their_modes(who: Person, workspace: Path, path: str) -> None:
    """Root's own devices and programs too, when the sandbox runs as root."""
    before = os.stat(path).st_mode
    act = f"def act(): os.chmod({path!r}, 0o777); return 'done'"
    assert who.act(act, cwd=workspace) == all_three("EROFS", "EPERM")
    assert os.stat(path).st_mode == before


def test_a_read_only_workspace_is_read_only(who: Person, workspace: Path) -> None:
    """Mode "read" lets everything be read and nothing be changed, but what is named writable."""
    (workspace / "kept").write_text("kept")
    (workspace / "free").write_text("")
    who.owns(workspace)
    options = ("--workspace-mode", "read", "--writable", str(workspace / "free"))
    command = "cat kept; echo x > free; echo x > kept; touch new; rm -f kept; mv free away"
    ended = who.run(["sh", "-c", command], *options, cwd=workspace)
    assert ended.stdout == "kept"
    assert sorted(p.name for p in workspace.iterdir()) == ["free", "kept"]
    assert (workspace / "kept").read_text() == "kept"
    assert (workspace / "free").read_text() == "x\n"


def test_masked_files_are_hidden(who: Person, workspace: Path) -> None:
    """What is masked can be neither read, nor replaced, nor reached by moving what it is in."""
    (workspace / "d").mkdir()
    (workspace / ".env").write_text("canary")
    (workspace / "d" / "key").write_text("canary")
    (workspace / "dir").mkdir()
    (workspace / "dir" / "key").write_text("canary")
    who.owns(workspace)
    masked = [w for p in (".env", "d/key", "dir") for w in ("--masked", str(workspace / p))]
    command = "cat .env; mv d e; cat e/key d/key; ls dir; cat dir/key; rm -rf .env; cp .env x"
    free = who.run(["sh", "-c", "cat .env d/key dir/key"], cwd=workspace)
    assert free.stdout.count("canary") == 3
    ended = who.run(["sh", "-c", command], *masked, cwd=workspace)
    assert "canary" not in ended.stdout
    assert (workspace / ".env").read_text() == "canary"
    assert (workspace / "e" / "key").read_text() == "canary"


def test_an_overlay_leaves_the_workspace_as_it_was(who: Person, workspace: Path) -> None:
    """What is changed in an overlay is seen inside and not outside."""
    (workspace / "old").write_text("old")
    who.owns(workspace)
    command = "echo new > old; echo x > made; mkdir d; cat old; rm old; ls"
    ended = who.run(["sh", "-c", command], "--workspace-mode", "overlay", cwd=workspace)
    assert ended.stdout.split() == ["new", "d", "made"], ended.stderr
    assert [(p.name, p.read_text()) for p in workspace.iterdir()] == [("old", "old")]


def _residue() -> list[str]:
    lists = [os.listdir(path) for path in ("/tmp", "/dev/shm", "/var/tmp")]
    ipc = subprocess.run(["ipcs", "-a"], capture_output=True, text=True, check=True).stdout
    names = [name for found in lists for name in found if "forkrun-residue" in name]
    return [*names, *(line for line in ipc.splitlines() if "0x0000f04b" in line)]


def test_nothing_stays_in_shared_places(who: Person, workspace: Path) -> None:
    """Files in /tmp and /dev/shm and System V objects of a sandbox are its own, and gone."""
    act = """
    def act():
        for place in ("/tmp", "/dev/shm", "/var/tmp"):
            open(f"{place}/forkrun-residue-{os.getpid()}", "w").close()
        return checked(libc.shmget(0xF04B, 4096, 0o1666)) >= 0
    """
    assert who.act(act, cwd=workspace) == all_three(True)
    assert _residue() == []
    assert who.act_freely(act, cwd=workspace) is True
    assert len(_residue()) > 3
    for place in ("/tmp", "/dev/shm", "/var/tmp"):
        for path in Path(place).glob("forkrun-residue-*"):
            path.unlink()
    subprocess.run(["ipcrm", "-M", "0xf04b"], check=True)
