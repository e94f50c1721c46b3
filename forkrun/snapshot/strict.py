"""The door for JSON: UTF-8, each key once, no NaN, no half surrogate pairs; or a clear refusal."""

from __future__ import annotations

import json
import re
from typing import Any

from forkrun.errors import InputError


def refuse_what_is_not_json(text: str, source: str) -> None:
    """Raise `InputError` where text is not strict JSON, with the place."""
    try:
        _STRICT.decode(text)
    except RecursionError:
        raise InputError(f"{source}: nested too deeply") from None
    except ValueError as error:
        raise InputError(f"{source}: {_place(text, error)}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"a key stands twice in one object: {twice}")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"not JSON: {name}")


_STRICT = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_constant)


def _place(text: str, error: ValueError) -> str:
    """Say what is wrong, and in which message where an error has no position of its own."""
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON at line {error.lineno}, column {error.colno}: {error.msg}"
    lenient = json.JSONDecoder(object_pairs_hook=_marked, parse_constant=lambda _: _FAULT)
    try:
        whole = lenient.decode(text)
        messages = whole.get("messages") if isinstance(whole, dict) else whole
        for position, message in enumerate(messages if isinstance(messages, list) else ()):
            if _is_faulty(message):
                return f"message {position}: {error}"
    except (ValueError, RecursionError):
        pass  # wrong in more than one way: the first error is enough
    return str(error)


_FAULT = object()


def _marked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else found | {"": _FAULT}


def _is_faulty(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    return value is _FAULT or (isinstance(value, list) and any(map(_is_faulty, value)))


class Surrogates:
    """Replaces halves of surrogate pairs, which UTF-8 cannot hold, and counts them."""

    _ESCAPE = re.compile(
        r"\\(?:u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})|u(d[89a-f][0-9a-f]{2})|.)",
        re.IGNORECASE | re.DOTALL,
    )
    _CHARACTER = re.compile("[\ud800-\udfff]")

    def __init__(self) -> None:
        self.count = 0

    def mended(self, text: str) -> str:
        """Join pairs that stand as two characters; replace what has no partner."""
        if not self._CHARACTER.search(text):
            return text
        before = text.count("\ufffd")
        whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        self.count += whole.count("\ufffd") - before
        return whole

    def mended_escapes(self, text: str) -> str:
        r"""Replace `\ud83d` without its partner in JSON text; real pairs stay as they stand."""
        if "\\ud" not in text and "\\uD" not in text:
            return text
        return self._ESCAPE.sub(self._mend, text)

    def mended_bytes(self, raw: bytes) -> bytes:
        """Do the same for the bytes of JSON."""
        if b"\\ud" not in raw and b"\\uD" not in raw:
            return raw
        return self.mended_escapes(str(raw, "utf-8", "replace")).encode()

    def _mend(self, match: re.Match[str]) -> str:
        if match[3] is None:
            return match[0]
        self.count += 1
        return "\\ufffd"

    def notes(self) -> tuple[str, ...]:
        if not self.count:
            return ()
        return (f"halves of surrogate pairs that became U+FFFD: {self.count}",)
