"""The JSON schema of what forkrun writes: a line of `stream-json`, and the result.

`python -m forkrun.schema` prints it; docs/stream.schema.json is what it printed for this version.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from forkrun.events import (
    CheckEvent,
    DeniedEvent,
    HookEvent,
    LimitEvent,
    RecoveredEvent,
    RetryEvent,
    StartedEvent,
    TextEvent,
    ToolCallEvent,
    ToolResultEvent,
    TurnEvent,
)
from forkrun.result import Result

LINE = (
    StartedEvent
    | TextEvent
    | TurnEvent
    | ToolCallEvent
    | ToolResultEvent
    | DeniedEvent
    | HookEvent
    | RetryEvent
    | LimitEvent
    | RecoveredEvent
    | CheckEvent
    | Result
)


def stream_schema() -> dict[str, Any]:
    """Give the schema (draft 2020-12) of a line of `stream-json`; `$defs/Result` is the result's.

    Fields that it does not name are allowed: a later version may add some.
    """
    schema = msgspec.json.schema(LINE)
    _shorten(schema)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A line of forkrun's stream-json",
    }
    return head | schema


def _shorten(schema: Any) -> None:
    """Keep of each description what stands before its example."""
    if isinstance(schema, dict):
        if isinstance(schema.get("description"), str):
            text = schema["description"].partition(">>>")[0]
            schema["description"] = " ".join(text.split())
        for value in schema.values():
            _shorten(value)
    elif isinstance(schema, list):
        for value in schema:
            _shorten(value)


if __name__ == "__main__":
    text = msgspec.json.format(msgspec.json.encode(stream_schema()), indent=2)
    sys.stdout.write(text.decode() + "\n")
