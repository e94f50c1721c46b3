"""What is read as an answer of a shape, and what is wrong with what is not."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import msgspec
import pytest
from messages_server import problem_with

from forkrun.errors import InputError, UsageError
from forkrun.structured.api import for_api, has_structured_outputs
from forkrun.structured.roads import tool_schema
from forkrun.structured.shape import NotShaped, Shape, decode_schema


class Finding(msgspec.Struct):
    path: str
    line: Annotated[int, msgspec.Meta(ge=1)]


class Report(msgspec.Struct):
    findings: list[Finding]
    note: str | None = None


@dataclasses.dataclass
class Point:
    x: int
    y: int

    def __post_init__(self) -> None:
        if self.x > self.y:
            raise ValueError("x must not be larger than y")


def test_a_struct_is_a_shape() -> None:
    """A msgspec Struct gives the schema, and the instance."""
    shape = Shape.of_type(Report)
    _, value = shape.read('{"findings":[{"path":"a.py","line":3}]}')
    assert shape.converted(value) == Report([Finding("a.py", 3)])
    with pytest.raises(NotShaped, match=r"findings\[0\].line: 0 is less than the minimum of 1"):
        shape.read('{"findings":[{"path":"a.py","line":0}]}')


def test_a_dataclass_is_a_shape_with_its_own_checks() -> None:
    """What a dataclass refuses beyond its schema is told like the rest."""
    shape = Shape.of_type(Point)
    assert shape.converted(shape.read('{"x":1,"y":2}')[1]) == Point(1, 2)
    with pytest.raises(NotShaped, match="x must not be larger than y"):
        shape.read('{"x":3,"y":2}')


def test_a_pydantic_model_is_a_shape_with_its_own_validators() -> None:
    """A model is known by its methods; its validators are heard."""
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")

    class Model(pydantic.BaseModel):
        name: str

        @pydantic.field_validator("name")
        @classmethod
        def lower(cls, value: str) -> str:
            if value != value.lower():
                raise ValueError("write it in lower case")
            return value

    shape = Shape.of_type(Model)
    assert shape.converted(shape.read('{"name":"a"}')[1]) == Model(name="a")
    with pytest.raises(NotShaped, match="write it in lower case"):
        shape.read('{"name":"A"}')


def test_a_type_without_a_schema_is_refused() -> None:
    """What no schema can be made of is a usage error that names it."""
    with pytest.raises(UsageError, match="no schema can be made of object"):
        Shape.of_type(object)


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        ({"type": "objekt"}, "at type"),
        ({"type": "object", "properties": {"a": {"type": "strin"}}}, "at properties.a.type"),
        ({"properties": {"a": {"pattern": "("}}}, "at properties.a.pattern"),
        ({"$ref": "#/$defs/none"}, r"/\$defs/none"),
    ],
)
def test_a_schema_that_is_none_is_refused_with_its_place(schema, where) -> None:
    """The error says where in the schema."""
    with pytest.raises(InputError, match=where):
        Shape(schema)


@pytest.mark.parametrize("ref", ["http://127.0.0.1:9/x.json", "file:///etc/hostname"])
def test_references_to_elsewhere_are_not_followed(ref: str) -> None:
    """A schema is data: reading it opens no file and no connection."""
    with pytest.raises(InputError, match="only references within the schema are followed"):
        Shape({"$ref": ref})


def test_a_file_that_is_no_json_is_named() -> None:
    """What is wrong with a schema's text names its source."""
    with pytest.raises(InputError, match=r"s\.json is not JSON"):
        decode_schema(b"{", source="s.json")
    with pytest.raises(InputError, match=r"s\.json is not a JSON schema"):
        decode_schema(b"[]", source="s.json")


def test_newer_drafts_are_understood() -> None:
    """Keywords of 2020-12 are not passed over in silence."""
    shape = Shape({"type": "array", "prefixItems": [{"type": "integer"}], "items": False})
    assert shape.read("[1]")[1] == [1]
    with pytest.raises(NotShaped):
        shape.read('["a"]')
    with pytest.raises(NotShaped):
        shape.read("[1, 2]")


def test_problems_are_few_and_short() -> None:
    """A huge wrong answer does not come back whole."""
    shape = Shape({"type": "array", "items": {"maxLength": 3}})
    with pytest.raises(NotShaped) as caught:
        shape.read(json.dumps(["x" * 100_000] * 100))
    assert len(str(caught.value)) < 5_000


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 5_000, "", "\ud800", "NaN"])
def test_hostile_text_is_only_wrong(text: str) -> None:
    """Deep, cut, blank and ill-formed text is no answer, and nothing worse."""
    with pytest.raises(NotShaped):
        Shape({}).read(text)


API = [
    {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}},
    msgspec.json.schema(Report),
    {"type": "object", "properties": {"a": {"type": ["string", "null"], "pattern": "x"}}},
    {"type": "object", "properties": {"a": {"enum": ["x", None]}, "b": {"const": 3}}},
    {"type": "object", "properties": {"a": {"oneOf": [{"type": "integer"}, {"type": "null"}]}}},
]
OUTSIDE = [
    {"type": "array", "items": {"type": "string"}},
    {"type": "object", "additionalProperties": {"type": "integer"}},
    {"type": "object", "properties": {"a": {}}},
    {"type": "object", "properties": {"a": {"type": "array", "prefixItems": [{}]}}},
    {"type": "object", "properties": {"a": {"not": {"type": "null"}}}},
    {
        "$ref": "#/$defs/t",
        "$defs": {"t": {"type": "object", "properties": {"t": {"$ref": "#/$defs/t"}}}},
    },
    {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(25)}},
]


@pytest.mark.parametrize("schema", API)
def test_what_the_api_takes_is_rewritten_for_it(schema) -> None:
    """The strict server takes the rewriting of every schema that has one."""
    made = for_api(schema)
    assert made is not None
    form = {"format": {"type": "json_schema", "schema": made}}
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    assert problem_with(body | {"output_config": form}) is None


@pytest.mark.parametrize("schema", OUTSIDE)
def test_what_the_api_cannot_hold_goes_by_the_tool(schema) -> None:
    """No rewriting changes what a schema means; the tool takes it, as an object at the top."""
    assert for_api(schema) is None
    made, is_wrapped = tool_schema(schema)
    assert made["type"] == "object"
    assert is_wrapped == (schema.get("type") == "array")
    Shape(made)


@pytest.mark.parametrize(
    ("model", "has"),
    [
        ("claude-sonnet-4-5-20250929", True),
        ("claude-opus-4-6", True),
        ("claude-sonnet-5-5", True),
        ("claude-haiku-5", True),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", True),
        ("claude-opus-4-1-20250805", False),
        ("claude-sonnet-4-20250514", False),
        ("claude-3-5-sonnet-20241022", False),
        ("claude-test", False),
        ("qwen3:30b", False),
        ("offline", False),
    ],
)
def test_models_with_structured_outputs_are_known_by_name(model: str, has: bool) -> None:
    """Claude 4.5 and later have them; for any other name the tool works too."""
    assert has_structured_outputs(model) is has
