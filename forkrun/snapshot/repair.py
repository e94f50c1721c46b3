"""Make a snapshot one that the Messages API accepts, changing as little as can be.

An ordered list of rules, each a small function that changes messages in place and notes what it
did. They are played until none finds anything more to do, so that a repaired snapshot is left
alone. A message that no rule touches keeps its very bytes, and with them the provider's prompt
cache. What the API refuses is taken from its reference and its error messages (2026).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable

import msgspec

from forkrun.errors import InputError
from forkrun.snapshot.freeze import MAX_REQUEST_BYTES, Dangling, Snapshot
from forkrun.snapshot.images import mend_media, shed_media
from forkrun.snapshot.marks import make_room, unmark_thinking
from forkrun.snapshot.notes import Notes
from forkrun.snapshot.pairs import (
    answer_open_calls,
    cut_open_calls,
    drop_doubles,
    pair_server_calls,
    place_results,
)
from forkrun.snapshot.shape import Block, Message, text_block
from forkrun.snapshot.start import Repair
from forkrun.snapshot.strict import Surrogates

NO_OUTPUT = "(no output)"
CUT_SHORT = "(The turn ended here.)"
LOST_BEGINNING = "(The beginning of this conversation is not part of it any more.)"
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_OTHER = re.compile(r"[^a-zA-Z0-9_-]")
_ROUNDS = 20
ROOM_BYTES = 1_000_000
"""What is kept free for the directive and for the turns that follow."""


class Repaired(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that can be sent, what was done to it, and what a fork needs to know of it.

    The last message is the user's, with every call answered, where the snapshot ended in a call.
    `free_marks`: how many more cache marks a request may carry. `call_ids`: those of all calls in
    it, which later calls must not use again. `prefix_sha256` names all that a provider's prompt
    cache keys on. `size_bytes`: about how long its body is.
    """

    snapshot: Snapshot
    repair: Repair
    free_marks: int
    call_ids: frozenset[str]
    prefix_sha256: str
    size_bytes: int


def repaired(snapshot: Snapshot, dangling: Dangling = "placeholder") -> Repaired:
    """Repair a snapshot once, however many forks share it."""
    done: Repaired | None = snapshot.worked_out.get(dangling)
    if done is None:
        done = snapshot.worked_out[dangling] = repair(snapshot, dangling=dangling)
    return done


