"""A model that knows the parent's tools calls them by their names and inputs, and they work."""

import json

import pytest
from support_tools import box, searcher, ws  # noqa: F401 - fixtures

from forkrun.aliases import Names, NotOurs
from forkrun.policy import Policy
from forkrun.protocol import ToolCall

CLAUDE_CODE = ("Bash", "Read", "Write", "Edit", "MultiEdit", "Glob", "Grep", "LS", "Task")
PARENT = [
    *({"name": name, "input_schema": {"type": "object"}} for name in CLAUDE_CODE),
    {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
    {"type": "bash_20250124", "name": "bash"},
    {"type": "web_search_20250305", "name": "web_search"},
    {"name": "mcp__db__query", "input_schema": {"type": "object"}},
    {"name": "mcp__runner__task", "input_schema": {"type": "object"}},
]
NAMES = Names.of_parent(PARENT)
EDITOR = "str_replace_based_edit_tool"


def ours(name, names=NAMES, **fields):
    return names.ours_for(ToolCall(id="t", name=name, input=json.dumps(fields).encode()))


def run(box, name, **fields):
    """Have a call of the parent's tools run by the child's toolbox; give the result."""
    return box.toolbox.run(ours(name, **fields))


def ok(box, name, **fields):
    result = run(box, name, **fields)
    assert not result.is_error, result.text
    return result.text


def refusal(name, names=NAMES, **fields):
    with pytest.raises(NotOurs) as refused:
        ours(name, names=names, **fields)
    return str(refused.value)


# -- the text editor ---------------------------------------------------------------------------


def test_the_text_editor_creates_views_and_replaces(box):
    """`create`, `view` with and without a range, and `str_replace`, also to delete."""
    path = str(box.workspace / "a" / "f.txt")
    ok(box, EDITOR, command="create", path=path, file_text="one\ntwo\nthree\n")
    assert ok(box, EDITOR, command="view", path=path).split()[1::2] == ["one", "two", "three"]
    assert "     2\ttwo" in ok(box, EDITOR, command="view", path=path, view_range=[2, 2])
    assert "one" not in ok(box, EDITOR, command="view", path=path, view_range=[2, -1])
    ok(box, EDITOR, command="str_replace", path=path, old_str="two", new_str="2")
    ok(box, EDITOR, command="str_replace", path=path, old_str="three\n")
    assert (box.workspace / "a" / "f.txt").read_text() == "one\n2\n"


@pytest.mark.parametrize(
    ("before", "line", "text", "after"),
    [
        ("a\nb\n", 0, "x", "x\na\nb\n"),
        ("a\nb\n", 1, "x\n", "a\nx\nb\n"),
        ("a\nb\n", 2, "x", "a\nb\nx\n"),
        ("a\nb", 2, "x\n", "a\nb\nx\n"),
        ("a\r\nb\r\n", 1, "x\ny", "a\r\nx\r\ny\r\nb\r\n"),
        ("a\x0bb\u2028c\nd\n", 1, "x", "a\x0bb\u2028c\nx\nd\n"),
        ("", 0, "x", "x\n"),
    ],
)
def test_the_text_editor_inserts_after_a_line(box, before, line, text, after):
    """Lines are those that the view numbers; the line end is the file's."""
    (box.workspace / "f").write_bytes(before.encode())
    ok(box, EDITOR, command="insert", path="f", insert_line=line, insert_text=text)
    assert (box.workspace / "f").read_bytes() == after.encode()


def test_insert_takes_the_older_name_of_its_text(box):
    """Before July 2025 the text was called `new_str`."""
    (box.workspace / "f").write_text("a\n")
    ok(box, EDITOR, command="insert", path="f", insert_line=1, new_str="b")
    assert (box.workspace / "f").read_text() == "a\nb\n"


def test_an_insertion_past_the_end_changes_nothing(box):
    """The error says how many lines there are."""
    (box.workspace / "f").write_text("a\n")
    result = run(box, EDITOR, command="insert", path="f", insert_line=7, insert_text="x")
    assert result.is_error and "has 1 lines" in result.text
    assert (box.workspace / "f").read_text() == "a\n"


def test_the_text_editor_views_a_directory_two_levels_deep(box):
    """Names that begin with a dot are left out, directories end with a slash."""
    box.sh("mkdir -p a/b/c .hidden; touch top a/one a/b/two a/b/c/three .hidden/x .dot")
    assert ok(box, EDITOR, command="view", path=".").split("\n") == ["a/", "a/b/", "a/one", "top"]
    assert ok(box, EDITOR, command="view", path="a/b").split("\n") == [
        "a/b/c/",
        "a/b/c/three",
        "a/b/two",
    ]
    assert "is a directory" in box("read_file", file_path="a").text  # ours does not list


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"command": "undo_edit", "path": "f"}, "str_replace"),
        ({"command": "open", "path": "f"}, "use view, create, str_replace or insert"),
        ({"path": "f"}, "use view, create"),
        ({"command": "insert", "path": "f", "insert_text": "x"}, "insert_line"),
        ({"command": "insert", "path": "f", "insert_line": -1, "insert_text": "x"}, "insert_line"),
        ({"command": "insert", "path": "f", "insert_line": 1}, "insert_text"),
        ({"command": "view", "path": "f", "view_range": [3, 1]}, "[first, last]"),
        ({"command": "view", "path": "f", "view_range": "1-3"}, "[first, last]"),
    ],
)
def test_what_the_text_editor_cannot_do_is_said(fields, said):
    """The model reads what would work instead."""
    assert said in refusal(EDITOR, **fields)


