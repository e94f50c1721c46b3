"""The part of JSON schema that the Messages API holds a model to (`output_config.format`).

A schema is rewritten into that part, and what only narrows values (`minimum`, `maxLength`, …) goes
into the description, as the `anthropic` SDK does: the answer is validated by the whole schema
anyway. Where the rewriting would change what is meant, there is none: maps with free keys, tuples,
conditions, recursion. Source: "Structured outputs", platform.claude.com, and `transform_schema` of
anthropic 2.14.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

Schema = dict[str, Any]

MAX_OPTIONAL = 24
MAX_UNIONS = 16
FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid")
)
_KEPT = ("title", "description")
_NARROWS = frozenset(
    (
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minLength", "maxLength", "pattern", "format", "minItems", "maxItems", "uniqueItems"),
        *("default", "examples", "deprecated", "readOnly", "writeOnly"),
    )
)
_IGNORED = frozenset(("$schema", "$id", "$comment"))
_GENERATION = re.compile(r"claude-[a-z]+-(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)")


def has_structured_outputs(model: str) -> bool:
    """Whether the API's structured output exists for this model: Claude 4.5 and later."""
    found = _GENERATION.search(model)
    return bool(found) and (int(found[1]), int(found[2] or 0)) >= (4, 5)  # type: ignore[index]


def for_api(schema: Schema) -> Schema | None:
    """Give the schema as the API takes it, or None where it lies outside of what it takes."""
    rewriting = _Rewriting(schema)
    try:
        made = rewriting.whole()
    except _Outside:
        return None
    fits = rewriting.optional <= MAX_OPTIONAL and rewriting.unions <= MAX_UNIONS
    return made if fits else None


class _Outside(Exception):
    pass


class _Rewriting:
    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self.optional = 0
        self.unions = 0

    def whole(self) -> Schema:
        defs: dict[str, Schema] = {
            key: {name: self._part(part) for name, part in self._schema[key].items()}
            for key in ("$defs", "definitions")
            if key in self._schema
        }
        top = self._part({k: v for k, v in self._schema.items() if k not in defs})
        if self._resolved(top).get("type") != "object" or _is_recursive(defs):
            raise _Outside
        return {**top, **defs}

    def _resolved(self, part: Schema) -> Schema:
        seen = set()
        while (ref := part.get("$ref")) is not None:
            if ref in seen:
                raise _Outside
            seen.add(ref)
            _, key, name = _target(ref)
            part = self._schema.get(key, {}).get(name, {})
        return part

    def _part(self, schema: Any) -> Schema:
        if not isinstance(schema, dict):
            raise _Outside  # true and false
        if "$ref" in schema:
            _target(schema["$ref"])
            return {"$ref": schema["$ref"]}
        rest = {key: value for key, value in schema.items() if key not in _IGNORED}
        made = {key: rest.pop(key) for key in _KEPT if key in rest}
        made |= self._kind(rest)
        if narrowing := {key: rest.pop(key) for key in sorted(_NARROWS & rest.keys())}:
            told = ", ".join(
                f"{k}: {msgspec.json.encode(v).decode()}" for k, v in narrowing.items()
            )
            made["description"] = "\n\n".join(
                filter(None, (made.get("description"), f"{{{told}}}"))
            )
        if rest:
            raise _Outside
        return made

    def _kind(self, rest: Schema) -> Schema:
        """Take out of `rest` what says which kind of value it is."""
        if "enum" in rest or "const" in rest:
            return _literals(rest)
        for key in ("anyOf", "oneOf"):
            if key in rest:
                self.unions += 1
                return {"anyOf": [self._part(part) for part in rest.pop(key)]}
        kind = rest.pop("type", None)
        if isinstance(kind, list):
            self.unions += 1
            narrowing = {key: rest.pop(key) for key in list(rest)}
            return {"anyOf": [self._part({**_fitting(narrowing, k), "type": k}) for k in kind]}
        return {"type": kind, **self._members(kind, rest)}

    def _members(self, kind: Any, rest: Schema) -> Schema:
        if kind == "object":
            return self._object(rest)
        if kind == "array":
            return self._array(rest)
        if kind not in ("string", "integer", "number", "boolean", "null"):
            raise _Outside
        return {"format": rest.pop("format")} if rest.get("format") in FORMATS else {}

    def _object(self, rest: Schema) -> Schema:
        if rest.pop("additionalProperties", False) not in (False, True) or "properties" not in rest:
            raise _Outside
        properties = {name: self._part(part) for name, part in rest.pop("properties").items()}
        required = list(rest.pop("required", []))
        self.optional += len(properties.keys() - set(required))
        return {"properties": properties, "additionalProperties": False, "required": required}

    def _array(self, rest: Schema) -> Schema:
        made: Schema = {"items": self._part(rest.pop("items", True))}
        if rest.get("minItems") in (0, 1):
            made["minItems"] = rest.pop("minItems")
        return made


def _literals(rest: Schema) -> Schema:
    key = "enum" if "enum" in rest else "const"
    value = rest.pop(key)
    rest.pop("type", None)
    if any(isinstance(v, dict | list) for v in (value if key == "enum" else [value])):
        raise _Outside
    return {key: value}


def _fitting(keywords: Schema, kind: str) -> Schema:
    own = {
        "object": {"properties", "required", "additionalProperties"},
        "array": {"items", "minItems", "maxItems", "uniqueItems"},
    }
    others = set().union(*(names for name, names in own.items() if name != kind))
    return {key: value for key, value in keywords.items() if key not in others}


def _target(ref: Any) -> tuple[str, str, str]:
    parts = str(ref).split("/")
    if len(parts) != 3 or parts[0] != "#" or parts[1] not in ("$defs", "definitions"):
        raise _Outside
    return parts[0], parts[1], parts[2]


def _is_recursive(defs: dict[str, Schema]) -> bool:
    import graphlib

    graph = {
        f"#/{key}/{name}": set(_refs(part))
        for key, named in defs.items()
        for name, part in named.items()
    }
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError:
        return True
    return False


def _refs(part: Any) -> list[str]:
    if isinstance(part, dict):
        own = [part["$ref"]] if isinstance(part.get("$ref"), str) else []
        return own + [ref for value in part.values() for ref in _refs(value)]
    return [ref for value in part for ref in _refs(value)] if isinstance(part, list) else []
