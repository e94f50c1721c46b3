"""From what a server answers to the error that says whether trying again can help.

One table for every model: statuses and error types of the Messages API
(https://docs.anthropic.com/en/api/errors), whether they came as a status line, as an event inside
a stream that had begun well, or as a line of a script.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping

import msgspec

from forkrun.errors import ContextExceeded, ModelError, ModelUnavailable

MAX_MESSAGE_CHARS = 500

_STATUS_OF = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
_KIND_OF = {status: kind for kind, status in _STATUS_OF.items()}
_RETRYABLE = frozenset({408, 409, 425, 429})

# The API and the servers that speak like it have no code of its own for a full context window.
_TOO_LONG = (
    r"(?i)prompt is too long|context window|context.?length|context.?size|maximum context"
    r"|input length and .?max_tokens.? exceed"
)


def error_of(
    *,
    message: str,
    status: int | None = None,
    kind: str | None = None,
    retry_after_s: float | None = None,
    request_id: str | None = None,
) -> ModelError:
    """Make the error for a status, an error type or both; without either, the connection failed."""
    named = kind or (_KIND_OF.get(status) if status is not None else "connection_error")
    judged = status if status is not None and status >= 400 else _STATUS_OF.get(named or "")
    text = _first_words(message) or "no message"
    if judged is None or judged >= 500 or judged in _RETRYABLE:
        return ModelUnavailable(
            f"model unavailable ({_label(judged, named)}): {text}",
            status=judged,
            kind=named or "api_error",
            request_id=request_id,
            retry_after_s=retry_after_s,
        )
    full = judged in {400, 413} and re.search(_TOO_LONG, message) is not None
    return (ContextExceeded if full else ModelError)(
        f"the model refused the request ({_label(judged, named)}): {text}",
        hint=_HINTS.get(judged),
        status=judged,
        kind=named or "api_error",
        request_id=request_id,
    )


def error_of_answer(*, status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
    """Make the error for an HTTP answer that is not a stream; header names are in lower case."""
    fault = fault_in(body)
    return error_of(
        message=fault.message or body.decode("utf-8", "replace") or f"HTTP status {status}",
        status=status if status >= 400 else 500,
        kind=fault.type,
        retry_after_s=retry_after_s(headers),
        request_id=headers.get("request-id"),
    )


class Fault(msgspec.Struct, frozen=True):
    """The `error` object of the API; both fields may be missing on other servers."""

    type: str | None = None
    message: str | None = None


class _Envelope(msgspec.Struct):
    error: Fault | str | None = None


def fault_in(body: bytes) -> Fault:
    """Read the error object of an answer or of an `error` event, as far as there is one."""
    try:
        error = msgspec.json.decode(body, type=_Envelope).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Fault()
    return Fault(message=error) if isinstance(error, str) else error or Fault()


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Read how long the server asks to wait, in seconds: `retry-after-ms`, or `retry-after` as
    seconds or as an HTTP date (RFC 9110, section 10.2.3). Junk is None."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        wait_s = _number(headers.get(name, ""))
        if wait_s is not None:
            return wait_s * unit_s
    return _seconds_until(headers.get("retry-after", ""))


def _number(text: str) -> float | None:
    # Not float(): "nan", "inf" and "1_0" are junk here.
    return float(text) if re.fullmatch(r"\s*\d{1,12}(\.\d{0,9})?\s*", text, re.ASCII) else None


def _seconds_until(date: str) -> float | None:
    if not date:
        return None
    from email.utils import mktime_tz, parsedate_tz

    try:
        fields = parsedate_tz(date)
        return None if fields is None else max(0.0, mktime_tz(fields) - time.time())
    except (ValueError, OverflowError, IndexError):
        return None


def without(secrets: Iterable[str], *, text: str) -> str:
    """Give a text in which no secret stands, for servers that repeat what they were sent."""
    for secret in secrets:
        text = text.replace(secret, "[credential]")
    return text


_HINTS = {
    401: "check ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN",
    404: "check the model's name; ANTHROPIC_BASE_URL goes without /v1",
    413: "the request is larger than the server takes; leave out images or shorten the snapshot",
}


def _label(status: int | None, kind: str | None) -> str:
    return " ".join(str(part) for part in (status, kind) if part is not None)


def _first_words(message: str) -> str:
    text = " ".join(message.split())
    return text if len(text) <= MAX_MESSAGE_CHARS else text[:MAX_MESSAGE_CHARS] + " …"
