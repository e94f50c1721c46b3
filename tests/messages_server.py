"""A strict server of the Messages API on the loopback, for tests: it refuses what the API refuses.

    with MessagesServer([{"text": "hello"}]) as server:
        …  # ANTHROPIC_BASE_URL = server.url
        assert server.requests[0].json["model"] == "claude-test"

or as a process, for a command line under test; it prints its address and ends when stdin does:

    python tests/messages_server.py --script replies.jsonl --record requests.jsonl

A reply is a line of the scripts that `--model script:` plays, as a dict (`text`, `tool_use`,
`content`, `stop_reason`, `usage`, `delay_s`, `error`), or a function that gets the recorded request
and gives such a dict. Beside those keys a line may hold

    "repeat": n | null          use the line n times, or for ever
    "headers": {…}              sent with the answer ("retry-after", say)
    "cut_after_events": n       close the connection after n events …
    "cut_after_bytes": n        … or in the middle of one
    "end_after_events": n       end the stream early and cleanly
    "error_after_events": [n, {"type": …, "message": …}]    an error event inside a stream
    "stall_after_events": n     say nothing more, until the client goes away
    "drip_s": seconds           a wait before each event
    "events": [{…}, …]          the events themselves, instead of what would be made of the line
    "raw": "…"                  the body of the answer itself, instead of a stream

An answer of 400 uses up no line. What is checked is in `problem_with`, and its limits can be moved.
The server shares no code with forkrun on purpose. Standard library only.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import dataclasses
import json
import re
import select
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Line = dict[str, Any]
Script = Iterable[Line] | Callable[["Recorded"], Line]
STATUS = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "overloaded_error": 529,
}


PARAMS = frozenset(
    (
        *("model", "messages", "max_tokens", "system", "tools", "tool_choice", "metadata"),
        *("stop_sequences", "stream", "temperature", "top_p", "top_k", "thinking", "speed"),
        *("service_tier", "cache_control", "container", "diagnostics", "inference_geo"),
        *("output_config", "context_management", "mcp_servers"),
    )
)


OUTPUT_KEYWORDS = frozenset(
    (
        *("type", "properties", "required", "additionalProperties", "items", "minItems", "enum"),
        *("const", "anyOf", "allOf", "$ref", "$defs", "definitions", "format", "title"),
        "description",
    )
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
    """The limits that the API has at present; they move, so a test can move them too."""

    max_bytes: int = 32 * 1024 * 1024
    max_marks: int = 4
    ends_with_user: bool = True
    params: frozenset[str] = PARAMS


@dataclasses.dataclass
class Recorded:
    """One request as it came: `headers` in their order and spelling, `body` byte for byte."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    at_s: float  # time.monotonic
    status: int = 0  # what was answered

    def header(self, name: str) -> str | None:
        """Give the value of a header, whatever the case of its name."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class MessagesServer:
    """The server; a context manager. `requests` holds every request, in order of arrival."""

    def __init__(
        self,
        script: Script,
        *,
        key: str | None = None,
        port: int = 0,
        rules: Rules | None = None,
        tls: ssl.SSLContext | None = None,
        on_request: Callable[[Recorded], None] | None = None,
    ) -> None:
        """`key` is the one credential that is let in; None lets everybody in."""
        self.requests: list[Recorded] = []
        self.rules = rules or Rules()
        self.key = key
        self._next_line = script if callable(script) else _played(script)
        self._on_request = on_request
        self._changed = threading.Condition()
        self._issued: dict[str, list[str]] = {}
        self.stopping = threading.Event()
        self._open: set[socket.socket] = set()
        self._http = _Http(("127.0.0.1", port), _Handler)
        self._http.owner = self
        self._scheme = "http" if tls is None else "https"
        if tls is not None:
            self._http.socket = tls.wrap_socket(
                self._http.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> MessagesServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._http.shutdown()
        self._thread.join()
        with self._changed:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self._http.server_close()  # joins the threads of the connections

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._http.server_address[1]}"

    @property
    def messages(self) -> list[Recorded]:
        """The requests for a reply, in order of arrival."""
        return [request for request in self.requests if request.path.endswith("/v1/messages")]

    @property
    def connections(self) -> int:
        """How many connections have been accepted so far."""
        return self._http.accepted

    def wait_for(self, requests: int, *, timeout_s: float = 10.0) -> list[Recorded]:
        """Wait until so many requests for a reply have come; give them."""
        with self._changed:
            came = self._changed.wait_for(lambda: len(self.messages) >= requests, timeout=timeout_s)
        assert came, f"{len(self.messages)} requests came, not {requests}"
        return self.messages

    # What follows is for the handler.

    def record(self, request: Recorded) -> None:
        with self._changed:
            self.requests.append(request)
            self._changed.notify_all()
        if self._on_request is not None:
            self._on_request(request)

    def track(self, connection: socket.socket, *, is_open: bool) -> None:
        with self._changed:
            (self._open.add if is_open else self._open.discard)(connection)

    def judge(self, request: Recorded) -> tuple[str, str] | None:
        """Give the error type and message for a request that the API would refuse."""
        if self.key is not None and self.key not in (
            request.header("x-api-key"),
            (request.header("authorization") or "").removeprefix("Bearer "),
        ):
            return "authentication_error", "this credential is not valid"
        if len(request.body) > self.rules.max_bytes:
            return "request_too_large", f"a request has at most {self.rules.max_bytes} bytes"
        for name, wanted in (("content-type", "application/json"), ("anthropic-version", "20")):
            if not (request.header(name) or "").startswith(wanted):
                return "invalid_request_error", f"header {name} is missing or not valid"
        try:
            body = request.json
        except ValueError as error:
            return "invalid_request_error", f"the body is not JSON: {error}"
        problem = problem_with(body, rules=self.rules) or self._changed_thinking(body)
        return None if problem is None else ("invalid_request_error", problem)

    def line_for(self, request: Recorded) -> Line:
        return self._next_line(request)

    def issue(self, content: list[Any]) -> None:
        """Remember what a reply looked like, as far as the API checks that it comes back so."""
        kept = _kept(content)
        with self._changed:
            for block in content:
                if block["type"] == "thinking":
                    self._issued[block["signature"]] = kept

    def _changed_thinking(self, body: Any) -> str | None:
        last = [m["content"] for m in body["messages"] if m["role"] == "assistant"][-1:]
        for content in last:
            for block in content if isinstance(content, list) else []:
                issued = self._issued.get(block.get("signature", ""))
                if block["type"] == "thinking" and issued not in (None, _kept(content)):
                    return "thinking blocks of the last assistant turn have been changed or moved"
        return None


def problem_with(body: Any, *, rules: Rules | None = None) -> str | None:
    """Say what is wrong with the body of a request, or None."""
    try:
        _check_body(body, rules=rules or Rules())
    except _Refused as refused:
        return str(refused)
    return None


class _Refused(Exception):
    pass


def _refuse_unless(holds: object, message: str) -> None:
    if not holds:
        raise _Refused(message)


def _check_body(body: Any, *, rules: Rules) -> None:
    _refuse_unless(isinstance(body, dict), "the body is not an object")
    extra = sorted(body.keys() - rules.params)
    _refuse_unless(not extra, f"{', '.join(extra)}: no such parameter")
    _refuse_unless(isinstance(body.get("model"), str) and body["model"], "model: needs a name")
    _refuse_unless(_is_count(body.get("max_tokens")), "max_tokens: needs a number from 1")
    messages = body.get("messages")
    _refuse_unless(isinstance(messages, list) and messages, "messages: at least one is needed")
    _check_tools(body)
    _check_system(body.get("system"))
    _check_output_config(body.get("output_config"))
    for position, message in enumerate(messages):
        is_last = position == len(messages) - 1
        _check_message(message, where=f"messages.{position}", is_last=is_last)
    _refuse_unless(messages[0]["role"] == "user", "messages.0: the first must be a user message")
    _refuse_unless(
        not rules.ends_with_user or messages[-1]["role"] == "user",
        "messages: this model takes no prefill, the last must be a user message",
    )
    _check_pairs(messages)
    _check_marks(body, rules=rules)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _check_tools(body: dict[str, Any]) -> None:
    names = set()
    for position, tool in enumerate(body.get("tools", [])):
        name = tool.get("name")
        where = f"tools.{position}.name"
        _refuse_unless(
            isinstance(name, str) and re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", name),
            f"{where}: {name!r} does not match [a-zA-Z0-9_-]{{1,128}}",
        )
        _refuse_unless(name not in names, f"{where}: {name!r} is there twice")
        names.add(name)
        if tool.get("type", "custom") == "custom":
            schema = tool.get("input_schema")
            _refuse_unless(
                isinstance(schema, dict) and schema.get("type") == "object",
                f"tools.{position}.input_schema: needs the type object",
            )
    choice = body.get("tool_choice")
    if choice is None:
        return
    _refuse_unless(names, "tool_choice: there are no tools")
    forced = choice.get("type") in ("any", "tool")
    thinks = body.get("thinking", {}).get("type", "disabled") != "disabled"
    _refuse_unless(not (forced and thinks), "tool_choice: a forced tool excludes thinking")
    _refuse_unless(
        choice.get("type") != "tool" or choice.get("name") in names, "tool_choice: no such tool"
    )


def _check_output_config(config: Any) -> None:
    """What the API holds a reply to is a part of JSON schema only."""
    form = (config or {}).get("format")
    if form is None:
        return
    _refuse_unless(form.get("type") == "json_schema", "output_config.format.type: not json_schema")
    _check_output_schema(form.get("schema"), where="output_config.format.schema")


def _check_output_schema(schema: Any, *, where: str) -> None:
    _refuse_unless(isinstance(schema, dict) and schema, f"{where}: is no schema")
    extra = sorted(schema.keys() - OUTPUT_KEYWORDS)
    _refuse_unless(not extra, f"{where}: For this type, property {extra} is not supported")
    kinds = {"type", "$ref", "anyOf", "allOf", "enum", "const"} & schema.keys()
    _refuse_unless(kinds, f"{where}: has no type")
    if schema.get("type") == "object":
        closed = schema.get("additionalProperties") is False
        _refuse_unless(closed, f"{where}: 'additionalProperties' must be explicitly set to false")
    for key in ("properties", "$defs", "definitions"):
        for name, part in schema.get(key, {}).items():
            _check_output_schema(part, where=f"{where}.{key}.{name}")
    if "items" in schema:
        _check_output_schema(schema["items"], where=f"{where}.items")
    for key in ("anyOf", "allOf"):
        for position, part in enumerate(schema.get(key, [])):
            _check_output_schema(part, where=f"{where}.{key}.{position}")


def _check_system(system: Any) -> None:
    if isinstance(system, str) or system is None:
        return
    for position, block in enumerate(system):
        _check_text(block, where=f"system.{position}")


def _check_message(message: Any, *, where: str, is_last: bool) -> None:
    _refuse_unless(isinstance(message, dict), f"{where}: is not an object")
    extra = sorted(message.keys() - {"role", "content"})
    _refuse_unless(not extra, f"{where}: no such field: {', '.join(extra)}")
    role, content = message.get("role"), message.get("content")
    _refuse_unless(role in ("user", "assistant"), f"{where}.role: {role!r}")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}] if content else []
    _refuse_unless(isinstance(content, list), f"{where}.content: neither text nor blocks")
    _refuse_unless(
        content or (is_last and role == "assistant"), f"{where}.content: must not be empty"
    )
    seen_other = False
    for position, block in enumerate(content):
        inside = f"{where}.content.{position}"
        _refuse_unless(isinstance(block, dict) and "type" in block, f"{inside}: is not a block")
        _check_block(block, where=inside, role=role)
        is_result = block["type"] == "tool_result"
        _refuse_unless(
            not (is_result and seen_other), f"{inside}: results come first in a user message"
        )
        seen_other = seen_other or not is_result


def _check_block(block: dict[str, Any], *, where: str, role: str) -> None:
    kind = block["type"]
    own_role = {"tool_use": "assistant", "thinking": "assistant", "tool_result": "user"}.get(kind)
    _refuse_unless(own_role in (None, role), f"{where}: no {kind} in a message of the {role}")
    if kind == "text":
        _check_text(block, where=where)
    elif kind == "image":
        _check_image(block.get("source"), where=where)
    elif kind == "tool_use":
        _check_call(block, where=where)
    elif kind == "tool_result":
        content = block.get("content", [])
        for position, inner in enumerate(content if isinstance(content, list) else []):
            _check_block(inner, where=f"{where}.content.{position}", role=role)
    elif kind == "thinking":
        _refuse_unless(block.get("signature"), f"{where}: a thinking block needs its signature")
    if kind in ("thinking", "redacted_thinking"):
        _refuse_unless("cache_control" not in block, f"{where}: no cache mark on thinking")


def _check_text(block: dict[str, Any], *, where: str) -> None:
    text = block.get("text")
    _refuse_unless(isinstance(text, str) and text.strip(), f"{where}: text must not be blank")


def _check_call(block: dict[str, Any], *, where: str) -> None:
    _refuse_unless(isinstance(block.get("input"), dict), f"{where}.input: is not an object")
    for name, pattern in (("id", r"[a-zA-Z0-9_-]+"), ("name", r"[a-zA-Z0-9_-]{1,128}")):
        value = block.get(name)
        _refuse_unless(
            isinstance(value, str) and re.fullmatch(pattern, value), f"{where}.{name}: {value!r}"
        )


def _check_image(source: Any, *, where: str) -> None:
    if not isinstance(source, dict) or source.get("type") != "base64":
        return
    try:
        head = base64.b64decode(source["data"], validate=True)[:12]
    except (ValueError, KeyError):
        raise _Refused(f"{where}: the image is not base64") from None
    is_what_it_says = {
        "image/png": head.startswith(b"\x89PNG\r\n\x1a\n"),
        "image/jpeg": head.startswith(b"\xff\xd8\xff"),
        "image/gif": head.startswith(b"GIF8"),
        "image/webp": head[:4] == b"RIFF" and head[8:] == b"WEBP",
    }.get(source.get("media_type"), False)
    _refuse_unless(is_what_it_says, f"{where}: the image is not {source.get('media_type')}")


def _check_pairs(messages: list[Any]) -> None:
    """Each call has its result in the very next message, and each result its call before."""
    used: set[str] = set()
    open_calls: list[str] = []
    for position, message in enumerate([*messages, {"role": "user", "content": []}]):
        blocks = message["content"] if isinstance(message["content"], list) else []
        answered = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        missing = [call for call in open_calls if call not in answered]
        _refuse_unless(
            not missing,
            f"messages.{position - 1}: tool_use without tool_result in the next message:"
            f" {', '.join(missing)}",
        )
        for call in answered:
            _refuse_unless(
                call in open_calls,
                f"messages.{position}: tool_result for {call}, which the message before"
                " does not call",
            )
        _refuse_unless(
            len(answered) == len(set(answered)), f"messages.{position}: two results for one call"
        )
        open_calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        for call in open_calls:
            _refuse_unless(call not in used, f"messages.{position}: the id {call} is used twice")
            used.add(call)


def _check_marks(body: dict[str, Any], *, rules: Rules) -> None:
    system = body.get("system")
    places: list[Any] = [
        body,
        *body.get("tools", []),
        *(system if isinstance(system, list) else []),
    ]
    for message in body["messages"]:
        for block in message["content"] if isinstance(message["content"], list) else []:
            inner = block.get("content")
            places += [block, *(inner if isinstance(inner, list) else [])]
    marks = sum(isinstance(place, dict) and bool(place.get("cache_control")) for place in places)
    _refuse_unless(
        marks <= rules.max_marks, f"at most {rules.max_marks} cache marks are taken, not {marks}"
    )


def _kept(content: list[Any]) -> list[str]:
    """Give the blocks that must come back in this order and unchanged."""
    types = ("thinking", "redacted_thinking", "tool_use")
    return [
        json.dumps(
            {name: value for name, value in block.items() if name != "cache_control"},
            sort_keys=True,
        )
        for block in content
        if block["type"] in types
    ]


def _played(script: Iterable[Line]) -> Callable[[Recorded], Line]:
    def lines() -> Iterator[Line]:
        for line in script:
            times = line.get("repeat", 1)
            while times is None or times > 0:
                yield line
                times = None if times is None else times - 1

    rest, lock = lines(), threading.Lock()
    gone = {
        "error": {"type": "invalid_request_error", "message": "the server's script has run out"}
    }

    def line_for(_: Recorded) -> Line:
        with lock:
            return next(rest, gone)

    return line_for


# From a line of a script to the events of an answer.


def content_of(line: Line, *, number: int) -> list[Any]:
    """Give the blocks that a line stands for."""
    if "content" in line:
        return list(line["content"])
    blocks: list[Any] = [{"type": "text", "text": line["text"]}] if "text" in line else []
    for position, call in enumerate(line.get("tool_use", ())):
        name = {"type": "tool_use", "id": call.get("id", f"toolu_s{number}_{position}")}
        blocks.append(name | {"name": call["name"], "input": call.get("input", {})})
    return blocks


def message_of(line: Line, *, number: int, model: str, input_tokens: int) -> dict[str, Any]:
    """Give the whole message that a line stands for."""
    content = content_of(line, number=number)
    calls = any(block["type"] == "tool_use" for block in content)
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": line.get("model", model),
        "content": content,
        "stop_reason": line.get("stop_reason", "tool_use" if calls else "end_turn"),
        "stop_sequence": None,
        **({"stop_details": line["stop_details"]} if "stop_details" in line else {}),
        "usage": line.get("usage")
        or {"input_tokens": input_tokens, "output_tokens": max(1, len(json.dumps(content)) // 4)},
    }


def events_of(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Give the events by which a message is streamed."""
    usage = {**message["usage"], "output_tokens": 1}
    start = {**message, "content": [], "stop_reason": None, "usage": usage}
    start.pop("stop_details", None)
    yield {"type": "message_start", "message": start}
    yield {"type": "ping"}
    for index, block in enumerate(message["content"]):
        begin, deltas = _opened(block)
        yield {"type": "content_block_start", "index": index, "content_block": begin}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ending = {"stop_reason": message["stop_reason"], "stop_sequence": message["stop_sequence"]}
    if "stop_details" in message:
        ending["stop_details"] = message["stop_details"]
    yield {"type": "message_delta", "delta": ending, "usage": message["usage"]}
    yield {"type": "message_stop"}


