"""A loopback server that answers like three model APIs and notes when each request came.

    POST …/v1/messages, …/responses, …/chat/completions

Each is answered by one short text, streamed where the request asks for a stream. The instant of a
request is taken when its head has been read, by the clock that all processes share.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TEXT = "done"


class ModelServer:
    """The server; a context manager. With `hold`, answers wait until `release` is called."""

    def __init__(self, *, hold: bool = False) -> None:
        self.arrivals: queue.Queue[float] = queue.Queue()
        self._released = threading.Event()
        if not hold:
            self._released.set()
        handler = type("_Handler", (_Handler,), {"model_server": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> ModelServer:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._released.set()
        self._server.shutdown()
        self._server.server_close()

    def first(self, *, timeout_s: float = 60.0) -> float:
        """Wait for the next request; give its instant and forget those that came before now."""
        return self.arrivals.get(timeout=timeout_s)

    def forget(self) -> None:
        """Forget every request that has come so far."""
        while not self.arrivals.empty():
            self.arrivals.get_nowait()

    def release(self) -> None:
        """Answer whatever waits."""
        self._released.set()

    def wait(self) -> None:
        self._released.wait(120)


class _Handler(BaseHTTPRequestHandler):
    model_server: ModelServer
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        came = time.monotonic()
        body = self._body()
        path = self.path.partition("?")[0]
        try:
            asked = json.loads(body or b"{}")
        except ValueError:
            asked = {}
        answer = _ANSWERS.get(path.rstrip("/").rpartition("/")[2])
        if answer is None:
            self._send(b'{"input_tokens":1}', "application/json")
            return
        self.model_server.arrivals.put(came)
        self.model_server.wait()
        content, kind = answer(asked)
        self._send(content, kind)

    def do_GET(self) -> None:
        self._send(b'{"data":[],"models":[]}', "application/json")

    def do_HEAD(self) -> None:
        self._send(b"", "application/json")

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            pieces = []
            while size := int(self.rfile.readline().split(b";")[0] or b"0", 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(pieces)
        return self.rfile.read(int(self.headers.get("content-length") or 0))

    def _send(self, content: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _events(events: list[tuple[str | None, Any]]) -> bytes:
    lines = []
    for name, data in events:
        text = data if isinstance(data, str) else json.dumps(data)
        lines.append((f"event: {name}\n" if name else "") + f"data: {text}\n\n")
    return "".join(lines).encode()


def _messages(asked: dict[str, Any]) -> tuple[bytes, str]:
    usage = {"input_tokens": 10, "output_tokens": 1}
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": asked.get("model", "m"),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    if not asked.get("stream"):
        block = {"type": "text", "text": TEXT}
        whole = {**message, "content": [block], "stop_reason": "end_turn"}
        return json.dumps(whole).encode(), "application/json"
    delta = {"stop_reason": "end_turn", "stop_sequence": None}
    events = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": TEXT}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]
    return _events([(event["type"], event) for event in events]), "text/event-stream"


def _responses(asked: dict[str, Any]) -> tuple[bytes, str]:
    part = {"type": "output_text", "text": TEXT, "annotations": []}
    item = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }
    usage = {
        "input_tokens": 10,
        "output_tokens": 1,
        "total_tokens": 11,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    response = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": asked.get("model", "m"),
        "output": [item],
        "usage": usage,
        "error": None,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "metadata": {},
        "incomplete_details": None,
        "instructions": None,
        "temperature": 1.0,
        "top_p": 1.0,
    }
    if not asked.get("stream"):
        return json.dumps(response).encode(), "application/json"
    begun = {**response, "status": "in_progress", "output": [], "usage": None}
    at = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**item, "status": "in_progress", "content": []},
        },
        {"type": "response.content_part.added", **at, "part": {**part, "text": ""}},
        {"type": "response.output_text.delta", **at, "delta": TEXT},
        {"type": "response.output_text.done", **at, "text": TEXT},
        {"type": "response.content_part.done", **at, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": response},
    ]
    numbered = [(e["type"], {**e, "sequence_number": n}) for n, e in enumerate(events)]
    return _events(numbered), "text/event-stream"


def _chat(asked: dict[str, Any]) -> tuple[bytes, str]:
    usage = {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}
    base = {"id": "chat_1", "created": 1, "model": asked.get("model", "m")}
    if not asked.get("stream"):
        message = {"role": "assistant", "content": TEXT}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        whole = {**base, "object": "chat.completion", "choices": [choice], "usage": usage}
        return json.dumps(whole).encode(), "application/json"
    delta = {"role": "assistant", "content": TEXT}
    chunks: list[tuple[str | None, Any]] = []
    for finish, said in ((None, delta), ("stop", {})):
        choice = {"index": 0, "delta": said, "finish_reason": finish}
        chunks.append((None, {**base, "object": "chat.completion.chunk", "choices": [choice]}))
    chunks.append(
        (None, {**base, "object": "chat.completion.chunk", "choices": [], "usage": usage})
    )
    return _events([*chunks, (None, "[DONE]")]), "text/event-stream"


_ANSWERS = {"messages": _messages, "responses": _responses, "completions": _chat}
