"""--json-schema and output_type, from the command line and from Python, with no key."""

from __future__ import annotations

import json
import subprocess
import sys

import msgspec
import pytest
import support_cli
from support_cli import script
from support_embedding import run, workspace  # noqa: F401

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
FINAL = {"tool_use": [{"name": "final_answer", "input": {"n": 7}}]}


class Answer(msgspec.Struct):
    n: int


def spawn(workspace, *lines, schema, format="json", check=None, more=()):
    model = script(workspace.parent / "script.jsonl", *lines)
    arguments = ("--prompt", "go", "--model", model, "--output-format", format)
    return support_cli.run(
        "spawn", *arguments, "--json-schema", schema, *more, cwd=workspace, check=check
    )


@pytest.mark.parametrize("line", [FINAL, {"text": '{"n": 7}'}])
def test_a_script_answers_by_the_tool_or_in_words(workspace, line) -> None:
    """A script may call final_answer or say the JSON."""
    done = spawn(workspace, line, schema=json.dumps(SCHEMA), check=0)
    result = json.loads(done.stdout)
    assert result["structured_output"] == {"n": 7}


def test_the_answer_is_what_stands_on_stdout(workspace) -> None:
    """In text mode the JSON is printed, and nothing else; the schema may stand in a file."""
    file = workspace.parent / "schema.json"
    file.write_text(json.dumps(SCHEMA))
    done = spawn(workspace, FINAL, schema=str(file), format="text", check=0)
    assert json.loads(done.stdout) == {"n": 7}


def test_an_invalid_schema_fails_before_the_first_call(workspace) -> None:
    """65 with the place in the schema; no model was asked, nothing printed."""
    bad = json.dumps({"properties": {"n": {"type": "int"}}})
    done = spawn(workspace, FINAL, schema=bad, check=65)
    assert done.stdout == b""
    assert b"properties.n.type" in done.stderr


def test_an_answer_that_never_fits_is_65_with_the_last_text(workspace) -> None:
    """--corrections bounds the tries; the last text is printed."""
    lines = ({"text": "first"}, {"text": "second"})
    done = spawn(
        workspace,
        *lines,
        schema=json.dumps(SCHEMA),
        format="text",
        check=65,
        more=("--corrections", "1"),
    )
    assert done.stdout == b"second\n"
    assert b"not JSON" in done.stderr


def test_the_offline_model_puts_its_quotes_into_a_form(workspace) -> None:
    """A form of texts can be filled by quoting."""
    schema = {
        "type": "object",
        "properties": {
            "answer": {"type": "string"},
            "lines": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["answer", "lines"],
    }
    result = run(workspace, "offline", prompt="Which version is it?", json_schema=schema)
    assert result.stop_reason == "completed"
    assert "The version is 7." in result.structured_output["answer"]


def test_the_offline_model_does_not_invent(workspace) -> None:
    """A form that quotes cannot fill ends as schema_failed, with what was missing."""
    result = run(workspace, "offline", prompt="Which version is it?", json_schema=SCHEMA)
    assert result.stop_reason == "schema_failed"
    assert "n: null is not of type" in result.error.message


def test_output_type_gives_an_instance(workspace) -> None:
    """The result holds an instance; the event of the same result holds plain data."""
    model = script(workspace.parent / "script.jsonl", FINAL)
    events: list = []
    result = run(workspace, model, output_type=Answer, events=events)
    assert result.structured_output == Answer(7)
    assert events[-1].result.structured_output == {"n": 7}


def test_the_validator_is_imported_only_when_used() -> None:
    """A run without a schema does not load it, nor pydantic."""
    code = (
        "import sys, forkrun.running, forkrun.cli.options, forkrun.structured.roads\n"
        "print({'jsonschema_rs', 'pydantic', 'dataclasses'} & set(sys.modules) or 'none')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "jsonschema_rs" not in done.stdout
    assert "pydantic" not in done.stdout
