"""A model that plays replies from a file, for tests, CI and demonstrations with no key.

The file is JSONL; each line is one reply or one failed attempt, played in order:

    {"text": "I will look."}
    {"tool_use": [{"name": "read_file", "input": {"file_path": "README.md"}}], "text": "optional"}
    {"content": [… raw blocks …], "stop_reason": "max_tokens", "usage": {"input_tokens": 9}}
    {"error": {"status": 529, "type": "overloaded_error", "retry_after_s": 0.1}}
    {"delay_s": 0.5, "text": "late"}
    {"expect": ["words of the last user message"], "text": "seen"}

Which line answers is the request's own number, so one script serves any number of runs at once. A
transcript is a valid script: lines with a `type` other than "reply" are passed over.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from forkrun.errors import InputError, ModelError, UsageError

from .base import Heard, Reply, Request, Usage
from .blocks import Typed, with_object_input
from .faults import error_of

MAX_SCRIPT_BYTES = 256 * 1024 * 1024
PREFIX = "script:"
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=86_400)]


class ScriptedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tool call; without an `id` it gets one that depends on its place alone."""

    name: str
    input: msgspec.Raw = msgspec.Raw(b"{}")
    id: str | None = None


class ScriptedError(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One failed attempt: by status, by error type, or a lost connection where neither is given."""

    status: Annotated[int, msgspec.Meta(ge=400, le=599)] | None = None
    type: str | None = None
    message: str | None = None
    retry_after_s: _Seconds | None = None


class ScriptLine(msgspec.Struct, frozen=True):
    """One line; what it has beside these fields is allowed only in a transcript."""

    type: str | None = None
    text: str | None = None
    tool_use: tuple[ScriptedCall, ...] = ()
    content: tuple[msgspec.Raw, ...] | None = None
    error: ScriptedError | None = None
    stop_reason: str | None = None
    stop_details: msgspec.Raw | None = None
    usage: Usage | None = None
    model: str | None = None
    request_id: str | None = None
    delay_s: _Seconds = 0.0
    expect: tuple[str, ...] = ()


def open_script(name: str) -> ScriptModel:
    """Read the script that `script:FILE` names. Raises `InputError` with file and line."""
    path = name.removeprefix(PREFIX)
    if not path:
        raise UsageError("script: needs a file", hint="for example --model script:replies.jsonl")
    return ScriptModel(name, lines=read_script(path))


def read_script(path: str) -> tuple[tuple[int, ScriptLine], ...]:
    """Give the lines of a script that are played, each with its number in the file (from 1)."""
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_SCRIPT_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"cannot read the script {path}: {reason}") from None
    if len(content) > MAX_SCRIPT_BYTES:
        raise InputError(f"the script {path} is larger than {MAX_SCRIPT_BYTES} bytes")
    lines = tuple(_played_lines(content, path=path))
    if not lines:
        raise InputError(
            f"the script {path} has no reply", hint='one line is enough: {"text": "hello"}'
        )
    return lines


class ScriptModel:
    """Answers request number n with line n of a script, whatever was asked."""

    def __init__(self, name: str, *, lines: tuple[tuple[int, ScriptLine], ...]) -> None:
        self._name = name
        self._lines = lines

    @property
    def name(self) -> str:
        return self._name

    async def reply(self, request: Request, heard: Heard) -> Reply:
        if request.number >= len(self._lines):
            raise self._fault(
                f"the script has run out after line {self._lines[-1][0]}:"
                f" it has {len(self._lines)} replies, and the run asks for one more"
            )
        number, line = self._lines[request.number]
        if line.delay_s:
            await asyncio.sleep(line.delay_s)
        self._check(line, number=number, request=request)
        if line.error is not None:
            raise self._scripted(line.error, number=number)
        reply = reply_of(line, number=number, model=self._name)
        for piece in _spoken(reply):
            heard(piece)
        return reply

    async def close(self) -> None:
        """Hold nothing, give nothing back."""

    def _check(self, line: ScriptLine, *, number: int, request: Request) -> None:
        if not line.expect:
            return
        said = "\n".join(_strings(msgspec.json.decode(request.messages[-1])))
        for words in line.expect:
            if words not in said:
                raise self._fault(f"line {number} expects {words!r} in the last user message")

    def _scripted(self, error: ScriptedError, *, number: int) -> ModelError:
        return error_of(
            message=error.message or f"line {number} of the script says so",
            status=error.status,
            kind=error.type,
            retry_after_s=error.retry_after_s,
        )

    def _fault(self, message: str) -> ModelError:
        return ModelError(f"{self._name}: {message}", kind="script_error")


def reply_of(line: ScriptLine, *, number: int, model: str) -> Reply:
    """Give the reply that a line of a script stands for. `number` makes the ids of its calls."""
    if line.content is not None:
        content = tuple(with_object_input(bytes(block)) for block in line.content)
    else:
        content = tuple(_blocks(line, number=number))
    return Reply(
        content=content,
        stop_reason=line.stop_reason or _natural_stop(content),
        usage=line.usage or Usage(),
        model=line.model or model,
        request_id=line.request_id,
        stop_details=None if line.stop_details is None else bytes(line.stop_details),
    )


def _played_lines(content: bytes, *, path: str) -> Iterator[tuple[int, ScriptLine]]:
    for number, text in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not text.strip():
            continue
        try:
            line = _line(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(f"{path}, line {number}: {error}") from None
        if line is not None:
            yield number, line


def _line(text: bytes) -> ScriptLine | None:
    text.decode()
    fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    kind = msgspec.json.decode(fields.get("type", b"null"), type=str | None)
    if kind not in (None, "reply"):
        return None
    unknown = [] if kind else sorted(fields.keys() - set(ScriptLine.__struct_fields__))
    if unknown:
        raise msgspec.ValidationError(f"no such field: {', '.join(unknown)}")
    line = msgspec.json.decode(text, type=ScriptLine)
    for block in line.content or ():
        with_object_input(bytes(block))
    if line.content is not None and (line.tool_use or line.text is not None):
        raise msgspec.ValidationError("`content` goes without `text` and `tool_use`")
    if line.content is None and line.text is None and not line.tool_use and line.error is None:
        raise msgspec.ValidationError("a line needs `text`, `tool_use`, `content` or `error`")
    return line


def _blocks(line: ScriptLine, *, number: int) -> Iterator[bytes]:
    if line.text is not None:
        yield msgspec.json.encode({"type": "text", "text": line.text})
    for position, call in enumerate(line.tool_use):
        yield with_object_input(
            msgspec.json.encode(
                {
                    "type": "tool_use",
                    "id": call.id or f"toolu_{number}_{position}",
                    "name": call.name,
                    "input": call.input,
                }
            )
        )


def _natural_stop(content: tuple[bytes, ...]) -> str:
    types = {msgspec.json.decode(block, type=Typed).type for block in content}
    return "tool_use" if "tool_use" in types else "end_turn"


class _Text(msgspec.Struct):
    type: str
    text: Any = None


def _spoken(reply: Reply) -> Iterator[str]:
    """Cut the text of a reply into pieces of a few words, as a model would stream it."""
    for block in reply.content:
        read = msgspec.json.decode(block, type=_Text)
        if read.type == "text" and isinstance(read.text, str):
            yield from re.findall(r"\s*(?:\S+\s*){1,8}|\s+", read.text)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)