def test_a_text_editor_that_a_parent_describes_itself_works_too(box):
    """Some callers give the tool a schema of their own under its usual name."""
    names = Names.of_parent([{"name": "str_replace_editor", "input_schema": {}}])
    call = ours("str_replace_editor", names, command="create", path="f", file_text="x")
    assert not box.toolbox.run(call).is_error


# -- Claude Code -------------------------------------------------------------------------------


def test_files_by_the_names_of_claude_code(box):
    """Write, Read with offset and limit, Edit with replace_all; extra fields do no harm."""
    path = str(box.workspace / "f")
    ok(box, "Write", file_path=path, content="a\nb\na\n")
    assert ok(box, "Read", file_path=path, offset=2, limit=1).startswith("     2\tb")
    ok(box, "Edit", file_path=path, old_string="a", new_string="c", replace_all=True)
    assert (box.workspace / "f").read_text() == "c\nb\nc\n"
    assert ok(box, "Glob", pattern="*") == "f"
    assert ok(box, "LS", path=str(box.workspace), ignore=["x"]) == "f"


def test_several_edits_are_made_together(box):
    """Each in what the one before left; replace_all counts for its own edit alone."""
    (box.workspace / "f").write_text("a a\nb\n")
    edits = [
        {"old_string": "a", "new_string": "x", "replace_all": True},
        {"old_string": "x x\nb", "new_string": "y"},
    ]
    ok(box, "MultiEdit", file_path="f", edits=edits)
    assert (box.workspace / "f").read_text() == "y\n"


def test_several_edits_are_made_or_none(box):
    """The second of three does not fit: the file stays as it was, and the result names it."""
    (box.workspace / "f").write_text("a\n")
    edits = [
        {"old_string": "a", "new_string": "b"},
        {"old_string": "nowhere", "new_string": "c"},
        {"old_string": "b", "new_string": "d"},
    ]
    result = run(box, "MultiEdit", file_path="f", edits=edits)
    assert result.is_error and "edit 2" in result.text and "none of the edits" in result.text
    assert (box.workspace / "f").read_text() == "a\n"


@pytest.mark.parametrize("edits", [[], None, "x", [{"new_string": "x"}], [{"old_string": "a"}]])
def test_edits_that_are_none_are_an_error(box, edits):
    """Nothing is changed and the model reads what is wrong."""
    (box.workspace / "f").write_text("a\n")
    result = run(box, "MultiEdit", file_path="f", edits=edits)
    assert result.is_error and "reason of its own" not in result.text
    assert (box.workspace / "f").read_text() == "a\n"


def test_the_timeout_of_bash_is_in_milliseconds():
    """Ours is in seconds."""
    assert json.loads(ours("Bash", command="x", timeout=2500).input)["timeout"] == 2.5


def test_grep_gives_files_lines_or_counts(searcher):
    """As `output_mode` says; files are the default."""
    searcher.sh("printf 'x\\ny\\nx\\n' > a.py; printf 'X\\n' > b.py; printf 'x\\n' > c.txt")
    assert ok(searcher, "Grep", pattern="x") == "a.py\nc.txt"
    lines = ok(searcher, "Grep", pattern="x", output_mode="content", **{"-n": True})
    assert lines == "a.py:1:x\na.py:3:x\nc.txt:1:x"
    assert ok(searcher, "Grep", pattern="x", output_mode="count") == "a.py:2\nc.txt:1"
    assert ok(searcher, "Grep", pattern="x", **{"-i": True}) == "a.py\nb.py\nc.txt"
    assert ok(searcher, "Grep", pattern="x", type="py") == "a.py"
    assert ok(searcher, "Grep", pattern="x", glob="*.txt") == "c.txt"


