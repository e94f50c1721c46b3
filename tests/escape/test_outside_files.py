"""Files outside the workspace can be neither read nor written, by whatever name."""

from __future__ import annotations

from pathlib import Path

import pytest
from support_sandbox import Person, all_three

WAYS = ("{outside}/secret", "link", "up/secret", "/proc/self/cwd/../outside/secret")


@pytest.fixture
def ways(workspace: Path, outside: Path, who: Person) -> Path:
    (workspace / "link").symlink_to(outside / "secret")
    (workspace / "up").symlink_to("../outside")
    who.owns(workspace)
    return workspace


@pytest.mark.parametrize("way", WAYS)
def test_a_secret_outside_cannot_be_read(who: Person, ways: Path, outside: Path, way: str) -> None:
    """What lies beside the workspace is not there: by absolute path, link, `..` or /proc."""
    act = f"def act(): return open({way.format(outside=outside)!r}).read()"
    assert who.act_freely(act, cwd=ways) == "canary-7f3a\n"
    assert who.act(act, cwd=ways) == all_three("ENOENT")


@pytest.mark.parametrize("way", WAYS)
def test_a_file_outside_cannot_be_written(who: Person, ways: Path, outside: Path, way: str) -> None:
    """Writing by the same names changes nothing outside."""
    act = f"""
    def act():
        with open({way.format(outside=outside)!r}, "r+") as file:
            return file.write("canary-7f3a\\n")
    """
    assert who.act_freely(act, cwd=ways) == 12
    assert who.act(act, cwd=ways) == all_three("ENOENT", "EROFS", "EACCES")
    assert (outside / "secret").read_text() == "canary-7f3a\n"


def test_a_new_file_cannot_be_made_outside(who: Person, workspace: Path, outside: Path) -> None:
    """A file that does not exist yet cannot be made through a dangling link either."""
    (workspace / "dangling").symlink_to(outside / "new")
    who.owns(workspace)
    act = "def act(): return open('dangling', 'w').write('x')"
    assert who.act_freely(act, cwd=workspace) == 1
    (outside / "new").unlink()
    assert who.act(act, cwd=workspace) == all_three("ENOENT", "EROFS", "EACCES")
    assert not (outside / "new").exists()


def test_an_outside_file_cannot_be_linked_in(who: Person, workspace: Path, outside: Path) -> None:
    """A hard link does not bring a file of the host into the workspace."""
    act = f"""
    def act():
        os.link({str(outside / "secret")!r}, "linked")
        os.unlink("linked")
        return "linked"
    """
    assert who.act_freely(act, cwd=workspace) == "linked"
    assert who.act(act, cwd=workspace) == all_three("ENOENT", "EXDEV")


@pytest.mark.parametrize("path", ["/usr/x", "/etc/x", "/x", "/proc/x", "/dev/x", "/sys/x"])
def test_the_system_is_read_only(workspace: Path, who: Person, path: str) -> None:
    """Nothing can be made in the directories of the system; the workspace can be written."""
    act = f"def act(): os.close(os.open({path!r}, os.O_CREAT | os.O_WRONLY)); return 'made'"
    inside = "def act(): os.close(os.open('x', os.O_CREAT | os.O_WRONLY)); return 'made'"
    assert who.act(act, cwd=workspace) == all_three("EROFS", "EACCES", "ENOENT", "EPERM")
    assert who.act(inside, cwd=workspace) == all_three("made")


def test_keys_and_password_hashes_are_not_there(workspace: Path, who: Person) -> None:
    """Of /etc and of home directories nothing with a secret in it is visible."""
    act = """
    def act():
        names = ["/etc/shadow", "/etc/gshadow", "/etc/ssh", "/etc/ssl/private", "/etc/sudoers",
                 "/root/.ssh", "/root/.bashrc", "/var/lib", "/var/log", "/run/systemd", "/boot"]
        return [name for name in names if os.path.lexists(name)]
    """
    assert who.act_freely(act, cwd=workspace)
    assert who.act(act, cwd=workspace) == all_three([])


def test_a_swapped_link_leads_nowhere(workspace: Path, outside: Path, who: Person) -> None:
    """A name that two processes swap between a file and a link outside never reaches the link."""
    act = f"""
    import time
    def act():
        for name in ("a", "b"):
            if os.path.lexists(name):
                os.unlink(name)
        open("a", "w").close()
        os.symlink({str(outside / "secret")!r}, "b")
        swapper = os.fork()
        if swapper == 0:
            while True:
                libc.syscall(316, -100, b"a", -100, b"b", 2)
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            try:
                with open("a", "r+") as file:
                    file.write("overwritten")
            except OSError:
                pass
        os.kill(swapper, 9)
        os.waitpid(swapper, 0)
        return "swapped"
    """
    assert who.act(act, cwd=workspace) == all_three("swapped")
    assert (outside / "secret").read_text() == "canary-7f3a\n"
