"""Make a snapshot one that the Messages API accepts, changing as little as can be.

An ordered list of rules, each a small function that changes messages in place and notes what it
did. They are played until none finds anything more to do, so that a repaired snapshot is left
alone. A message that no rule touches keeps its very bytes, and with them the provider's prompt
cache. What the API refuses is taken from its reference and its error messages (2026).
"""

from __future__ import annotations

import threading

import msgspec

from forkrun.errors import InputError
from forkrun.snapshot.blocks import (
    Rule,
    drop_blanks,
    end_after_thinking,
    fill_blank_results,
    keep,
    make_inputs_objects,
    spell_names,
)
from forkrun.snapshot.freeze import Dangling, Snapshot
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
from forkrun.snapshot.start import MAX_REQUEST_BYTES, Repair

LOST_BEGINNING = "(The beginning of this conversation is not part of it any more.)"
_ROUNDS = 20
_ONE_AT_A_TIME = threading.Lock()
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
    """Repair a snapshot once, however many forks share it; from several threads too."""
    with _ONE_AT_A_TIME:
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


def _play(messages: list[Message], notes: Notes) -> None:
    for _ in range(_ROUNDS):
        before = notes.count
        for rule in RULES:
            rule(messages, notes)
        if notes.count == before:
            return
    raise InputError("snapshot: could not be repaired: the rules do not come to an end")


def drop_unsigned_thinking(messages: list[Message], notes: Notes) -> None:
    """Leave out thinking that a cut stream left without its signature; never make one up."""
    for message in messages:
        kept = [block for block in message.blocks if not _is_unsigned(block)]
        keep(message, kept, notes, "thinking without a signature was left out")
        if message.role == "user":
            kept = [block for block in message.blocks if not block.is_thinking]
            keep(message, kept, notes, "thinking in a user message was left out")


def _is_unsigned(block: Block) -> bool:
    if block.type == "thinking":
        signature = block.value("signature")
    elif block.type == "redacted_thinking":
        signature = block.value("data")
    else:
        return False
    return not (isinstance(signature, str) and signature)


def drop_empty_messages(messages: list[Message], notes: Notes) -> None:
    """Leave out messages with no block."""
    kept = []
    for message in messages:
        if message.blocks or message.role == "system":
            kept.append(message)
        else:
            notes.add("an empty message was left out", message=message)
    messages[:] = kept


def merge_neighbours(messages: list[Message], notes: Notes) -> None:
    """Make one message of neighbours with the same role, as the API itself reads them."""
    merged: list[Message] = []
    for message in messages:
        last = merged[-1] if merged else None
        if last is None or last.role != message.role or message.role == "system":
            merged.append(message)
            continue
        last.blocks += message.blocks
        last.touch()
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
