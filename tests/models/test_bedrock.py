"""A client whose answers are no server-sent events: Bedrock's binary event stream."""

import asyncio
import base64
import binascii
import http.server
import json
import struct
import threading
from importlib.util import find_spec
from typing import ClassVar

import pytest
from messages_server import events_of
from support_models import ask, blocks, request

from forkrun.errors import ModelUnavailable
from forkrun.models import open_model

pytestmark = pytest.mark.skipif(
    find_spec("botocore") is None, reason="botocore, which reads event streams, is not installed"
)
CONTENT = [
    {"type": "text", "text": "It is pytest. é😀"},
    {"type": "of_next_year", "payload": {"deep": [1, 2.5, None, {"é": True}]}},
    {"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": "ls", "n": [1, 2]}},
]
MESSAGE = {
    "model": "claude-b",
    "content": CONTENT,
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 3, "output_tokens": 2},
}


def frame(event):
    """One message of `application/vnd.amazon.eventstream`, as Smithy describes it."""
    named = {":event-type": "chunk", ":content-type": "application/json", ":message-type": "event"}
    headers = b"".join(
        struct.pack(">B", len(n)) + n.encode() + b"\x07" + struct.pack(">H", len(v)) + v.encode()
        for n, v in named.items()
    )
    payload = json.dumps({"bytes": base64.b64encode(json.dumps(event).encode()).decode()}).encode()
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    content = prelude + struct.pack(">I", binascii.crc32(prelude)) + headers + payload
    return content + struct.pack(">I", binascii.crc32(content))


@pytest.fixture
def platform():
    """A server that answers every request with the same stream; `events` can be changed."""

    class Handler(http.server.BaseHTTPRequestHandler):
        events = tuple(events_of(MESSAGE))
        asked: ClassVar[list] = []

        def log_message(self, *_):
            pass

        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            self.asked.append((self.path, json.loads(body)))
            data = b"".join(frame(event) for event in self.events)
            self.send_response(200)
            self.send_header("content-type", "application/vnd.amazon.eventstream")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        Handler.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield Handler
        server.shutdown()
        thread.join()


def answer(platform, *, is_async):
    import anthropic

    kind = anthropic.AsyncAnthropicBedrock if is_async else anthropic.AnthropicBedrock

    async def play():
        client = kind(aws_region="us-east-1", api_key="k", base_url=platform.url)
        model = open_model("anthropic.claude-b", environ={}, client=client)
        try:
            return await ask(model, request("hi", model="anthropic.claude-b"))
        finally:
            await model.close()
            closing = client.close()
            if closing is not None:
                await closing

    return asyncio.run(play())


@pytest.mark.parametrize("is_async", [False, True])
def test_a_reply_comes_back_as_it_was(platform, is_async):
    """Unknown blocks too, though the package turns events into objects of its own."""
    reply = answer(platform, is_async=is_async)
    assert blocks(reply) == CONTENT
    assert (reply.stop_reason, reply.usage.input_tokens) == ("tool_use", 3)
    path, body = platform.asked[-1]
    assert path == "/model/anthropic.claude-b/invoke-with-response-stream"
    assert "model" not in body


@pytest.mark.parametrize("is_async", [False, True])
def test_a_stream_that_ends_early_is_unavailable(platform, is_async):
    """The same rule as for every other road."""
    platform.events = platform.events[:-1]
    with pytest.raises(ModelUnavailable, match="stream cut"):
        answer(platform, is_async=is_async)