def repair(
    snapshot: Snapshot, *, dangling: Dangling = "placeholder", max_bytes: int = MAX_REQUEST_BYTES
) -> Repaired:
    """Play the rules; raise `InputError` where a conversation cannot be mended with certainty.

    `dangling` says how calls that are open at the end are closed: with a constant result, or by
    leaving out the turn that made them. `max_bytes` is the largest request body.
    """
    messages = snapshot.parsed()
    notes = Notes()
    mend_media(messages, notes)
    _play(messages, notes)
    close = cut_open_calls if dangling == "cut" else answer_open_calls
    closed = close(messages)
    if closed:
        _play(messages, notes)
    size_bytes = shed_media(
        messages,
        notes,
        max_bytes=max_bytes,
        room_bytes=min(ROOM_BYTES, max_bytes // 2),
        other_bytes=sum(len(name) + len(value) + 4 for name, value in snapshot.params),
    )
    params, free_marks = make_room(dict(snapshot.params), messages, notes)
    ready = msgspec.structs.replace(
        snapshot,
        params=tuple(params.items()),
        messages=tuple(message.to_json() for message in messages),
        notes=(),
    )
    return Repaired(
        snapshot=ready,
        repair=Repair(
            strategy=dangling if closed else "none",
            tool_use_ids=tuple(closed),
            notes=(*snapshot.notes, *notes.said()),
        ),
        free_marks=free_marks,
        call_ids=frozenset(b.id for m in messages for b in m.blocks if b.type.endswith("tool_use")),
        prefix_sha256=_fingerprint(ready),
        size_bytes=size_bytes,
    )


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


def _play(messages: list[Message], notes: Notes) -> None:
    for _ in range(_ROUNDS):
        before = notes.count
        for rule in RULES:
            rule(messages, notes)
        if notes.count == before:
            return
    raise InputError("snapshot: could not be repaired: the rules do not come to an end")


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
        changed[name] = json.dumps(_OTHER.sub("_", block.id)).encode()
    if block.is_call:
        name = block.value("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            changed["name"] = json.dumps(_OTHER.sub("_", str(name or "unknown"))[:128]).encode()
    return changed


def make_inputs_objects(messages: list[Message], notes: Notes) -> None:
    """Give every call an object as its input: the one that a string holds, or else an empty one."""
    for message in messages:
        for position, block in enumerate(message.blocks):
            if not block.type.endswith("tool_use") or message.role != "assistant":
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
            found = json.loads(json.loads(raw), parse_constant=lambda _: None)
        except (ValueError, RecursionError):
            return b"{}"
        if isinstance(found, dict):
            return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode(
                errors="replace"
            )
    return b"{}"


def drop_unsigned_thinking(messages: list[Message], notes: Notes) -> None:
    """Leave out thinking that a cut stream left without its signature; never make one up."""
    for message in messages:
        kept = [block for block in message.blocks if not _is_unsigned(block)]
        _keep(message, kept, notes, "thinking without a signature was left out")
        if message.role == "user":
            kept = [block for block in message.blocks if not block.is_thinking]
            _keep(message, kept, notes, "thinking in a user message was left out")


def _is_unsigned(block: Block) -> bool:
    if block.type == "thinking":
        signature = block.value("signature")
    elif block.type == "redacted_thinking":
        signature = block.value("data")
    else:
        return False
    return not (isinstance(signature, str) and signature)


def end_after_thinking(messages: list[Message], notes: Notes) -> None:
    """Put a constant text after thinking that ends a turn, where the API does not take it."""
    for message in messages:
        if message.role == "assistant" and message.blocks and message.blocks[-1].is_thinking:
            message.replace([*message.blocks, Block(text_block(CUT_SHORT))])
            notes.add("a text was put after thinking at the end of a turn", message=message)


def drop_blanks(messages: list[Message], notes: Notes) -> None:
    """Leave out text blocks of nothing but whitespace."""
    for message in messages:
        kept = [block for block in message.blocks if not is_blank(block)]
        _keep(message, kept, notes, "blank text was left out")


def is_blank(block: Block) -> bool:
    """Tell whether this is a text block without a visible character."""
    if block.type != "text":
        return False
    text = block.fields().get("text")
    if text is None or not bytes(text).startswith(b'"'):
        return True
    return not msgspec.json.decode(text, type=str).strip()


def _keep(message: Message, kept: list[Block], notes: Notes, said: str) -> None:
    if len(kept) == len(message.blocks):
        return
    stay = {id(block) for block in kept}
    for block in message.blocks:
        if id(block) not in stay:
            notes.add(said, message=message, block=block)
    message.replace(kept)


def fill_blank_results(messages: list[Message], notes: Notes) -> None:
    """Say "(no output)" in results that hold nothing; leave blank text out of those that do."""
    for message in messages:
        for position, block in enumerate(message.blocks):
            if not block.is_result:
                continue
            content = _filled(block.fields().get("content"))
            if content is not None:
                message.blocks[position] = block.with_fields(content=content)
                message.touch()
                notes.add("blank text in a result was replaced", message=message, block=block)


def _filled(content: msgspec.Raw | None) -> bytes | None:
    """Give other content for a result, or None where it can stay."""
    nothing = msgspec.json.encode(NO_OUTPUT)
    if content is None:
        return None
    raw = bytes(content)
    if raw.startswith(b'"'):
        return None if msgspec.json.decode(raw, type=str).strip() else nothing
    if not raw.startswith(b"["):
        return nothing
    blocks = [Block(bytes(inner)) for inner in msgspec.json.decode(raw, type=list[msgspec.Raw])]
    kept = [block.raw for block in blocks if not is_blank(block)]
    if kept and len(kept) == len(blocks):
        return None
    return b"[" + b",".join(kept) + b"]" if kept else nothing


def drop_empty_messages(messages: list[Message], notes: Notes) -> None:
    """Leave out messages with no block."""
    for message in list(messages):
        if message.role == "system" or message.blocks:
            continue
        messages.remove(message)
        notes.add("an empty message was left out", message=message)


def merge_neighbours(messages: list[Message], notes: Notes) -> None:
    """Make one message of neighbours with the same role, as the API itself reads them."""
    merged: list[Message] = []
    for message in messages:
        last = merged[-1] if merged else None
        if last is None or last.role != message.role or message.role == "system":
            merged.append(message)
            continue
        last.replace([*last.blocks, *message.blocks])
        notes.add(f"joined with the {message.role} message before it", message=message)
    messages[:] = merged


def begin_with_user(messages: list[Message], notes: Notes) -> None:
    """Put a constant user message before a conversation that begins with the assistant."""
    first = next((message for message in messages if message.role != "system"), None)
    if first is not None and first.role == "assistant":
        opening = Message(
            role="user", blocks=[Block(text_block(LOST_BEGINNING))], index=first.index
        )
        opening.touch()
        messages.insert(messages.index(first), opening)
        notes.add("a user message was put before it", message=first)


def _fingerprint(snapshot: Snapshot) -> str:
    import hashlib  # loads the crypto library: 5 ms that a fresh run does not need

    keys = ("model", "tools", "system", "thinking", "tool_choice", "output_config")
    params = dict(snapshot.params)
    digest = hashlib.sha256(b"\n".join(params.get(key, b"") for key in keys))
    digest.update("\n".join(sorted(snapshot.betas)).encode())
    for message in snapshot.messages:
        digest.update(b"\n")
        digest.update(message)
    return digest.hexdigest()


Rule = Callable[[list[Message], Notes], None]

RULES: tuple[Rule, ...] = (
    spell_names,
    make_inputs_objects,
    drop_unsigned_thinking,
    unmark_thinking,
    drop_blanks,
    fill_blank_results,
    drop_doubles,
    pair_server_calls,
    drop_empty_messages,
    merge_neighbours,
    place_results,
    drop_empty_messages,
    merge_neighbours,
    begin_with_user,
    end_after_thinking,
)
"""Played in this order, again and again, until none has anything to do."""

BLOCK_RULES: tuple[Rule, ...] = (
    spell_names,
    make_inputs_objects,
    mend_media,
    drop_blanks,
    fill_blank_results,
    end_after_thinking,
)
"""Those that look at the blocks of one message alone, for what a run adds."""
