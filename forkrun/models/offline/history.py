"""What has been said, read from a request: the task, what came before it, what was tried for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from forkrun.catalog import INPUTS
from forkrun.models.base import Request
from forkrun.prompts import SUMMARY_NOW

Calls = tuple[tuple[str, dict[str, str | int]], ...]
"""Tool calls to be made at once: name and input."""

CLAUDE_CODE = {
    "Bash": "bash",
    "Read": "read_file",
    "Write": "write_file",
    "Edit": "edit_file",
    "Glob": "glob",
    "Grep": "grep",
}
"""Our tools under the names that a parent may have for them; their inputs are the same."""
SUBJECTS = ("file_path", "path", "notebook_path", "pattern", "command")
_TASK_MARK = "Your task:\n"  # stands before the task in the last message of a fork


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One tool call of the conversation and its result, None where there is none.

    `name` is ours where the tool is; `subject` the file, pattern or command that it was about.
    """

    name: str
    subject: str
    arguments: dict[str, Any]
    result: str | None
    is_error: bool


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """One text of the conversation."""

    role: str
    text: str


class History(msgspec.Struct, frozen=True, kw_only=True):
    """A request, taken apart. `directive` is the text that ends in the task. `said` and `done` are
    what came before the task, `tried` the calls made for it; `tools` gives the name to call each of
    our tools by; `must_finish` says that no further call will run."""

    task: str
    directive: str
    said: tuple[Said, ...]
    done: tuple[Call, ...]
    tried: tuple[Call, ...]
    tools: dict[str, str]
    max_tokens: int
    must_finish: bool


class _Block(msgspec.Struct):
    type: str
    text: Any = ""
    id: Any = ""
    name: Any = ""
    input: Any = None
    tool_use_id: Any = ""
    content: Any = None
    is_error: Any = False


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Block]


class _Tool(msgspec.Struct):
    name: str = ""


def read_history(request: Request) -> History:
    """Take a request apart. Raises msgspec.MsgspecError for what the Messages API would refuse."""
    messages = [_blocks(raw) for raw in request.messages]
    place = _place_of_task(messages)
    before = [*messages[:place], (messages[place][0], messages[place][1][:-1])]
    tools = msgspec.json.decode(request.params.get("tools", b"[]"), type=list[_Tool])
    task = str(messages[place][1][-1].text) if messages[place][1] else ""
    return History(
        task=task.rpartition(_TASK_MARK)[2].strip(),
        directive=task,
        said=tuple(_texts(before)),
        done=tuple(_calls([*before[:-1], messages[place]])),
        tried=tuple(_calls(messages[place + 1 :])),
        tools={_ours(tool.name): tool.name for tool in tools if _ours(tool.name) in INPUTS},
        max_tokens=msgspec.json.decode(request.params.get("max_tokens", b"8000"), type=int),
        must_finish=any(SUMMARY_NOW in said.text for said in _texts(messages[place + 1 :])),
    )


_Messages = Sequence[tuple[str, list[_Block]]]


def _blocks(raw: bytes) -> tuple[str, list[_Block]]:
    message = msgspec.json.decode(raw, type=_Message)
    if isinstance(message.content, str):
        return message.role, [_Block(type="text", text=message.content)]
    return message.role, message.content


def _place_of_task(messages: _Messages) -> int:
    """Find the last message of the user that ends in words which ask for something of their own."""
    for place in range(len(messages) - 1, -1, -1):
        role, blocks = messages[place]
        last = blocks[-1] if blocks else None
        if role == "user" and last and last.type == "text" and SUMMARY_NOW not in str(last.text):
            return place
    return 0


def _texts(messages: _Messages) -> Iterator[Said]:
    for role, blocks in messages:
        for block in blocks:
            if block.type == "text" and isinstance(block.text, str) and block.text.strip():
                yield Said(role=role, text=block.text)


def _calls(messages: _Messages) -> Iterator[Call]:
    results = {
        str(block.tool_use_id): block
        for _, blocks in messages
        for block in blocks
        if block.type == "tool_result"
    }
    for _, blocks in messages:
        for block in blocks:
            if block.type == "tool_use":
                arguments = block.input if isinstance(block.input, dict) else {}
                result = results.get(str(block.id))
                yield Call(
                    name=_ours(str(block.name)),
                    subject=next(
                        (str(arguments[key]) for key in SUBJECTS if arguments.get(key)), ""
                    ),
                    arguments=arguments,
                    result=None if result is None else _flat(result.content),
                    is_error=bool(result and result.is_error),
                )


def _ours(name: str) -> str:
    return CLAUDE_CODE.get(name, name)


def _flat(content: Any) -> str:
    """Give the text of a tool result, which is a string or a list of blocks."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