def test_grep_gives_so_many_rows(searcher):
    """`head_limit` and `offset` count files, lines or counts, whichever is given."""
    searcher.sh("for n in 1 2 3 4; do echo x > f$n; done")
    assert ok(searcher, "Grep", pattern="x", head_limit=2).split("\n")[:2] == ["f1", "f2"]
    assert "f3" not in ok(searcher, "Grep", pattern="x", head_limit=2)
    assert ok(searcher, "Grep", pattern="x", head_limit=2, offset=2) == "f3\nf4"
    assert ok(searcher, "Grep", pattern="x", head_limit=0).count("\n") == 3


def test_grep_gives_lines_around(searcher):
    """-A, -B, -C as grep does: hits with colons, others with dashes, and -- between groups."""
    searcher.sh("seq 1 20 > f; echo 10 > g")
    around = ok(searcher, "Grep", pattern="^10$", output_mode="content", **{"-C": 1})
    assert around == "f-9-9\nf:10:10\nf-11-11\n--\ng:1:10"
    after = ok(searcher, "Grep", pattern="^(3|4|9)$", output_mode="content", **{"-A": 1})
    assert after == "f:3:3\nf:4:4\nf-5-5\n--\nf:9:9\nf-10-10"
    before = ok(searcher, "Grep", pattern="^2$", output_mode="content", **{"-B": 5})
    assert before == "f-1-1\nf:2:2"


@pytest.mark.parametrize(
    ("name", "fields", "said"),
    [
        ("Bash", {"command": "x", "run_in_background": True}, "foreground"),
        ("bash", {"restart": True}, "fresh shell"),
        ("Grep", {"pattern": "x", "multiline": True}, "one by one"),
        ("Grep", {"pattern": "x", "output_mode": "json"}, "content, files_with_matches, count"),
        ("Grep", {"pattern": "x", "type": "cobol"}, "*.cobol"),
        ("mcp__db__query", {}, "available: Bash, Read"),
        ("web_search", {}, "available: Bash, Read"),
        ("read_file", {}, "available: Bash, Read"),
        ("Task", {"prompt": "x"}, "cannot start subagents"),
        ("Agent", {"prompt": "x"}, "cannot start subagents"),
        ("mcp__runner__task", {}, "cannot start subagents"),
    ],
)
def test_what_cannot_be_done_is_said(name, fields, said):
    """A denial helps: what to do instead, or what is available."""
    assert said in refusal(name, **fields)


def test_the_tool_that_started_the_fork_is_known_by_its_open_call():
    """Whatever the parent calls it: its call was open when the fork was made."""
    tools = [{"name": "ask_the_intern"}, {"name": "Bash"}]
    names = Names.of_parent(tools, open_calls=["ask_the_intern", "Bash"])
    assert "cannot start subagents" in refusal("ask_the_intern", names)
    assert ours("Bash", names, command="x").name == "bash"


# -- rules see the call of ours ------------------------------------------------------------------


def test_rules_hold_whatever_the_call_is_named(ws):
    """An insertion, several edits and a view are judged as the edit or the reading that they are."""
    from support_tools import opened

    (ws / "f").write_text("a\n")
    (ws / "notes").write_text("a\n")
    judge = Policy.parse(allow=["edit_file(notes)", "read_file(notes)"]).judge
    edits = [{"old_string": "a", "new_string": "b"}]
    with opened(ws, judge=judge) as box:
        assert run(box, "MultiEdit", file_path="f", edits=edits).denied
        assert run(box, EDITOR, command="insert", path="f", insert_line=0, insert_text="x").denied
        assert run(box, EDITOR, command="create", path="notes", file_text="x").denied
        assert ok(box, EDITOR, command="view", path=".").startswith("notes")
        assert "f\n" not in ok(box, EDITOR, command="view", path=".")
        ok(box, "MultiEdit", file_path="notes", edits=edits)
    assert ((ws / "f").read_text(), (ws / "notes").read_text()) == ("a\n", "b\n")
