"""The embedded model for trying forkrun with no key. It is not a language model.

It takes the words of the prompt, searches the workspace with the tools that it is given over a few
turns, and answers with the lines that speak to the question, each with file and line. Forked from
a conversation and asked for notes, it picks out what was decided, touched, run and left open.

    history   what has been said, read from the request
    search    which calls to make next
    words     the words of the task, and which topics they are about
    topics    what people ask about a project, as patterns to search for
    answer    the lines found, and a sentence before them
    notes     what a conversation holds, and how it gets into a file
    shaped    an answer of a form that was asked for

It keeps no state: the same request always gives the same reply.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from forkrun.models.base import Heard, Reply, Request, Usage

from .answer import answer
from .history import Calls, History, read_history
from .notes import note_down, wants_notes
from .search import next_calls
from .shaped import FINAL_ANSWER, put_into, wanted_form

NOTICE = (
    "offline is not a language model: it searches the workspace for the words of the prompt "
    "and quotes what it finds"
)
CHARACTERS_PER_TOKEN = 4


class OfflineModel:
    """Drives the loop with real tool calls, and answers by quoting."""

    notice = NOTICE

    @property
    def name(self) -> str:
        return "offline"

    async def reply(self, request: Request, heard: Heard) -> Reply:
        history = read_history(request)
        step = note_down(history) if wants_notes(history) else _research(history)
        if isinstance(step, str):
            text = _shortened(step, limit=history.max_tokens * CHARACTERS_PER_TOKEN)
            form = wanted_form(request, last_words=history.directive)
            if form is not None and form[1]:
                heard(None)
                call = ((FINAL_ANSWER, put_into(form[0], text)),)
                blocks = list(_call_blocks(call, place=len(request.messages)))
                return _reply(request, blocks, stop_reason="tool_use")
            if form is not None:
                text = msgspec.json.encode(put_into(form[0], text)).decode()
            for piece in re.findall(r"\s*(?:\S+\s*){1,8}", text):
                heard(piece)
            return _reply(request, [_text_block(text)], stop_reason="end_turn")
        heard(None)
        named = tuple((history.tools[name], arguments) for name, arguments in step)
        blocks = list(_call_blocks(named, place=len(request.messages)))
        return _reply(request, blocks, stop_reason="tool_use")

    async def close(self) -> None:
        """Hold nothing, give nothing back."""


def _research(history: History) -> Calls | str:
    calls = () if history.must_finish else next_calls(history)
    return calls or answer(history)


def _shortened(text: str, *, limit: int) -> str:
    """Give a text of at most `limit` characters, cut at the end of a line where there is one."""
    if len(text) <= limit:
        return text
    head = text[: max(limit - 2, 1)]
    return head.rpartition("\n")[0] or head


def _text_block(text: str) -> bytes:
    return msgspec.json.encode({"type": "text", "text": text})


def _call_blocks(calls: Calls, *, place: int) -> Iterator[bytes]:
    """Give the calls as blocks, with ids that differ from those of every other message."""
    for position, (name, arguments) in enumerate(calls):
        call_id = f"toolu_offline_{place}_{position}"
        block = {"type": "tool_use", "id": call_id, "name": name, "input": arguments}
        yield msgspec.json.encode(block)


def _reply(request: Request, blocks: list[bytes], *, stop_reason: str) -> Reply:
    """Give the reply, with about the tokens that a language model would have counted."""
    usage = Usage(
        input_tokens=-(-sum(map(len, request.parts())) // CHARACTERS_PER_TOKEN),
        output_tokens=-(-sum(map(len, blocks)) // CHARACTERS_PER_TOKEN),
    )
    return Reply(content=tuple(blocks), stop_reason=stop_reason, usage=usage, model="offline")
