"""The toolbox as a loop sees it: any call gives a result that can be sent."""

import errno
import os

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support_tools import ALL, PATH, opened

from forkrun.catalog import INPUTS, definitions
from forkrun.errors import ChannelError
from forkrun.protocol import ToolCall, ToolLimits
from forkrun.tools import Toolbox


@pytest.mark.parametrize("name", ["Bash", "BASH", "mcp__db__query", "", "task", "read_file\n"])
def test_E14_unknown_tool(box, name):
    """A tool that there is not is an error that lists those there are; case is not guessed."""
    result = box(name, command="touch RAN")
    assert result.is_error and not result.denied
    assert "available: bash, read_file, write_file" in result.text
    assert os.listdir(box.workspace) == []


def test_E14_tool_that_was_not_given(ws):
    """A tool that this run does not have is unknown to it."""
    with opened(ws, tools=("glob",)) as box:
        assert "available: glob" in box.fails("bash", command="true")


@pytest.mark.parametrize(
    ("tool", "raw", "named"),
    [
        ("bash", b"{}", "command"),
        ("bash", b'{"command": ["ls"], "timeout": "10"}', "command"),
        ("bash", b'{"command": "ls", "timeout": "10"}', "timeout"),
        ("bash", b'{"command": "ls", "timeout": 1e999}', "timeout"),
        ("read_file", b'{"path": null, "limit": -1, "offset": 1000000000}', "file_path"),
        ("read_file", b'{"path": "f", "limit": -1}', "limit"),
        ("read_file", b'{"path": "f", "limit": 0}', "limit"),
        ("read_file", b'{"path": "f", "offset": -3}', "offset"),
        ("read_file", b'{"path": "f", "offset": 1000000000}', "offset"),
        ("write_file", b'{"path": "g"}', "content"),
        ("edit_file", b'{"path": "f", "old_string": "a", "new_string": 3}', "new_string"),
        ("edit_file", b'{"path": "f", "old_string": "a", "new_string": "b", "replace_all": "yes"}', "replace_all"),
        ("glob", b"[]", "object"),
        ("grep", b"null", "object"),
        ("grep", b"{", "not valid"),
        ("grep", b"", "not valid"),
        ("bash", b"[" * 100_000, "not valid"),
    ],
)  # fmt: skip
def test_E15_bad_input(box, tool, raw, named):
    """Input that does not fit is an error that names the key; nothing runs."""
    (box.workspace / "f").write_text("a\n")
    result = box.raw(tool, raw)
    assert result.is_error and named in result.text
    assert "Traceback" not in result.text and "reason of its own" not in result.text
    assert os.listdir(box.workspace) == ["f"]


def test_E15_what_is_meant_is_taken(box):
    """Extra keys and nulls for optional ones do no harm; `path` is `file_path`."""
    (box.workspace / "f").write_text("a\n")
    assert box.ok("bash", command="echo 1", timeout=None, description="prints") == "1"
    assert box.ok("read_file", path="f", limit=None, pages="") == "     1\ta"
    assert box.ok("read_file", file_path="f", path=None) == "     1\ta"
    box.ok("edit_file", path="f", old_string="a", new_string="b", replace_all=None)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
