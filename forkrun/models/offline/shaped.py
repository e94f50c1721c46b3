"""Puts the answer of the offline model into a form that was asked for, as far as a quote can.

Text goes where the schema wants text, the lines quoted where it wants a list of texts. What can
only be guessed (a number, a choice) stays out, and the run says what is missing.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from forkrun.models.base import Request

FINAL_ANSWER = "final_answer"
_IN_WORDS = re.compile(r"matches the JSON schema below.*\n(\{.*\})\s*$", re.MULTILINE)
_MAX_DEPTH = 20

Schema = dict[str, Any]


def wanted_form(request: Request, *, last_words: str) -> tuple[Schema, bool] | None:
    """Give the schema that an answer must match and whether a tool takes it, where one is asked."""
    for tool in msgspec.json.decode(request.params.get("tools", b"[]")):
        if tool.get("name") == FINAL_ANSWER:
            return tool.get("input_schema", {}), True
    found = _IN_WORDS.search(last_words)
    return (msgspec.json.decode(found[1]), False) if found else None


def put_into(schema: Schema, text: str) -> Any:
    """Give a value of this form that holds the text."""
    return _filled(schema, text, whole=schema, depth=0)


def _filled(schema: Any, text: str, *, whole: Schema, depth: int) -> Any:
    schema = _resolved(schema, whole)
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return text
    if "const" in schema:
        return schema["const"]
    if "default" in schema and depth:
        return schema["default"]
    kinds = _kinds(schema, whole)
    if "object" in kinds or "properties" in schema:
        names = schema.get("required", [])
        properties = schema.get("properties", {})
        return {
            name: _filled(properties.get(name), text, whole=whole, depth=depth + 1)
            for name in names
        }
    return _leaf(schema, text, whole=whole, depth=depth)


def _leaf(schema: Schema, text: str, *, whole: Schema, depth: int) -> Any:
    kinds = _kinds(schema, whole)
    if "string" in kinds and "enum" not in schema:
        return text[: schema.get("maxLength", len(text))]
    if "array" in kinds:
        item = _resolved(schema.get("items", {}), whole)
        lines = [line for line in text.splitlines() if line.strip()]
        lines = lines[: schema.get("maxItems", len(lines))]
        return [_filled(item, line, whole=whole, depth=depth + 1) for line in lines]
    return None if kinds else text


def _resolved(schema: Any, whole: Schema) -> Any:
    for _ in range(_MAX_DEPTH):
        if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
            return schema
        _, *parts = schema["$ref"].split("/")
        schema = whole
        for part in parts:
            schema = schema.get(part, {}) if isinstance(schema, dict) else {}
    return {}


def _kinds(schema: Schema, whole: Schema) -> set[str]:
    kind = schema.get("type", [])
    found = {kind} if isinstance(kind, str) else set(kind)
    for key in ("anyOf", "oneOf"):
        for part in schema.get(key, []):
            found |= _kinds(_resolved(part, whole) or {}, whole)
    return found
