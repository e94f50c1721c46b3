"""A check before the commit, and several attempts of which one is committed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from support_cli import call, environment, processes_with, wait_until
from support_trees import WORK, contents

import forkrun

DONE = {"text": "done", "usage": {"input_tokens": 10, "output_tokens": 5}}


@pytest.fixture
def shared(tmp_path):
    """A directory that is written by runs, beside their views: what tells attempts apart."""
    path = tmp_path / "shared"
    path.mkdir()
    return path


def numbered(shared: Path, then: str):
    """A command that takes the next free number n, and then does something with it."""
    take = f"n=1; while ! mkdir {shared}/$n 2>/dev/null; do n=$((n+1)); done; echo $n > n"
    return call("bash", command=f"{take}; {then}")


def attempts(site, work, *flags: str, number: int = 3, exits: int = 0):
    return site.spawn(work, DONE, flags=("--attempts", str(number), *flags), exits=exits)


def test_the_first_attempt_that_passes_is_committed(site, shared):
    """The others are discarded; the result says of each what it did and cost."""
    work = numbered(shared, "echo by $n > made-$n")
    check = 'test "$(cat n)" = 2 && echo good'
    result = attempts(site, work, "--check", check, "--writable", str(shared))
    assert result["stop_reason"] == "completed"
    assert result["committed"]
    assert (site.tree / "n").read_text() == "2\n"
    assert (site.tree / "made-2").exists()
    assert not (site.tree / "made-1").exists()
    told = result["attempts"]
    assert [each["number"] for each in told] == [1, 2, 3]
    assert [each["check"] for each in told if each["committed"]] == ["passed"]
    assert len({each["run_id"] for each in told}) == 3
    assert result["usage"]["output_tokens"] == 5 * sum(each["turns"] == 2 for each in told)
    assert all(each["patch"] is None for each in told)
    assert site.residue() == []


def test_the_smallest_change_is_committed(site, shared):
    """With --best all attempts are waited for, and the one with the smallest patch is taken."""
    work = numbered(shared, "seq $((100 * (4 - n))) > lines; [ $n != 3 ] || exit 0")
    result = attempts(site, work, "--best", "--check", "true", "--writable", str(shared))
    told = result["attempts"]
    assert [each["check"] for each in told] == ["passed"] * 3
    assert [each["stop_reason"] for each in told] == ["completed"] * 3
    smallest = min(told, key=lambda each: each["size_bytes"])
    assert [each["committed"] for each in told] == [each is smallest for each in told]
    assert (site.tree / "lines").read_text().count("\n") == 100
    assert result["usage"] == {**result["usage"], "input_tokens": 30, "output_tokens": 15}
    assert site.residue() == []


def test_where_no_attempt_passes_nothing_is_committed(site, shared):
    """Exit code 65, the tree is untouched, and each patch can be applied by hand."""
    before = site.picture()
    work = numbered(shared, "echo x > file-$n")
    flags = ("--check", "echo not good enough; exit 3", "--writable", str(shared))
    result = attempts(site, work, *flags, number=2, exits=65)
    assert result["stop_reason"] == "check_failed"
    assert site.picture() == before
    told = result["attempts"]
    assert [each["check"] for each in told] == ["failed"] * 2
    assert "not good enough" in told[0]["check_output"]
    assert "[exit code 3]" in told[0]["check_output"]
    assert site.residue(*(each["patch"] for each in told)) == []
    site.forkrun("apply", told[1]["patch"])
    assert len(list(site.tree.glob("file-*"))) == 1


def test_a_check_sees_the_very_tree_that_is_committed(site, shared):
    """Modes, links, deletions, names and contents are those of the commit; what it writes is not."""
    look = r"find . -mindepth 1 \( -type d -printf '%p %m\n' -o -printf '%p %m %s %l\n' \) | sort"
    check = f"LC_ALL=C; export LC_ALL; {look} > {shared}/seen; cat src/a.py; echo x > of-the-check"
    work = call("bash", command=WORK)
    result = site.spawn(work, DONE, flags=("--check", check, "--writable", str(shared)))
    assert result["committed"]
    assert result["attempts"][0]["check_output"] == "one\ntwo\nthree\nfour"
    site.sh(f"export LC_ALL=C; {look} > {site.tmp}/now")
    assert (shared / "seen").read_bytes() == (site.tmp / "now").read_bytes()


def test_nothing_that_was_planted_answers_for_the_check(site):
    """Not the home directory, /tmp or processes of the subagent; what is withheld is not there."""
    if site.setting == "no sandbox":
        pytest.skip("there /tmp and the processes are those of the machine")
    site.sh("echo cache > .gitignore")
    plant = """
    echo 'exit 0' > ~/.bashrc; touch ~/mark /tmp/mark; setsid sleep 300 &
    mkdir cache; echo built > cache/x; echo evil > .envrc; echo fine > fine
    """
    check = (
        "test ! -e ~/mark -a ! -e /tmp/mark -a ! -e .envrc && cat cache/x fine && "
        "! grep -l sleep /proc/[0-9]*/comm"
    )
    result = site.spawn(call("bash", command=plant), DONE, flags=("--check", check))
    assert result["attempts"][0]["check_output"] == "built\nfine"
    assert result["committed"]
    assert not (site.tree / "cache").exists()


def test_a_check_cannot_read_what_is_denied(plain):
    """A rule that withholds a file from the run withholds it from its check."""
    plain.sh("echo secret > .env")
    flags = ("--deny", "read(.env)", "bash(rm:*)", "--check", "rm -f added; ! cat .env")
    result = plain.spawn(call("bash", command="echo > added"), DONE, flags=flags)
    assert "secret" not in result["attempts"][0]["check_output"]
    assert (plain.workspace / "added").exists()


def test_a_check_that_hangs_has_failed(plain):
    """It is bounded by the time of a tool, and nothing of it is left."""
    flags = ("--tool-timeout", "1", "--check", "sleep 2871")
    result = plain.spawn(call("bash", command="echo > added"), DONE, flags=flags, exits=65)
    assert "timed out" in result["attempts"][0]["check_output"]
    assert processes_with("sleep 2871") == []


def test_a_run_that_changes_nothing_is_checked_too(plain):
    """An empty change passes or fails as any other."""
    assert plain.spawn(DONE, flags=("--check", "true"))["committed"]
    plain.spawn(DONE, flags=("--check", "false"), exits=65)


@pytest.mark.parametrize(
    "flags",
    [
        ("--attempts", "2"),
        ("--best",),
        ("--attempts", "0", "--check", "true"),
        ("--check", " "),
        ("--check", "true", "--workspace", "live"),
        ("--check", "true", "--workspace", "temp"),
    ],
)
def test_what_cannot_be_meant_is_refused(plain, flags):
    """Exit code 2 before anything is run."""
    done = plain.forkrun(*plain.arguments(DONE), *flags, exits=2)
    assert b"error: " in done.stderr


def test_ctrl_c_ends_all_attempts(plain, shared):
    """One result, exit code 130, the tree as it was, patches kept, nothing left."""
    before = plain.picture()
    work = numbered(shared, "echo x > f; touch $(printf %s " + str(shared) + ")/up-$n; sleep 2872")
    running = subprocess.Popen(
        plain.command(
            *plain.arguments(work, DONE),
            *("--attempts", "2", "--check", "true", "--writable", str(shared)),
        ),
        cwd=plain.workspace,
        env=environment(plain.home),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: len(list(shared.glob("up-*"))) == 2)
    running.send_signal(signal.SIGINT)
    out, _ = running.communicate(timeout=30)
    result = json.loads(out)
    assert running.returncode == 130
    assert result["stop_reason"] == "cancelled"
    assert [each["stop_reason"] for each in result["attempts"]] == ["cancelled"] * 2
    assert plain.picture() == before
    assert plain.residue(*(each["patch"] for each in result["attempts"])) == []
    assert processes_with("sleep 2872") == []


def test_the_stream_tells_of_each_attempt_and_ends_with_one_result(plain, shared):
    """Events bear the id of their attempt; there is one result, and it is last."""
    work = numbered(shared, "echo x > f-$n")
    done = plain.forkrun(
        *plain.arguments(work, DONE),
        *("--output-format", "stream-json", "--writable", str(shared)),
        *("--attempts", "2", "--best", "--check", "cat n"),
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["type"] for each in told].count("result") == 1
    assert told[-1]["type"] == "result"
    checks = [each for each in told if each["type"] == "check"]
    assert sorted(each["attempt"] for each in checks) == [1, 2]
    assert all(each["passed"] for each in checks)
    started = {each["run_id"] for each in told if each["type"] == "started"}
    assert started == {each["run_id"] for each in told[-1]["attempts"]}


def test_in_text_mode_one_summary_is_printed(plain):
    """Two attempts, one answer."""
    done = plain.forkrun(
        *(*plain.arguments(DONE), "--output-format", "text"),
        *("--attempts", "2", "--best", "--check", "true"),
    )
    assert done.stdout == b"done\n"


def test_a_job_in_json_has_attempts_too(plain):
    """`forkrun exec` takes them as fields."""
    (plain.tmp / "job.jsonl").write_text(json.dumps(DONE) + "\n")
    job = {"prompt": "go", "model": f"script:{plain.tmp}/job.jsonl", "attempts": 2, "check": "true"}
    done = subprocess.run(
        plain.command("exec"),
        input=json.dumps(job).encode(),
        cwd=plain.workspace,
        env=environment(plain.home),
        capture_output=True,
        check=True,
    )
    assert len(json.loads(done.stdout)["attempts"]) == 2


def test_transcripts_of_attempts_have_numbers(plain):
    """Each attempt writes its own."""
    path = plain.tmp / "out.jsonl"
    flags = ("--attempts", "2", "--best", "--check", "true", "--transcript", str(path))
    plain.spawn(DONE, flags=flags)
    assert [name for name in sorted(os.listdir(plain.tmp)) if "out.jsonl" in name] == [
        "out.jsonl.1",
        "out.jsonl.2",
    ]


class Varied:
    """A model whose every attempt does something else; the odd ones fail the check."""

    name = "varied"

    def __init__(self) -> None:
        self.asked = 0

    async def reply(self, request, heard):
        block = {"type": "text", "text": "done"}
        if request.number == 0:
            self.asked += 1
            command = f"seq {self.asked} > lines; echo {self.asked % 2} > odd"
            fields = {"command": command}
            block = {"type": "tool_use", "id": "c", "name": "bash", "input": fields}
        return forkrun.Reply(
            content=(json.dumps(block).encode(),),
            stop_reason="tool_use" if request.number == 0 else "end_turn",
            usage=forkrun.Usage(output_tokens=1),
            model=self.name,
        )

    async def close(self):
        """Hold nothing."""


def test_attempts_by_the_python_api(plain):
    """`attempts`, `check` and `best` are options as any other; events come in one stream."""
    events: list[forkrun.Event] = []
    result = forkrun.run_sync(
        "go",
        model=Varied(),
        cwd=plain.workspace,
        environ=environment(plain.home),
        attempts=4,
        best=True,
        check="grep -qx 0 odd",
        on_event=events.append,
    )
    assert result.committed
    assert (plain.workspace / "lines").read_text() == "1\n2\n"
    assert sorted(each.check for each in result.attempts) == ["failed"] * 2 + ["passed"] * 2
    assert result.usage.output_tokens == 8
    assert isinstance(events[-1], forkrun.ResultEvent)
    assert events[-1].result == result
    assert plain.residue() == []


def test_an_attempt_that_conflicts_keeps_its_patch(plain, shared):
    """Where somebody else wrote meanwhile, nothing is committed and the end is a conflict."""
    check = f"touch {shared}/checking; until test -e {shared}/go; do sleep 0.02; done"
    running = subprocess.Popen(
        plain.command(
            *plain.arguments(call("bash", command="echo mine > src/a.py"), DONE),
            *("--check", check, "--writable", str(shared)),
        ),
        cwd=plain.workspace,
        env=environment(plain.home),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    wait_until((shared / "checking").exists)
    (plain.workspace / "src/a.py").write_text("theirs\n")
    before = contents(plain.workspace)
    (shared / "go").touch()
    out, _ = running.communicate(timeout=30)
    assert running.returncode == 73
    result = json.loads(out)
    assert result["stop_reason"] == "conflict"
    assert result["attempts"][0]["check"] == "passed"
    assert contents(plain.workspace) == before
    assert plain.residue(result["patch"]) == []