TEXT = st.text(max_size=20) | st.sampled_from(
    [".", "..", "/", "a", "a/b", "~", "[", "**", "*", "{a,b}", "\x00", "\\", "(", "a" * 300, "é/日"]
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_input_gives_a_result(box, data):
    """No input makes a tool fail for a reason of its own or give what cannot be sent."""
    tool = data.draw(st.sampled_from(sorted(set(INPUTS) - {"bash"})))
    keys = [*INPUTS[tool].__struct_fields__, "path"]
    arguments = data.draw(st.dictionaries(st.sampled_from(keys), TEXT | JSON))
    result = box.raw(tool, msgspec.json.encode(arguments))
    assert "reason of its own" not in result.text, (tool, arguments)
    assert result.text
    msgspec.msgpack.encode(result)


def test_names_that_are_no_text(box):
    """Files whose names are no UTF-8, or hold line breaks, are shown on one line each."""
    for name in (b"caf\xe9.txt", b"two\nlines.txt", b"esc\x1b[31m.txt"):
        with open(os.fsencode(box.workspace) + b"/" + name, "w") as file:
            file.write("needle\n")
    for text in (box.ok("glob", pattern="*.txt"), box.ok("grep", pattern="needle")):
        assert len(text.split("\n")) == 3 and "\x1b" not in text
        text.encode()


def test_denial_is_a_result(ws):
    """What the judge forbids is denied with its reason, before anything happens."""
    asked = []

    def judge(tool, subject):
        asked.append((tool, subject))
        return "only reading is allowed" if tool in {"bash", "write_file"} else None

    (ws / "d").mkdir()
    (ws / "d" / "l").symlink_to("../target")
    with opened(ws, judge=judge) as box:
        for tool, arguments in (
            ("bash", {"command": "touch RAN"}),
            ("write_file", {"file_path": "new/dir/f", "content": "x"}),
            ("write_file", {"file_path": "d/l", "content": "x"}),
        ):
            result = box(tool, **arguments)
            assert (result.denied, result.is_error) == (True, True)
            assert result.text == "only reading is allowed"
    assert asked == [("bash", "touch RAN"), ("write_file", "new/dir/f"), ("write_file", "target")]
    assert sorted(os.listdir(ws)) == ["d"]


@pytest.mark.parametrize("path", [PATH, "/nowhere"])
def test_searches_leave_out_what_may_not_be_read(ws, path):
    """glob and grep show no file that read_file must not read, and say that they left some out."""
    (ws / "open.txt").write_text("needle\n")
    (ws / "secret.txt").write_text("needle\n")

    def judge(tool, subject):
        return (
            "secret.txt is not to be read"
            if subject == "secret.txt" and tool == "read_file"
            else None
        )

    with opened(ws, judge=judge, env={"PATH": path}) as box:
        for text in (
            box.ok("glob", pattern="*.txt"),
            box.ok("grep", pattern="needle"),
        ):
            assert "open.txt" in text and "1 files left out by the rules" in text
        for tool, arguments in (
            ("glob", {"pattern": "secret.txt"}),
            ("grep", {"pattern": "needle", "path": "secret.txt"}),
        ):
            result = box(tool, **arguments)
            assert result.denied and "not to be read" in result.text


def test_a_search_that_is_forbidden_is_denied(ws):
    """Where the tool itself is forbidden, it is denied, whether there is a match or not."""
    (ws / "f").write_text("needle\n")
    with opened(ws, judge=lambda tool, subject: "no grep" if tool == "grep" else None) as box:
        assert box("grep", pattern="needle").denied
        assert box("grep", pattern="nothing").denied
        assert not box("glob", pattern="*").denied


def test_errors_of_the_caller_are_not_results(ws):
    """A broken channel is the loop's affair: it is raised, and nothing of the command is left."""

    def alive(call_id):
        raise ChannelError("the parent is gone")

    with opened(ws, alive=alive) as box, pytest.raises(ChannelError):
        box("bash", command="echo x; sleep 300.107")


def test_results_of_a_search_are_bounded(ws):
    """grep and glob stay within the bound and say that there is more."""
    for number in range(1200):
        (ws / f"file-{number:05}").write_text("needle " * 10 + "\n")
    for path in (PATH, "/nowhere"):
        with opened(ws, env={"PATH": path}, limits=ToolLimits(result_chars=5000)) as box:
            text = box.ok("grep", pattern="needle")
            assert len(text) < 5200 and "there are more matches" in text
            text = box.ok("glob", pattern="*")
            assert len(text) < 5200 and "bytes dropped" in text


def test_workspace_that_is_gone(ws):
    """Where the workspace was removed, calls are errors and nothing escapes."""
    with opened(ws) as box:
        os.rmdir(ws)
        box.fails("write_file", path="f", content="x")
        box.fails("read_file", path="f")
        box("glob", pattern="*")
        box("grep", pattern="x")
        box("bash", command="true")
    assert not ws.exists()


def test_workspace_that_cannot_be_opened(ws):
    """A toolbox on nothing is refused when it is made."""
    with pytest.raises(OSError) as caught:
        Toolbox(str(ws / "nothing"), tools=ALL, env={}, limits=ToolLimits())
    assert caught.value.errno == errno.ENOENT


def test_no_bash(ws):
    """Without a bash on PATH the call is an error that says so."""
    with opened(ws, env={"PATH": "/nowhere"}) as box:
        assert "no bash on PATH" in box.fails("bash", command="true")


def test_subreaper_is_given_back(ws):
    """A toolbox that is closed leaves the process as it was."""
    from forkrun.tools import kernel

    with opened(ws):
        assert kernel.adopt_orphans(wanted=True) is True
    assert kernel.adopt_orphans(wanted=False) is False


def test_definitions():
    """Each tool has a description in prose and a schema that the Messages API takes."""
    found = definitions(ALL)
    assert [definition["name"] for definition in found] == list(ALL)
    for definition in found:
        assert set(definition) == {"name", "description", "input_schema"}
        assert "  " not in definition["description"]
        schema = definition["input_schema"]
        assert schema["type"] == "object" and schema["required"]
        for entry in schema["properties"].values():
            assert entry["description"] and ("type" in entry or "anyOf" in entry)


def test_call_is_a_struct(box):
    """The id of the result is that of the call."""
    call = ToolCall(id="toolu_9", name="bash", input=b'{"command": "true"}')
    assert box.toolbox.run(call).id == "toolu_9"


def test_a_search_that_has_enough_ends_at_once(ws, tmp_path):
    """When the result is full, the search is ended, however much it would still print."""
    (ws / "f").write_text("needle\n")
    (tmp_path / "bin").mkdir()
    rg = tmp_path / "bin" / "rg"
    line = (
        '{"type":"match","data":{"path":{"text":"./f"},"lines":{"text":"needle\\n"},'
        '"line_number":1,"submatches":[{"start":0,"end":6}]}}'
    )
    rg.write_text(f"#!/bin/bash\ntrap '' TERM\nwhile :; do echo '{line}'; done\n")
    rg.chmod(0o755)
    with opened(
        ws, env={"PATH": f"{rg.parent}:{PATH}"}, limits=ToolLimits(result_chars=500)
    ) as box:
        assert "there are more matches" in box.ok("grep", pattern="needle")


def test_errors_of_the_caller_end_a_command_that_prints(ws):
    """A command that goes on printing is ended as well when the caller's function fails."""

    def alive(call_id):
        raise ChannelError("the parent is gone")

    with opened(ws, alive=alive) as box, pytest.raises(ChannelError):
        box("bash", command="trap '' TERM; while :; do echo x; done")


def test_of_two_who_write_in_place_the_later_one_reads_anew(ws):
    """A file that cannot be replaced by a rename is not overwritten once somebody else wrote it."""
    from forkrun.tools import replacing
    from forkrun.tools.failures import ToolError

    (ws / "f").write_text("one\n")
    before = (ws / "f").stat()
    directory = os.open(ws, os.O_RDONLY)
    try:
        replacing._overwrite(directory, "f", b"two\n", before=before, path="f")
        with pytest.raises(ToolError, match="changed meanwhile"):
            replacing._overwrite(directory, "f", b"three\n", before=before, path="f")
    finally:
        os.close(directory)
    assert (ws / "f").read_text() == "two\n"
