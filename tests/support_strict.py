"""What the Messages API answers 400 or 413 to, written down anew: nothing here is the repair's.

`faults(body)` takes a decoded request and gives a sentence for each rule that it breaks.
"""

import base64
import itertools
import re

SERVER_CALL_TYPES = {"server_tool_use", "mcp_tool_use"}
CALL_TYPES = {"tool_use"} | SERVER_CALL_TYPES
SERVER_RESULT_TYPES = {"web_search_tool_result", "mcp_tool_result"}
NAME = re.compile(r"^[a-zA-Z0-9_-]{1,128}$")
ID = re.compile(r"^[a-zA-Z0-9_-]+$")
STARTS = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
}
MAX_BYTES = 32_000_000


def faults(body: dict, *, size: int = 0) -> list[str]:
    """Give what is wrong with a request, in words; an empty list where it is accepted."""
    messages = [m for m in body["messages"] if m["role"] != "system"]
    found = []
    found += turns(messages)
    found += contents(messages)
    found += calls_and_results(messages)
    found += server_calls(messages)
    found += marks(body)
    found += tools(body)
    if size > MAX_BYTES:
        found.append(f"request of {size} bytes")
    return found


def blocks_of(message: dict) -> list[dict]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def turns(messages):
    if not messages or messages[0]["role"] != "user":
        yield "does not start with the user"
    if not messages or messages[-1]["role"] != "user":
        yield "does not end with the user"
    for at, (one, other) in enumerate(itertools.pairwise(messages)):
        if one["role"] == other["role"]:
            yield f"messages {at} and {at + 1} have one role"


def contents(messages):
    for at, message in enumerate(messages):
        blocks = blocks_of(message)
        if not blocks:
            yield f"message {at} is empty"
            continue
        if message["role"] == "assistant" and blocks[-1]["type"].endswith("thinking"):
            yield f"message {at} ends with thinking"
        for block in blocks:
            yield from (f"message {at}: {said}" for said in content(block, message["role"]))


def content(block, role):
    kind = block["type"]
    if kind == "text" and not str(block.get("text") or "").strip():
        yield "blank text"
    if kind == "thinking" and not block.get("signature"):
        yield "thinking without a signature"
    if kind == "redacted_thinking" and not block.get("data"):
        yield "redacted thinking without data"
    if kind in CALL_TYPES and not isinstance(block.get("input"), dict):
        yield "an input that is no object"
    if kind == "tool_use" and not NAME.match(block.get("name", "")):
        yield f"a tool name: {block.get('name')!r}"
    if kind == "tool_use" and not ID.match(block["id"]):
        yield f"an id: {block['id']!r}"
    if kind in {"image", "document"}:
        yield from media(block)
    if (kind == "tool_result") != (role == "user") and kind in {"tool_result", "tool_use"}:
        yield f"{kind} in a message of the {role}"
    if kind == "tool_result" and "content" in block:
        inner = block["content"]
        if not isinstance(inner, str | list):
            yield "a result that is neither text nor blocks"
        elif not inner or (isinstance(inner, str) and not inner.strip()):
            yield "a blank result"
        if isinstance(inner, list):
            for each in inner:
                yield from content(each, "user")


def media(block):
    source = block["source"]
    if source["type"] != "base64":
        return
    try:
        plain = base64.b64decode(source["data"], validate=True)
    except ValueError:
        yield "base64 that cannot be decoded"
        return
    if block["type"] == "image" and not plain.startswith(
        STARTS.get(source["media_type"], (b"\0?",))
    ):
        yield f"an image that is no {source['media_type']}"


def calls_and_results(messages):
    used = set()
    for at, message in enumerate(messages):
        calls = [b["id"] for b in blocks_of(message) if b["type"] == "tool_use"]
        if len(set(calls)) < len(calls) or used & set(calls):
            yield f"message {at}: an id is used twice"
        used |= set(calls)
        following = blocks_of(messages[at + 1]) if at + 1 < len(messages) else []
        results = [b["tool_use_id"] for b in following if b["type"] == "tool_result"]
        if message["role"] == "assistant":
            if sorted(results) != sorted(calls):
                yield f"message {at}: calls {calls}, results {results}"
            if any(b["type"] != "tool_result" for b in following[: len(results)]):
                yield f"message {at + 1}: something stands before the results"
    if messages and any(b["type"] == "tool_result" for b in blocks_of(messages[0])):
        yield "message 0: results of nothing"


def server_calls(messages):
    blocks = [b for m in messages for b in blocks_of(m)]
    calls = [b["id"] for b in blocks if b["type"] in SERVER_CALL_TYPES]
    results = [b["tool_use_id"] for b in blocks if b["type"] in SERVER_RESULT_TYPES]
    if len(set(calls)) < len(calls):
        yield "a server call's id is used twice"
    if set(calls) != set(results):
        yield f"server calls {calls}, their results {results}"


def marks(body):
    count = body.get("cache_control") is not None
    places = [*as_list(body.get("tools")), *as_list(body.get("system"))]
    for message in body["messages"]:
        for block in as_list(message.get("content")):
            places.append(block)
            if block["type"] == "tool_result":
                places += as_list(block.get("content"))
    for block in places:
        if block.get("cache_control") is None:
            continue
        count += 1
        if block.get("type") in {"thinking", "redacted_thinking"}:
            yield "a cache mark on thinking"
        if block.get("type") == "text" and not block["text"].strip():
            yield "a cache mark on blank text"
    if count > 4:
        yield f"{count} cache marks"


def as_list(value):
    return value if isinstance(value, list) else []


def tools(body):
    names = [tool["name"] for tool in as_list(body.get("tools"))]
    if len(set(names)) < len(names):
        yield "a tool name is used twice"
    for name in names:
        if not NAME.match(name):
            yield f"a tool name: {name!r}"
    choice = (body.get("tool_choice") or {}).get("type")
    thinking = (body.get("thinking") or {}).get("type", "disabled")
    if choice in {"any", "tool"} and thinking != "disabled":
        yield "a forced tool_choice together with thinking"
