"""What a view may take: its size and number of files, and the size of a copy."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support_cli import call, wait_until


def test_a_full_view_is_named_and_commits_nothing(site):
    """The child meets ENOSPC (or the end, in a copy), and the result names the bound on the disk."""
    before = site.picture()
    fill = call(
        "bash", command="echo first > first; head -c 40M /dev/zero | tr '\\0' x > big; sleep 3"
    )
    result = site.spawn(fill, {"text": "done"}, flags=("--disk", "16M"), exits=53)
    assert result["stop_reason"] == "resource_limit"
    assert result["limit"]["kind"] == "disk"
    assert result["limit"]["used"] >= 15 * 1024 * 1024
    assert not result["committed"]
    assert site.picture() == before
    assert site.residue(result["patch"]) == []
    assert b"+first" in Path(result["patch"]).read_bytes()


def test_the_child_reads_that_the_disk_is_full(plain):
    """In an overlay the bound is ENOSPC, and what is there beyond it is not ours."""
    fill = call("bash", command="head -c 40M /dev/zero > big")
    events = plain.forkrun(
        *plain.arguments(fill, {"text": "done"}),
        *("--disk", "16M", "--output-format", "stream-json"),
        exits=53,
    )
    told = [json.loads(line) for line in events.stdout.splitlines()]
    heads = [each["head"] for each in told if each["type"] == "tool_result"]
    assert "No space left on device" in heads[0]
    assert [each["limit"]["kind"] for each in told if each["type"] == "limit"] == ["disk"]


def test_too_many_files_are_named(plain):
    """A view takes one file for each 4 KiB of its bound, and says so when they are used up."""
    before = plain.picture()
    many = call("bash", command="mkdir d; for i in $(seq 3000); do : > d/$i || exit 1; done")
    result = plain.spawn(many, {"text": "done"}, flags=("--disk", "4M"), exits=53)
    assert result["limit"]["kind"] == "files"
    assert not result["committed"]
    assert plain.picture() == before


def test_a_discarded_view_that_was_full_says_so_too(plain):
    """The bound ends a run in every mode that has a view."""
    fill = call("bash", command="head -c 40M /dev/zero > big")
    flags = ("--disk", "16M", "--workspace", "discard")
    assert plain.spawn(fill, {"text": "d"}, flags=flags, exits=53)["limit"]["kind"] == "disk"


def test_a_workspace_too_large_to_be_copied_is_refused(site):
    """Where a copy is needed, its size is said; beyond the bound nothing is run."""
    site.sh("head -c 3M /dev/urandom > large")
    arguments = (*site.arguments({"text": "done"}), "--disk", "1M")
    if site.setting in ("plain", "in an overlay"):
        site.forkrun(*arguments)
        return
    done = site.forkrun(*arguments, exits=1)
    assert b"too large to be copied" in done.stderr
    assert b"Traceback" not in done.stderr
    assert site.residue() == []
    said = site.forkrun(*site.arguments({"text": "done"})).stderr
    assert b"the workspace is copied" in said and b"3.1 MB" in said


def test_what_git_ignores_is_not_copied(site):
    """A copy leaves out what git ignores, so that it may be as large as it likes."""
    site.sh(
        "git init -q .; echo node_modules > .gitignore; mkdir node_modules; head -c 3M /dev/urandom > node_modules/x"
    )
    site.spawn({"text": "done"}, flags=("--disk", "1M"))


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root, to work for another user")
@pytest.mark.parametrize("sandbox", ["required", "lsm", "none"])
@pytest.mark.parametrize("mode", ["commit", "temp"])
def test_as_root_a_run_in_somebody_elses_workspace(plain, sandbox, mode):
    """The child works as the owner, with a home and a view that it can reach, in every tier."""
    os.chmod(plain.tmp, 0o755)
    above = plain.tmp
    while str(above) != "/" and not above.stat().st_mode & 0o001:
        os.chmod(above, above.stat().st_mode | 0o011)
        above = above.parent
    plain.sh("chown -R 12345:12345 .")
    os.chmod(plain.home, 0o700)
    work = "set -e; id -u > who; echo x >> src/a.py; echo h > ~/h; echo t > $TMPDIR/t; cat who"
    if mode == "temp":
        work = "set -e; id -u > who; echo h > ~/h; echo t > $TMPDIR/t; cat who"
    flags = ("--sandbox", sandbox, "--workspace", mode, "--output-format", "stream-json")
    before = set(os.listdir("/var/tmp"))
    done = plain.forkrun(*plain.arguments(call("bash", command=work), {"text": "done"}), *flags)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    heads = [each["head"] for each in told if each["type"] == "tool_result"]
    assert heads == ["12345"]
    if mode == "commit":
        assert told[-1]["committed"]
        assert (plain.workspace / "who").stat().st_uid == 12345
        assert (plain.workspace / "src/a.py").stat().st_uid == 12345
    assert plain.residue() == []
    assert set(os.listdir("/var/tmp")) - before == set() or wait_until(
        lambda: not [n for n in set(os.listdir("/var/tmp")) - before if len(n) == 40]
    )
