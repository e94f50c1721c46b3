"""A small MCP server on stdio with nothing but the standard library: what tests talk to.

Run as a program. Its tools say what they are asked; how it misbehaves is its arguments' choice.
"""

import base64
import contextlib
import json
import os
import sys
import time

PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\0" * 16).decode()
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
NOTHING = {"type": "object", "properties": {}}
TOOLS = {
    "echo": TEXT,
    "environment": NOTHING,
    "write": TEXT,
    "picture": NOTHING,
    "sleep": NOTHING,
    "fail": NOTHING,
    "large": NOTHING,
    "connect": NOTHING,
    "end": NOTHING,
    "with.dot": NOTHING,
    "pid": NOTHING,
}


def said(*blocks, **more):
    return {"content": list(blocks), **more}


def text(words):
    return {"type": "text", "text": words}


def connects():
    import socket

    try:
        with socket.create_connection(("127.0.0.1", int(os.environ.get("PORT", sys.argv[1]))), 2):
            return "connected"
    except OSError as error:
        return f"refused: {error.strerror}"


def answer(name, arguments):
    match name:
        case "echo":
            return said(text(arguments["text"]))
        case "environment":
            return said(text(json.dumps(dict(os.environ))))
        case "write":
            with open("written.txt", "w") as file:
                file.write(arguments["text"])
            return said(text(os.getcwd()))
        case "picture":
            image = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
            sound = {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}
            note = {"type": "resource", "resource": {"uri": "note://1", "text": "a note"}}
            return said(text("see"), image, sound, note)
        case "sleep":
            time.sleep(60)
        case "fail":
            return said(text("it went wrong"), isError=True)
        case "large":
            return said(text("a" * 200_000))
        case "connect":
            return said(text(connects()))
        case "end":
            os._exit(7)
        case "with.dot":
            return said(structuredContent={"dotted": True})
        case "pid":
            return said(text(str(os.getpid())))
    raise KeyError(name)


def reply(message):
    method, params = message["method"], message.get("params", {})
    if method == "initialize":
        info = {"name": "small", "version": "1"}
        capabilities = {"tools": {}}
        version = params["protocolVersion"]
        return {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}
    if method == "tools/list":
        tools = [{"name": n, "description": f"{n}!", "inputSchema": s} for n, s in TOOLS.items()]
        half = len(tools) // 2
        if params.get("cursor"):
            return {"tools": tools[half:]}
        return {"tools": tools[:half], "nextCursor": "more"}
    if method == "tools/call":
        return answer(params["name"], params.get("arguments", {}))
    raise KeyError(method)


def main():
    if "--dies" in sys.argv:
        sys.exit("it cannot start without its configuration")
    if "--hangs" in sys.argv:
        time.sleep(600)
    if "--floods" in sys.argv:
        with contextlib.suppress(OSError):
            while True:
                os.write(1, b"a" * 65536)
        os._exit(1)
    print("not a message", flush=True)
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue
        answered = {"jsonrpc": "2.0", "id": message["id"]}
        try:
            answered["result"] = reply(message)
        except KeyError as error:
            answered["error"] = {"code": -32601, "message": f"no {error}"}
        asked = {"jsonrpc": "2.0", "id": "r", "method": "roots/list"}
        print(json.dumps(asked), json.dumps(answered), sep="\n", flush=True)


main()
