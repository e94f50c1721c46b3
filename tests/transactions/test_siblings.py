"""Several runs over one workspace at once."""

from __future__ import annotations

import json
import subprocess

from support_cli import call, environment, script
from support_trees import contents


def start(site, name: str, *commands: str, flags: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
    """Start a run that has these commands run one after the other."""
    lines = [call("bash", command=command) for command in commands]
    model = script(site.tmp / f"{name}.jsonl", *lines, {"text": "done"})
    return subprocess.Popen(
        site.command(
            *("spawn", "--prompt", "go", "--model", model, "--output-format", "json"),
            *(*site.flags, *flags),
        ),
        cwd=site.workspace,
        env=environment(site.home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def ended(running: subprocess.Popen[bytes]):
    out, said = running.communicate(timeout=60)
    assert out, said
    return json.loads(out)


def meet(shared, me: str, other: str) -> str:
    return f"touch {shared}/{me}; until test -e {shared}/{other}; do sleep 0.02; done"


def test_runs_do_not_see_each_others_uncommitted_changes(site):
    """While both are at work each sees the start and its own; both are committed."""
    shared = site.tmp / "shared"
    shared.mkdir()
    runs = []
    for me, other in (("a", "b"), ("b", "a")):
        work = f"echo {me} > by-{me}; {meet(shared, me, other)}; ls > {shared}/{me}.seen"
        work += f"; {meet(shared, me + '2', other + '2')}"
        runs.append(start(site, me, work, flags=("--writable", str(shared))))
    assert all(ended(run)["committed"] for run in runs)
    assert "by-a" in (shared / "a.seen").read_text()
    assert "by-b" not in (shared / "a.seen").read_text()
    assert "by-a" not in (shared / "b.seen").read_text()
    assert {"by-a", "by-b"} <= {path.name for path in site.tree.iterdir()}
    assert site.residue() == []


def test_siblings_that_change_the_same_file_conflict(site):
    """One is committed, the other ends with 73 and keeps its patch; no file is mixed."""
    shared = site.tmp / "shared"
    shared.mkdir()
    runs = [
        start(
            site,
            me,
            f"echo {me} > src/a.py; echo {me} > by-{me}; {meet(shared, me, other)}",
            flags=("--writable", str(shared)),
        )
        for me, other in (("a", "b"), ("b", "a"))
    ]
    results = [ended(run) for run in runs]
    assert sorted(run.returncode for run in runs) == [0, 73]
    lost = next(each for each in results if not each["committed"])
    won = next(each for each in results if each["committed"])
    assert lost["stop_reason"] == "conflict"
    assert "src/a.py (changed meanwhile)" in lost["error"]["message"]
    winner = "ab"[results.index(won)]
    assert (site.tree / "src/a.py").read_text() == f"{winner}\n"
    assert len(list(site.tree.glob("by-*"))) == 1
    assert site.residue(lost["patch"]) == []


def test_many_siblings_commit_one_after_the_other(plain):
    """Six runs at once, each with its own files and one directory that all make: all are there."""
    before = contents(plain.workspace)
    work = "mkdir -p all; for i in $(seq 20); do echo {0} > all/{0}-$i; done"
    runs = [start(plain, f"r{number}", work.format(number)) for number in range(6)]
    results = [ended(run) for run in runs]
    assert [each["stop_reason"] for each in results] == ["completed"] * 6
    new = contents(plain.workspace).keys() - before.keys()
    assert new == {"all"} | {f"all/{n}-{i}" for n in range(6) for i in range(1, 21)}
    assert plain.residue() == []
