"""Whatever a child leaves in its view, the parent settles it: in time, with a result, and with
nothing committed that runs or has rights on the host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support_cli import call, environment, script

SETTLE_S = 20.0


@pytest.fixture
def ws(tmp_path: Path) -> Iterator[Path]:
    """A workspace with one file; gone afterwards, since Python cannot remove a tree of any depth."""
    path = tmp_path / "ws"
    path.mkdir()
    (path / "a.txt").write_text("before\n")
    yield path
    subprocess.run(["rm", "-rf", path], check=True)


def settle(ws: Path, command: str, *arguments: str) -> dict:
    """Run one bash command in a subagent; give the result, which must come in time."""
    model = script(ws.parent / "s.jsonl", call("bash", command=command), {"text": "done"})
    done = subprocess.run(
        [
            *(sys.executable, "-m", "forkrun", "spawn", "--prompt", "go", "--model", model),
            *("--output-format", "json", "--timeout", "10", *arguments),
        ],
        cwd=ws,
        env=environment(ws.parent),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=SETTLE_S,
        check=False,
    )
    stderr = done.stderr.decode(errors="replace")
    assert b"Traceback" not in done.stderr, stderr
    assert done.stdout, stderr
    return json.loads(done.stdout)


def test_an_ordinary_change_is_settled(ws: Path) -> None:
    """The control: one changed file is committed."""
    result = settle(ws, "echo after > a.txt")
    assert (result["stop_reason"], result["committed"]) == ("completed", True)
    assert (ws / "a.txt").read_text() == "after\n"


def test_ignore_rules_of_the_child_do_not_stall_the_parent(ws: Path) -> None:
    """A pattern of many stars against a long name is judged in bounded time."""
    (ws / ".git").mkdir()
    stars = "*a" * 15 + "*b"
    result = settle(ws, f"echo '{stars}' > .gitignore; touch $(printf 'a%.0s' $(seq 200))")
    assert result["type"] == "result"


def test_deep_directories_do_not_stall_the_parent(ws: Path) -> None:
    """Some thousand files, fifteen hundred directories down, are settled in bounded time."""
    (ws / "dig.py").write_text(
        "import os\n"
        "for _ in range(1500): os.mkdir('d'); os.chdir('d')\n"
        "for i in range(3000): open(f'f{i}', 'w').close()\n"
    )
    assert settle(ws, "python3 dig.py")["type"] == "result"


def test_a_large_file_is_committed_as_fast_as_it_is_copied(ws: Path) -> None:
    """100 MB that do not compress: no patch is made of what is committed anyway."""
    result = settle(ws, "head -c 100000000 /dev/urandom > big")
    assert result["committed"]
    assert (ws / "big").stat().st_size == 100_000_000


@pytest.mark.parametrize("change", ["touch $(printf 'a\\377b')", "mkfifo $(printf 'a\\377b')"])
def test_a_name_that_is_not_utf8_has_a_result(ws: Path, change: str) -> None:
    """Committed or withheld, such a name stands in the result, in some readable form."""
    result = settle(ws, change, "--transcript", str(ws.parent / "t.jsonl"))
    assert result["stop_reason"] == "completed"
    assert len(result["changes"]) + len(result["withheld"]) == 1


def test_a_bare_repository_is_not_committed(ws: Path) -> None:
    """git takes a directory with HEAD, objects and refs for a repository, and obeys its config."""
    subprocess.run(["git", "init", "-q", ws], check=True)
    trace = ws.parent / "ran"
    config = f'[core]\\n\\trepositoryformatversion=0\\n\\tbare=false\\n\\tworktree=..\\n\\tfsmonitor="touch {trace}; false"\\n'
    settle(
        ws,
        "mkdir -p docs/objects docs/refs; touch docs/readme; "
        f"echo 'ref: refs/heads/main' > docs/HEAD; printf '{config}' > docs/config",
    )
    docs = ws / "docs"
    docs.mkdir(exist_ok=True)
    subprocess.run(["git", "status"], cwd=docs, capture_output=True, check=False)
    assert not trace.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file capabilities")
def test_capabilities_of_a_file_do_not_pass_to_what_a_child_wrote(ws: Path) -> None:
    """As with any write (capabilities(7)), new contents have no file capabilities."""
    program = ws / "program"
    program.write_bytes(b"old")
    raw = bytes.fromhex("0100000200200000000000000000000000000000")  # cap_net_raw+ep
    os.setxattr(program, "security.capability", raw)
    settle(ws, "cp /bin/true program")
    assert program.read_bytes() != b"old"
    assert "security.capability" not in os.listxattr(program)


@pytest.mark.parametrize(
    "path",
    [
        *(".junie/guidelines.md", ".trae/rules", ".crush.json", ".kakrc", ".nvim/init.lua"),
        *("a.sublime-project", ".hg/hgrc", ".jj/repo/config.toml", ".config/git/config"),
        *(".xprofile", ".pam_environment", ".netrc", ".git-credentials", ".Rprofile", ".irbrc"),
        *(".cargo/config.toml", ".pdbrc", ".config/zed/settings.json"),
    ],
)  # fmt: skip
def test_what_steers_agents_editors_and_shells_is_withheld(ws: Path, path: str) -> None:
    """Instructions and configuration that programs obey are committed only by name."""
    settle(ws, f"mkdir -p '{os.path.dirname(path) or '.'}'; echo x > '{path}'")
    assert not (ws / path).exists()


@pytest.mark.parametrize("path", ["CLAUDE.md", "AGENTS.md", "GEMINI.md", ".mise.toml"])
def test_what_agents_and_tools_are_told_is_pointed_out(ws: Path, path: str) -> None:
    """Text that steers an agent, or names programs to run, is committed and flagged."""
    result = settle(ws, f"echo x > '{path}'")
    assert [each["path"] for each in result["flagged"]] == [path]


def test_a_patch_that_cannot_be_written_is_found_before_the_run(ws: Path) -> None:
    """A wrong --patch costs no work: usage, or else the changes are kept where they can be."""
    model = script(ws.parent / "s.jsonl", call("bash", command="echo after > a.txt"), {"text": "x"})
    done = subprocess.run(
        [
            *(sys.executable, "-m", "forkrun", "spawn", "--prompt", "go", "--model", model),
            *("--patch", "/nonexistent/x.patch"),
        ],
        cwd=ws,
        env=environment(ws.parent),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=SETTLE_S,
        check=False,
    )
    kept = list((ws.parent / "state").rglob("*.patch"))
    assert done.returncode == 2 or kept


def test_a_huge_sparse_file_is_over_the_bound_on_disk(ws: Path) -> None:
    """A file larger than the private disk may be is refused or withheld, holes or not."""
    settle(ws, "truncate -s 1T big")
    assert not (ws / "big").exists() or (ws / "big").stat().st_size <= 4 * 1024**3
