"""What the documents say about events and embedding is what happens."""

import ast
import asyncio
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import jsonschema
import msgspec
import pytest
from support_api import replies
from support_cli import environment, run

import forkrun
from forkrun.events import Event
from forkrun.result import EXIT_CODES, Result, StopReason
from forkrun.schema import LINE, stream_schema

DOCS = Path(__file__).parents[2] / "docs"
STEP = {"tool_use": [{"name": "bash", "input": {"command": "echo hello"}}]}


def test_the_schema_is_that_of_this_version() -> None:
    """docs/stream.schema.json is what `python -m forkrun.schema` prints."""
    done = subprocess.run(
        [sys.executable, "-m", "forkrun.schema"], capture_output=True, check=True, cwd="/"
    )
    assert (DOCS / "stream.schema.json").read_bytes() == done.stdout


RUNS = {
    "a tool": ((STEP, {"text": "x"}), ()),
    "a denial": ((STEP, {"text": "x"}), ("--deny", "bash")),
    "a bound": ((STEP, STEP, {"text": "x"}), ("--max-turns", "1")),
    "a retry": (({"error": {"status": 529, "retry_after_s": 0.01}}, {"text": "x"}), ()),
    "a change": (
        (
            {"tool_use": [{"name": "write_file", "input": {"file_path": "a", "content": "b"}}]},
            {"text": "x"},
        ),
        (),
    ),
    "a check": (({"text": "x"},), ("--check", "echo good")),
    "a failure": (({"error": {"status": 400, "message": "no"}},), ()),
    "no text": (({"text": " "}, {"text": ""}), ()),
    "an idle end": (({"text": "x", "delay_s": 60},), ("--idle-timeout", "0.2")),
}


@pytest.mark.parametrize("name", RUNS)
def test_recorded_runs_fit_the_schema(name: str, tmp_path: Path) -> None:
    """Each line of a real run is valid, and the last one alone is a result."""
    workspace = tmp_path / "ws"
    workspace.mkdir()
    lines, flags = RUNS[name]
    model = replies(tmp_path / "s", *lines)
    arguments = ("spawn", "--prompt", "go", "--model", model, "--output-format", "stream-json")
    done = run(*arguments, *flags, cwd=workspace, env=environment(tmp_path))
    validator = jsonschema.Draft202012Validator(stream_schema())
    events = [json.loads(line) for line in done.stdout.splitlines()]
    for event in events:
        validator.validate(event)
    assert [event["type"] == "result" for event in events] == [False] * (len(events) - 1) + [True]


def test_the_schema_refuses_what_is_no_line() -> None:
    """The schema says something: a line without its fields is not valid."""
    validator = jsonschema.Draft202012Validator(stream_schema())
    assert not validator.is_valid({"type": "turn", "run_id": "r", "t": 1.0})
    assert not validator.is_valid({"type": "other"})


def test_every_event_and_field_is_in_the_document() -> None:
    """The tables of events.md name each event with its class and fields, and each result field."""
    text = (DOCS / "events.md").read_text()
    for kind in get_args(LINE):
        if kind is Result:
            continue
        tag = msgspec.inspect.type_info(kind).tag
        row = next(line for line in text.splitlines() if line.startswith(f"| `{tag}` |"))
        assert f"`{kind.__name__}`" in row
        for field in set(kind.__struct_fields__) - set(Event.__struct_fields__):
            assert f"`{field}`" in row
    for name in forkrun.__all__:
        if name.endswith("Event") and name != "Event":
            assert f"`{name}`" in text
    section = text.split("## The result")[1].split("## What")[0]
    for field in ("type", *Result.__struct_fields__):
        assert f"`{field}`" in section
    for reason in get_args(StopReason):
        row = next(line for line in section.splitlines() if f"`{reason}`" in line and "| " in line)
        assert str(EXIT_CODES[reason]) in section.split("| exit code |")[1]
        assert row


CODE = re.findall(r"^```python\n(.*?)^```", (DOCS / "embedding.md").read_text(), re.M | re.S)


@pytest.mark.parametrize("number", range(len(CODE)))
def test_the_examples_run(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block of embedding.md runs as it stands, with a script as the model."""
    (tmp_path / "ws").mkdir()
    monkeypatch.chdir(tmp_path / "ws")
    replies(Path("replies.jsonl"), {"text": "In pyproject.toml."})
    monkeypatch.setenv("FORKRUN_MODEL", "script:replies.jsonl")
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    code = compile(CODE[number], f"embedding.md, block {number}", "exec", flags)
    names = {"forkrun": forkrun}
    with asyncio.Runner() as runner:
        if code.co_flags & inspect.CO_COROUTINE:
            runner.run(eval(code, names))
        else:
            eval(code, names)