def _opened(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Give a block as it begins, and the deltas by which it grows to what it is."""
    kind = block["type"]
    if kind == "text":
        citations = block.get("citations") or []
        deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(block["text"])]
        deltas += [{"type": "citations_delta", "citation": citation} for citation in citations]
        return block | {"text": ""} | ({"citations": []} if citations else {}), deltas
    if kind == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": p} for p in _pieces(block["thinking"])]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
        return block | {"thinking": "", "signature": ""}, deltas
    if kind in ("tool_use", "server_tool_use", "mcp_tool_use"):
        text = json.dumps(block["input"], ensure_ascii=False) if block["input"] != {} else ""
        deltas = [{"type": "input_json_delta", "partial_json": p} for p in ("", *_pieces(text))]
        return block | {"input": {}}, deltas
    return block, []


def _pieces(text: str) -> list[str]:
    return [text[start : start + 24] for start in range(0, len(text), 24)]


class _Http(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True
    request_queue_size = 1024
    owner: MessagesServer
    accepted = 0

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self.accepted += 1
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.owner.track(connection, is_open=True)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        self.owner.track(request, is_open=False)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # the client went away
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Http

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._recorded()
        if self.path.partition("?")[0].endswith("/v1/models"):
            model = {"type": "model", "id": "claude-test", "display_name": "Test"}
            self._send_json(200, {"data": [model], "has_more": False})
        else:
            self._send_error_body({"type": "not_found_error", "message": "no such address"})

    def do_POST(self) -> None:
        owner = self.server.owner
        request = self._recorded()
        problem = owner.judge(request)
        if not self.path.partition("?")[0].endswith("/v1/messages"):
            problem = "not_found_error", "no such address"
        if problem is not None:
            self._send_error_body({"type": problem[0], "message": problem[1]}, request=request)
            return
        line = owner.line_for(request)
        if line.get("delay_s"):
            owner.stopping.wait(line["delay_s"])
        if "error" in line:
            self._send_error_body(line["error"], request=request, headers=line.get("headers", {}))
        else:
            self._answer(request, line)

    def _recorded(self) -> Recorded:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        request = Recorded(
            self.command, self.path, list(self.headers.items()), body, time.monotonic()
        )
        self.server.owner.record(request)
        return request

    def _answer(self, request: Recorded, line: Line) -> None:
        owner = self.server.owner
        request.status = 200
        if "raw" in line:
            body = line["raw"].encode()
            kind = {"content-type": "text/plain", "content-length": str(len(body))}
            self._begin(200, kind | line.get("headers", {}))
            self.wfile.write(body)
            return
        asked = request.json
        message = message_of(
            line,
            number=len(owner.requests),
            model=asked["model"],
            input_tokens=len(request.body) // 4,
        )
        owner.issue(message["content"])
        if not asked.get("stream"):
            self._send_json(200, message)
            return
        kind = {"content-type": "text/event-stream; charset=utf-8", "transfer-encoding": "chunked"}
        self._begin(
            200, kind | {"request-id": f"req_{len(owner.requests)}"} | line.get("headers", {})
        )
        self._stream(line, events=line.get("events") or list(events_of(message)))

    def _stream(self, line: Line, *, events: list[dict[str, Any]]) -> None:
        owner = self.server.owner
        left = line.get("cut_after_bytes")
        error_at, error = line.get("error_after_events", (None, None))
        for number, event in enumerate(events):
            if number == line.get("cut_after_events") or left == 0:
                return self._cut()
            if number == line.get("end_after_events"):
                break
            if number == line.get("stall_after_events"):
                return self._stall()
            if line.get("drip_s") and owner.stopping.wait(line["drip_s"]):
                return self._cut()
            if number == error_at:
                self._chunk(_sse({"type": "error", "error": error}))
                break
            data = _sse(event)
            if left is not None:
                data, left = data[:left], max(0, left - len(data))
            self._chunk(data)
        self.wfile.write(b"0\r\n\r\n")
        return None

    def _chunk(self, data: bytes) -> None:
        if data:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()

    def _cut(self) -> None:
        self.close_connection = True

    def _stall(self) -> None:
        """Wait until the client goes away."""
        self.close_connection = True
        while not self.server.owner.stopping.is_set():
            if select.select([self.connection], [], [], 0.02)[0]:
                return

    def _send_error_body(
        self,
        error: dict[str, Any],
        *,
        request: Recorded | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        status = error.get("status") or STATUS.get(error.get("type", ""), 500)
        kind = error.get("type") or next((k for k, v in STATUS.items() if v == status), "api_error")
        if request is not None:
            request.status = status
        more = dict(headers or {})
        if error.get("retry_after_s") is not None:
            more.setdefault("retry-after", str(error["retry_after_s"]))
        body = {"type": "error", "error": {"type": kind, "message": error.get("message", kind)}}
        self._send_json(status, body, headers=more)

    def _send_json(self, status: int, value: Any, *, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(value).encode()
        own = {"content-type": "application/json", "content-length": str(len(body))}
        own["request-id"] = f"req_{len(self.server.owner.requests)}"
        self._begin(status, own | (headers or {}))
        self.wfile.write(body)

    def _begin(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


def _sse(event: dict[str, Any]) -> bytes:
    text = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    return f"event: {event['type']}\ndata: {text}\n\n".encode("utf-8", "surrogatepass")


def main() -> None:
    """Serve until stdin ends."""
    parser = argparse.ArgumentParser(description="a strict loopback server of the Messages API")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--script", required=True, help="JSONL, one line a reply")
    parser.add_argument("--key", help="the one credential that is let in (default: any or none)")
    parser.add_argument("--record", help="append each request to this file, as JSON")
    arguments = parser.parse_args()
    with open(arguments.script, encoding="utf-8") as file:
        script = [json.loads(line) for line in file if line.strip()]

    def keep(request: Recorded) -> None:
        if arguments.record:
            fields = dataclasses.asdict(request) | {"body": request.body.decode("utf-8", "replace")}
            with open(arguments.record, "a", encoding="utf-8") as file:
                file.write(json.dumps(fields) + "\n")

    with MessagesServer(script, key=arguments.key, port=arguments.port, on_request=keep) as server:
        print(server.url, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            sys.stdin.read()


if __name__ == "__main__":
    main()
