"""How a shape is put to a model: by the API, by a tool, or in words.

    api      a fresh run of a model that has structured outputs, and a schema within them:
             `output_config.format` in the request; the reply that ends the run is the JSON
    tool     any other fresh run: one more tool, `final_answer`, whose input is the answer
    words    a fork, whose request must begin with its parent's very bytes: the schema stands in
             the directive, and the reply that ends the run is the JSON

Where the API refuses the schema, or has no structured outputs for this model and account after
all, the run goes on by the tool. On every road a text that is JSON of the shape is an answer, and
every answer is validated here.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from forkrun.errors import ModelError
from forkrun.protocol import ToolCall
from forkrun.structured.api import for_api, has_structured_outputs
from forkrun.structured.shape import NotShaped, Schema, Shape

Road = Literal["api", "tool", "words"]
FINAL_ANSWER = "final_answer"
_WRAPPED = "answer"
_REFUSED = ("output_config", "output_format", "structured output", "schema", "grammar")
_KEY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")

_ASKED: dict[Road, str] = {
    "api": "Your final message is a JSON object of the form that this request demands.",
    "tool": (
        f"Give your final answer by calling the tool {FINAL_ANSWER}, once, alone, when everything "
        "else is done. Its input is all that the caller gets."
    ),
    "words": (
        "Your final message must be one JSON value that matches the JSON schema below, and nothing "
        "else: no other words, no code fence. It is read by a program.\n{schema}"
    ),
}
_AGAIN: dict[Road, str] = {
    "api": "Answer again, with the whole corrected JSON and nothing else.",
    "tool": f"Call {FINAL_ANSWER} again, with the whole corrected input.",
    "words": "Answer again, with the whole corrected JSON and nothing else.",
}
_WRONG = "That is not an answer of the form that was asked for:\n{problems}\n{again}"


class Answering(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of a run's answer and the road by which the model is asked for it."""

    shape: Any  # a Shape; msgspec takes no classes of its own kind
    road: Road

    @property
    def asked(self) -> str:
        """What the model is told about its last message."""
        schema = msgspec.json.encode(self.shape.schema).decode()
        return (
            _ASKED[self.road].format(schema=schema) if self.road == "words" else _ASKED[self.road]
        )

    @property
    def by_tool(self) -> Answering | None:
        """The same by the tool, where this is the road of the API."""
        return msgspec.structs.replace(self, road="tool") if self.road == "api" else None

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tool that takes the answer, on the road that has one."""
        if self.road != "tool":
            return []
        return [
            {
                "name": FINAL_ANSWER,
                "description": "Give the final answer and end the run. Call it once, alone.",
                "input_schema": tool_schema(self.shape.schema)[0],
            }
        ]

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of the request, on the road that has some."""
        if self.road != "api":
            return {}
        schema = for_api(self.shape.schema)
        return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}

    def takes(self, call: ToolCall) -> bool:
        """Whether a call is the answer."""
        return self.road == "tool" and call.name == FINAL_ANSWER

    def text_of(self, call: ToolCall) -> str:
        """Give the JSON of the answer that a call is."""
        if not tool_schema(self.shape.schema)[1]:
            return call.input.decode()
        fields = msgspec.json.decode(call.input, type=dict[str, msgspec.Raw])
        return bytes(fields.get(_WRAPPED, b"")).decode()

    def correction(self, fault: NotShaped) -> str:
        """Say to the model what was wrong with its answer, and what to do now."""
        return _WRONG.format(problems=fault, again=_AGAIN[self.road])


def answering(shape: Shape, *, model: str, is_fork: bool) -> Answering:
    """Choose the road for a run."""
    road: Road = "tool"
    if is_fork:
        road = "words"
    elif has_structured_outputs(model) and for_api(shape.schema) is not None:
        road = "api"
    return Answering(shape=shape, road=road)


def is_refused(error: ModelError) -> bool:
    """Whether a request was refused for its `output_config`."""
    text = str(error).lower()
    return error.status in (400, 403) and any(word in text for word in _REFUSED)


def tool_schema(schema: Schema) -> tuple[Schema, bool]:
    """Give the schema as the input of a tool, and whether the answer is one field of that input.

    The API wants an object at the top, without alternatives, and simple names of properties.
    """
    top = {key: value for key, value in schema.items() if key not in ("$schema", "$id")}
    defs: Schema = {key: top[key] for key in ("$defs", "definitions") if key in top}
    ref = re.fullmatch(r"#/(\$defs|definitions)/([^/~%]+)", str(top.get("$ref")))
    if ref and ref[2] in defs.get(ref[1], {}) and not top.keys() - {"$ref", *defs}:
        top = {**defs[ref[1]][ref[2]], **defs}
    is_plain = top.get("type") == "object" and not top.keys() & {"anyOf", "oneOf", "allOf"}
    text = msgspec.json.encode(schema).decode()
    if is_plain and _has_plain_names(top) and '"$ref":"#"' not in text:
        return top, False
    inner: Schema = {"description": f"JSON that matches this schema: {text}"}
    own_refs = re.findall(r'"\$ref":"([^"]*)"', text)
    if all(ref.startswith(("#/$defs/", "#/definitions/")) for ref in own_refs) and (
        _has_plain_names(top)
    ):
        inner = {key: value for key, value in top.items() if key not in defs}
    whole: Schema = {"type": "object", "properties": {_WRAPPED: inner}, "required": [_WRAPPED]}
    return {**whole, **defs}, True


def _has_plain_names(schema: Any) -> bool:
    if isinstance(schema, list):
        return all(map(_has_plain_names, schema))
    if not isinstance(schema, dict):
        return True
    properties = schema.get("properties")
    names = properties if isinstance(properties, dict) else {}
    return all(map(_KEY.fullmatch, names)) and all(map(_has_plain_names, schema.values()))
