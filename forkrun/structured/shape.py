"""Reads the text of an answer as JSON of a given shape.

A shape is a JSON schema (draft 2020-12 where it names no other), and for a Python type also the
type's own conversion, so that what a validator of the type refuses is corrected like the rest. The
validator is jsonschema-rs: it knows all drafts, has a typed interface, and its patterns cannot
backtrack without bound, which matters since the text that they are held against is a model's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from forkrun.errors import InputError, UsageError
from forkrun.job import Job

MAX_PROBLEMS = 8
MAX_PROBLEM_CHARS = 400
_FENCED = re.compile(r"^```[a-zA-Z]*[ \t]*\n(.*?)\n```[ \t]*$", re.DOTALL | re.MULTILINE)

Schema = dict[str, Any]
Convert = Callable[[Any], Any]


class NotShaped(Exception):
    """A text that is no answer of the shape; the message says where, in words for the model."""


class Shape:
    """What an answer must look like. `schema` is a JSON schema, as plain data."""

    def __init__(
        self, schema: Schema, *, source: str = "the JSON schema", convert: Convert | None = None
    ) -> None:
        """Raises InputError for what is no schema, saying where in it."""
        self.schema = schema
        self._validator = _validator(schema, source=source)
        self._convert = convert

    @classmethod
    def of_type(cls, wanted: type) -> Shape:
        """Give the shape of a msgspec Struct, a dataclass, a pydantic model, or of any type that
        msgspec can convert to. Raises UsageError for another."""
        if hasattr(wanted, "model_json_schema") and hasattr(wanted, "model_validate"):
            return cls(wanted.model_json_schema(), source=_named(wanted), convert=_by_model(wanted))
        try:
            schema = msgspec.json.schema(wanted)
        except TypeError as error:
            raise UsageError(
                f"output_type: no schema can be made of {_named(wanted)}: {error}",
                hint="give a msgspec Struct, a dataclass or a pydantic model",
            ) from error
        return cls(schema, source=_named(wanted), convert=_by_msgspec(wanted))

    def read(self, text: str) -> tuple[str, Any]:
        """Give the JSON that a text holds (the whole of it, or its last fenced block) and its
        value. Raises NotShaped."""
        json, value = _decoded(text)
        problems = [_in_words(error) for error in _some(self._validator.iter_errors(value))]
        if not problems and self._convert is not None:
            problems = self._refusals(value)
        if problems:
            raise NotShaped("\n".join(f"- {problem}" for problem in problems))
        return json, value

    def converted(self, value: Any) -> Any:
        """Give the value as an instance of the type, where the shape was made of one."""
        return value if self._convert is None else self._convert(value)

    def _refusals(self, value: Any) -> list[str]:
        try:
            self.converted(value)
        except (ValueError, TypeError) as error:  # msgspec's and pydantic's errors are ValueErrors
            return [_clipped(str(error))]
        return []


def shape_of(job: Job, *, output_type: type | None = None) -> Shape | None:
    """Give the shape that an answer must have, or None where any text is one.

    Raises InputError for a schema that is none, UsageError where two things were asked for.
    """
    if output_type is None:
        return None if job.json_schema is None else Shape(job.json_schema)
    if job.json_schema is not None:
        raise UsageError("json_schema and output_type cannot both be given")
    return Shape.of_type(output_type)


def decode_schema(text: bytes, *, source: str) -> Schema:
    """Read the JSON of a schema. Raises InputError, naming `source`."""
    try:
        schema = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{source} is not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise InputError(f"{source} is not a JSON schema: it must be an object")
    return schema


def _validator(schema: Schema, *, source: str) -> Any:
    import jsonschema_rs

    def refuse(uri: str) -> Any:
        raise ValueError(f"only references within the schema are followed, not {uri}")

    try:
        return jsonschema_rs.validator_for(schema, retriever=refuse)
    except (jsonschema_rs.ValidationError, ValueError, RecursionError) as error:
        path = getattr(error, "instance_path", [])
        message = getattr(error, "message", str(error))
        where = f" at {_path(path)}" if path else ""
        raise InputError(
            f"{source} is not a valid JSON schema{where}: {_clipped(message)}"
        ) from error


def _decoded(text: str) -> tuple[str, Any]:
    problem = "the text is blank"
    for candidate in (text, *_FENCED.findall(text)[-1:]):
        try:
            return candidate.strip(), msgspec.json.decode(candidate)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            problem = str(error)
    raise NotShaped(f"- this is not JSON: {problem}")


def _some(errors: Iterable[Any]) -> list[Any]:
    return [error for error, _ in zip(errors, range(MAX_PROBLEMS), strict=False)]


def _in_words(error: Any) -> str:
    return _clipped(f"at {_path(error.instance_path)}: {error.message}")


def _path(parts: Iterable[str | int]) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return path.lstrip(".") or "the top"


def _clipped(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_PROBLEM_CHARS else text[: MAX_PROBLEM_CHARS - 2] + " …"


def _named(wanted: type) -> str:
    return getattr(wanted, "__qualname__", str(wanted))


def _by_model(wanted: Any) -> Convert:
    validate: Convert = wanted.model_validate
    return validate


def _by_msgspec(wanted: Any) -> Convert:
    return lambda value: msgspec.convert(value, wanted)
