"""What rules let be written in a live workspace is what the kernel lets be written."""

import os

import pytest
from support_cli import call, run, script, spawn
from support_tree import tree

from forkrun.errors import UsageError
from forkrun.handcuffs import MOST_FILES, open_writable
from forkrun.policy import Policy

DONE = {"text": "done"}


@pytest.fixture
def ws(tmp_path):
    ws = tmp_path / "ws"
    (ws / "src" / "deep").mkdir(parents=True)
    (ws / "notes.md").write_text("old\n")
    (ws / "src" / "a.py").write_text("a\n")
    (ws / "src" / "deep" / "b.py").write_text("b\n")
    (ws / "src" / "c.txt").write_text("c\n")
    return ws


def writable(ws, *allow, **more):
    """Give the paths that would be bound, relative to the workspace, and the tree meanwhile."""
    with open_writable(Policy.parse(allow=allow, **more), str(ws)) as paths:
        found = None if paths is None else [os.path.relpath(path, ws) for path in paths]
        return found, set(tree(ws))


@pytest.mark.parametrize(
    ("allow", "bound"),
    [
        (["edit_file(notes.md)"], ["notes.md"]),
        (["edit_file(notes.md)", "bash", "read"], ["notes.md"]),
        (["write(src/**)"], ["src"]),
        (["write(src)"], ["src"]),
        (["write(src/*.py)"], ["src/a.py"]),
        (["edit_file(**/*.py)"], ["src/a.py", "src/deep/b.py"]),
        (["bash"], []),
        (["read", "bash(ls:*)"], []),
        (["write"], None),
        (["write(**)"], None),
        ([], None),
    ],
)
def test_rules_say_what_is_bound(ws, allow, bound):
    """Files and directories by name, a pattern by what is there; None where nothing is narrowed."""
    before = set(tree(ws))
    found, meanwhile = writable(ws, *allow)
    assert (found if found is None else sorted(found)) == bound
    assert meanwhile == before


def test_a_parent_narrows_it(ws):
    """What a parent does not grant is not bound."""
    parents = [Policy.parse(allow=["edit_file(notes.md)"])]
    assert writable(ws, "write", parents=parents)[0] == ["notes.md"]


def test_what_is_missing_is_made_and_removed(ws):
    """A mount needs a place; what stays empty is gone afterwards, with its directories."""
    before = tree(ws)
    found, meanwhile = writable(ws, "write(new/deeper/**)", "edit_file(more/x.md)", "write(y.md)")
    assert sorted(found) == ["more/x.md", "new/deeper", "y.md"]
    assert meanwhile - set(before) == {"more", "more/x.md", "new", "new/deeper", "y.md"}
    assert tree(ws) == before


def test_what_was_written_stays(ws):
    """Only what is as it was made is removed."""
    with open_writable(Policy.parse(allow=["write(y.md)", "write(d/**)"]), str(ws)):
        (ws / "y.md").write_text("y")
        (ws / "d" / "f").write_text("f")
    assert (ws / "y.md").read_text() == "y" and (ws / "d" / "f").read_text() == "f"


def test_links_and_second_names_are_not_bound(ws, tmp_path):
    """What a link leads to, and a file that has another name, is named by no rule."""
    (tmp_path / "outside").mkdir()
    (ws / "link.md").symlink_to("src/c.txt")
    (ws / "away").symlink_to("../outside")
    os.link(ws / "src" / "c.txt", ws / "same.md")
    allow = ["write(link.md)", "write(same.md)", "write(away/**)", "write(away/x.md)"]
    assert writable(ws, *allow)[0] == []
    assert os.listdir(tmp_path / "outside") == []


def test_too_many_files_are_refused(ws):
    """One mount each: a pattern that matches hundreds is an error that says what to do."""
    for number in range(MOST_FILES + 1):
        (ws / f"{number}.md").touch()
    with pytest.raises(UsageError, match="more than 200") as refused:
        writable(ws, "edit_file(*.md)")
    assert "src/**" in refused.value.hint


def test_the_kernel_holds_it(ws):
    """bash writes what the rules name, new files too, and nothing else, by no means."""
    before = tree(ws)
    tries = (
        "echo new > notes.md; echo more > made.md; echo x > out/x; "
        "echo no > src/a.py; touch other; rm -rf src; mv notes.md src/; chmod 700 src; "
        "ln notes.md n2; ln -s x y; mkdir z; truncate -s0 src/c.txt; mount --bind src out; "
        "cd src && echo no > a.py; echo no > $PWD/../src/c.txt; true"
    )
    allow = ("bash", "write(notes.md)", "write(made.md)", "write(out/**)", "write(unused.md)")
    result = spawn(
        ws, call("bash", command=tries), DONE, arguments=("--workspace", "live", "--allow", *allow)
    )
    assert result["stop_reason"] == "completed"
    after = tree(ws)
    for path, text in (("notes.md", b"new\n"), ("made.md", b"more\n"), ("out/x", b"x\n")):
        assert after.pop(path)[1] == text
    after.pop("out")
    before.pop("notes.md")
    assert after == before
    spawn(ws, call("bash", command=tries), DONE, arguments=("--workspace", "live"))
    assert tree(ws) != before and not (ws / "src").exists()  # the control: with no rules


def test_a_file_that_is_bound_can_be_edited_and_written(ws):
    """The file tools write a single file in place, since it cannot be replaced."""
    calls = [
        call("edit_file", file_path="notes.md", old_string="old", new_string="new"),
        call("write_file", file_path="src/c.txt", content="whole\n"),
    ]
    allow = ("edit_file(notes.md)", "write_file(src/c.txt)")
    transcript = ws.parent / "t"
    arguments = ("--workspace", "live", "--transcript", str(transcript), "--allow", *allow)
    spawn(ws, *calls, DONE, arguments=arguments)
    assert (ws / "notes.md").read_text() == "new\n", transcript.read_text()
    assert (ws / "src" / "c.txt").read_text() == "whole\n"


def test_too_many_files_are_a_usage_error_of_the_command_line(ws):
    """Exit code 2, with the hint; nothing is started."""
    for number in range(MOST_FILES + 1):
        (ws / f"{number}.md").touch()
    model = script(ws.parent / "s.jsonl", DONE)
    flags = ("--workspace", "live", "--allow", "edit_file(*.md)", "--model", model)
    done = run("spawn", "--prompt", "x", *flags, cwd=ws, check=2)
    assert b"name a directory" in done.stderr
