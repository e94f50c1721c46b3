"""Rules through the command line: what is denied is told, recorded and not done."""

import json
import os
from pathlib import Path

import pytest
from support_cli import call, run, script, spawn
from support_tree import tree

DONE = {"text": "done"}
MEMORY = ("--allow", "edit_file(notes.md)", "write_file(notes.md)")


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    """A workspace with a file that may be written, and many ways to others."""
    ws = tmp_path / "ws"
    (ws / "sub").mkdir(parents=True)
    (ws / "notes.md").write_text("old\n")
    (ws / "other.md").write_text("other\n")
    (tmp_path / "outside.md").write_text("outside\n")
    (ws / "link.md").symlink_to("other.md")
    (ws / "out.md").symlink_to("../outside.md")
    (ws / "up").symlink_to("..")
    os.link(ws / "other.md", ws / "same.md")
    return ws


WAYS = (
    *("other.md", "link.md", "out.md", "same.md", "Notes.md", "NOTES.MD", "notes.md.bak"),
    *("sub/../other.md", "sub/notes.md", "up/outside.md", "../outside.md", "up/ws/other.md"),
    *("notes.md/../other.md", "/etc/hostname", "/proc/self/cwd/other.md"),
)


@pytest.mark.parametrize("mode", ["commit", "live"])
def test_one_file_and_no_way_around_it(ws, tmp_path, mode):
    """By link, hard link, `..`, case or absolute path: only the named file is written."""
    before, outside = tree(ws), (tmp_path / "outside.md").read_bytes()
    tries = [call("write_file", file_path=way, content="X") for way in WAYS]
    tries += [call("edit_file", file_path=way, old_string="o", new_string="X") for way in WAYS]
    wanted = call("edit_file", file_path="./sub/../notes.md", old_string="old", new_string="new")
    arguments = (*MEMORY, "--workspace", mode, "--max-turns", "60")
    result = spawn(ws, *tries, wanted, DONE, arguments=arguments)
    assert result["stop_reason"] == "completed"
    after = tree(ws)
    assert after.pop("notes.md")[1] == b"new\n"
    before.pop("notes.md")
    assert after == before
    assert (tmp_path / "outside.md").read_bytes() == outside
    denied = [denial["input"]["file_path"] for denial in result["denials"]]
    # What is not there cannot be edited: that is an error, and no denial.
    assert set(denied) == set(WAYS)
    assert all(denial["reason"] for denial in result["denials"])


@pytest.mark.parametrize("mode", ["commit", "live"])
def test_a_named_file_that_is_another_file_too(ws, mode):
    """Where the named file is a hard link of another one, the other one keeps its content."""
    (ws / "notes.md").unlink()
    os.link(ws / "other.md", ws / "notes.md")
    write = call("write_file", file_path="notes.md", content="X")
    spawn(ws, write, DONE, arguments=(*MEMORY, "--workspace", mode))
    assert (ws / "other.md").read_text() == (ws / "same.md").read_text() == "other\n"
    assert (ws / "notes.md").read_text() == ("X" if mode == "commit" else "other\n")


@pytest.mark.parametrize("mode", ["commit", "discard", "live"])
def test_bash_writes_no_more_than_the_file_tools(ws, mode):
    """A bash rule adds nothing to what may be written: kernel or commit hold it."""
    before = tree(ws)
    command = (
        "echo x > other.md; echo x > new; rm -f link.md; mkdir d; mv sub s2; chmod 777 other.md"
    )
    arguments = (*MEMORY, "bash", "--workspace", mode)
    result = spawn(ws, call("bash", command=command), DONE, arguments=arguments)
    assert tree(ws) == before
    control = spawn(ws, call("bash", command="echo x > new"), DONE)  # with no rules at all
    assert control["committed"] and (ws / "new").read_text() == "x\n"
    if mode == "commit":
        assert {"other.md", "new"} <= {each["path"] for each in result["withheld"]}


def test_bash_rules_admit_simple_commands_alone(ws):
    """What chains, substitutes or redirects is denied, recorded and not run; the rest runs."""
    commands = ["ls; touch P", "ls $(touch P)", "ls > P", "X=1 env touch P", "ls && ls"]
    calls = [call("bash", command=command) for command in commands]
    result = spawn(ws, *calls, DONE, arguments=("--allow", "bash(ls:*)", "write_file(notes.md)"))
    assert [each["input"]["command"] for each in result["denials"]] == commands[:-1]
    assert (
        result["denials"][0]["reason"]
        == "`touch P` is not allowed: only bash with `ls:*` is allowed"
    )
    assert not (ws / "P").exists()


def test_denials_are_events_too(ws):
    """`stream-json` tells of each denial as it happens, and the result repeats it."""
    model = script(
        ws.parent / "s.jsonl", call("bash", command="id"), call("read_file", file_path="x"), DONE
    )
    arguments = ("--deny", "bash", "--deny", "read_file(x)", "--output-format", "stream-json")
    done = run("spawn", "--prompt", "go", "--model", model, *arguments, cwd=ws, check=0)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    denied = [(event["tool"], event["reason"]) for event in events if event["type"] == "denied"]
    assert [tool for tool, _ in denied] == ["bash", "read_file"]
    assert denied == [(each["tool"], each["reason"]) for each in events[-1]["denials"]]


def test_what_may_not_be_read_is_withheld_from_bash_too(ws):
    """A read denial hides the file from every program; without it, it can be read."""
    (ws / ".env").write_text("KEY=canary\n")
    transcript = ws.parent / "t.jsonl"
    look = call("bash", command="cat .env; cat < .env; cp .env copy; ls -l .env")
    arguments = ("--transcript", str(transcript))
    spawn(ws, look, DONE, arguments=arguments)
    assert "canary" in transcript.read_text()
    (ws / "copy").unlink()
    spawn(ws, look, DONE, arguments=(*arguments, "--deny", "read(.env)"))
    assert "canary" not in transcript.read_text()
    assert not (ws / "copy").exists()


def test_a_child_has_at_most_the_rights_of_its_parent(ws):
    """--parent-policy: each layer must allow, and a grant that comes to nothing is refused."""
    parent = ws.parent / "parent.json"
    parent.write_text(json.dumps({"allow": ["read", "edit_file(notes.md)"], "deny": ["bash"]}))
    calls = [
        call("bash", command="id"),
        call("edit_file", file_path="other.md", old_string="o", new_string="X"),
        call("edit_file", file_path="notes.md", old_string="old", new_string="new"),
    ]
    inherited = ("--parent-policy", str(parent))
    result = spawn(ws, *calls, DONE, arguments=inherited)
    assert [each["tool"] for each in result["denials"]] == ["bash", "edit_file"]
    assert (ws / "notes.md").read_text() == "new\n"
    model = script(ws.parent / "s.jsonl", DONE)
    refused = run("spawn", "--prompt", "x", "--model", model, *inherited, "--allow", "bash", cwd=ws)
    assert (
        refused.returncode == 2
        and b"allow bash" in refused.stderr
        and b"deny bash" in refused.stderr
    )
