"""Rules for the blocks of one message, which hold for inherited messages and for new ones.

Each changes messages in place and notes what it did.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import msgspec

from forkrun.snapshot.images import mend_media
from forkrun.snapshot.notes import Notes
from forkrun.snapshot.shape import Block, Message, text_block
from forkrun.snapshot.strict import Surrogates

NO_OUTPUT = "(no output)"
CUT_SHORT = "(The turn ended here.)"
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_OTHER = re.compile(r"[^a-zA-Z0-9_-]")

Rule = Callable[[list[Message], Notes], None]


def mended(role: str, blocks: Iterable[bytes]) -> list[bytes]:
    """Give the JSON of the blocks of one new message as the API takes them.

    What needs nothing stays as it is. Thinking without a signature stays too: only servers that do
    not sign give it, and they take it back.
    """
    surrogates = Surrogates()
    read = [Block(surrogates.mended_bytes(raw), index=at) for at, raw in enumerate(blocks)]
    messages = [Message(role=role, blocks=read, index=0)]
    for rule in BLOCK_RULES:
        rule(messages, Notes())
    return [block.raw for block in messages[0].blocks]


def spell_names(messages: list[Message], notes: Notes) -> None:
    """Write ids and names of calls with the characters that the API knows."""
    for message in messages:
        for position, block in enumerate(message.blocks):
            if not (block.is_call or block.is_result):
                continue
            changed = _spelled(block)
            if changed:
                message.blocks[position] = block.with_fields(**changed)
                message.touch()
                notes.add("a name or an id was spelled anew", message=message, block=block)


def _spelled(block: Block) -> dict[str, bytes]:
    changed = {}
    if block.id and _OTHER.search(block.id):
        name = "id" if block.is_call else "tool_use_id"
        changed[name] = msgspec.json.encode(_OTHER.sub("_", block.id))
    if block.is_call:
        name = block.value("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            changed["name"] = msgspec.json.encode(_OTHER.sub("_", str(name or "unknown"))[:128])
    return changed


def make_inputs_objects(messages: list[Message], notes: Notes) -> None:
    """Give every call an object as its input: the one that a string holds, or else an empty one."""
    for message in messages:
        for position, block in enumerate(message.blocks):
            if not (block.is_call or block.is_server_call):
                continue
            raw = bytes(block.fields().get("input", msgspec.Raw(b"")))
            if raw.startswith(b"{"):
                continue
            message.blocks[position] = block.with_fields(input=_object_in(raw))
            message.touch()
            notes.add("the input of a call was no object", message=message, block=block)


def _object_in(raw: bytes) -> bytes:
    if raw.startswith(b'"'):
        try:
            found = msgspec.json.decode(msgspec.json.decode(raw, type=str))
        except (msgspec.DecodeError, RecursionError):
            return b"{}"
        if isinstance(found, dict):
            return msgspec.json.encode(found)
    return b"{}"


def drop_blanks(messages: list[Message], notes: Notes) -> None:
    """Leave out text blocks of nothing but whitespace."""
    for message in messages:
        kept = [block for block in message.blocks if not is_blank(block)]
        keep(message, kept, notes, "blank text was left out")


def is_blank(block: Block) -> bool:
    """Tell whether this is a text block without a visible character."""
    if block.type != "text":
        return False
    text = block.fields().get("text")
    if text is None or not bytes(text).startswith(b'"'):
        return True
    return not msgspec.json.decode(text, type=str).strip()


def fill_blank_results(messages: list[Message], notes: Notes) -> None:
    """Say "(no output)" in results that hold nothing; leave blank text out of those that do."""
    for message in messages:
        for position, block in enumerate(message.blocks):
            if not block.is_result:
                continue
            content = _filled(block)
            if content is not None:
                message.blocks[position] = block.with_fields(content=content)
                message.touch()
                notes.add("blank text in a result was replaced", message=message, block=block)


def _filled(block: Block) -> bytes | None:
    """Give other content for a result, or None where it can stay."""
    nothing = msgspec.json.encode(NO_OUTPUT)
    content = block.fields().get("content")
    if content is None:
        return None
    raw = bytes(content)
    if raw.startswith(b'"'):
        return None if msgspec.json.decode(raw, type=str).strip() else nothing
    if not raw.startswith(b"["):
        return nothing
    blocks = [Block(inner) for inner in block.inner()]
    kept = [block.raw for block in blocks if not is_blank(block)]
    if kept and len(kept) == len(blocks):
        return None
    return b"[" + b",".join(kept) + b"]" if kept else nothing


def end_after_thinking(messages: list[Message], notes: Notes) -> None:
    """Put a constant text after thinking that ends a turn, where the API does not take it."""
    for message in messages:
        if message.role == "assistant" and message.blocks and message.blocks[-1].is_thinking:
            message.replace([*message.blocks, Block(text_block(CUT_SHORT))])
            notes.add("a text was put after thinking at the end of a turn", message=message)


def keep(message: Message, kept: list[Block], notes: Notes, said: str) -> None:
    """Leave out the blocks of a message that are not kept, and say so of each."""
    if len(kept) == len(message.blocks):
        return
    stay = {id(block) for block in kept}
    for block in message.blocks:
        if id(block) not in stay:
            notes.add(said, message=message, block=block)
    message.replace(kept)


BLOCK_RULES: tuple[Rule, ...] = (
    spell_names,
    make_inputs_objects,
    mend_media,
    drop_blanks,
    fill_blank_results,
    end_after_thinking,
)
"""Those that look at the blocks of one message alone, for what a run adds."""
