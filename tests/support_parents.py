"""A model for parents and their subagents alike, on the loopback, and one that speaks OpenAI's API.

Whoever has a tool that starts subagents is a parent: it calls that tool twice in one reply, and
then answers with the results. Everybody else is a subagent, and answers with its prompt.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from messages_server import MessagesServer, Recorded

PROMPTS = ("read the left half", "read the right half")


def reply_to(request: Recorded) -> dict[str, Any]:
    """Give the line with which the loopback server answers."""
    asked = request.json
    names = [tool["name"] for tool in asked.get("tools", [])]
    starter = next((name for name in names if name.endswith("task")), None)
    results = _results(asked["messages"][-1]["content"])
    if starter is None:
        return {"text": f"FOUND by a subagent: {_words(asked['messages'][-1]['content'])}"}
    if results:
        return {"text": "ANSWER\n" + "\n".join(results)}
    schema = next(tool["input_schema"] for tool in asked["tools"] if tool["name"] == starter)
    if "prompt" in schema["properties"]:
        return {"tool_use": [{"name": starter, "input": {"prompt": p}} for p in PROMPTS]}
    choice = {"subagent_type": "isolated"}
    return {"tool_use": [{"name": starter, "input": {"description": p} | choice} for p in PROMPTS]}


def _words(content: Any) -> str:
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return " ".join(block["text"] for block in blocks if block["type"] == "text")


def _results(content: Any) -> list[str]:
    if isinstance(content, str):
        return []
    found = [block["content"] for block in content if block["type"] == "tool_result"]
    return [text if isinstance(text, str) else _words(text) for text in found]


class Api(MessagesServer):
    """The Messages API, strict to everybody but a host that sends what is still in beta."""

    def judge(self, request: Recorded) -> tuple[str, str] | None:
        if any(message["role"] == "system" for message in request.json["messages"]):
            return None
        return super().judge(request)


@contextmanager
def anthropic_api() -> Iterator[MessagesServer]:
    """Serve the Messages API to parents and subagents."""
    with Api(reply_to) as server:
        yield server


@contextmanager
def openai_api() -> Iterator[str]:
    """Serve `POST /v1/chat/completions` to a parent; give the base URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Completions)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Completions(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        results = [m["content"] for m in asked["messages"] if m["role"] == "tool"]
        message: dict[str, Any] = {"role": "assistant", "content": "ANSWER\n" + "\n".join(results)}
        if not results:
            calls = [
                {
                    "id": f"call_{number}",
                    "type": "function",
                    "function": {
                        "name": asked["tools"][0]["function"]["name"],
                        "arguments": json.dumps({"prompt": prompt}),
                    },
                }
                for number, prompt in enumerate(PROMPTS)
            ]
            message = {"role": "assistant", "content": None, "tool_calls": calls}
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": "stop" if results else "tool_calls",
        }
        body = json.dumps(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": 0,
                "model": asked["model"],
                "choices": [choice],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            }
        ).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""
