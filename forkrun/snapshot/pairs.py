"""Calls and their results: each call once, each answered once, first thing in the next message."""

from __future__ import annotations

import msgspec

from forkrun.errors import InputError
from forkrun.snapshot.notes import Notes
from forkrun.snapshot.shape import Block, Message

PLACEHOLDER = "(This call runs in the child: the conversation was forked while it was open.)"
INTERRUPTED = "(There is no result: the call was interrupted.)"


def drop_doubles(messages: list[Message], notes: Notes) -> None:
    """Leave out exact copies of a call; refuse different calls under one id."""
    first: dict[str, Block] = {}
    for message in messages:
        kept = []
        for block in message.blocks:
            if not _is_any_call(block) or block.id not in first:
                kept.append(block)
                if _is_any_call(block):
                    first[block.id] = block
                continue
            if not _are_equal(block, first[block.id]):
                raise InputError(
                    f"snapshot: message {message.index}, block {block.index}: "
                    f"another call has the same id: {block.id}"
                )
            notes.add("a copy of a call was left out", message=message, block=block)
        if len(kept) < len(message.blocks):
            message.replace(kept)


def _is_any_call(block: Block) -> bool:
    return block.is_call or block.is_server_call


def _are_equal(one: Block, other: Block) -> bool:
    if one.raw == other.raw:
        return True
    pair = [msgspec.json.decode(block.raw) for block in (one, other)]
    for fields in pair:
        fields.pop("cache_control", None)
    return bool(pair[0] == pair[1])


def pair_server_calls(messages: list[Message], notes: Notes) -> None:
    """Leave out server calls that have no result, and results of server calls that are not there.

    A client cannot answer such a call. Its result may stand in a later assistant message, when a
    turn paused or when the call itself calls tools of the client; those go with it.
    """
    blocks = [block for message in messages for block in message.blocks]
    calls = {block.id for block in blocks if block.is_server_call}
    answered = {block.id for block in blocks if not _is_any_call(block)}
    known = {block.id for block in blocks if not _is_server_result(block)}
    if calls <= answered and all(b.id in known for b in blocks if _is_server_result(b)):
        return
    for message in messages:
        kept = []
        for block in message.blocks:
            said = _broken_pair(block, known, answered)
            if said:
                notes.add(said, message=message, block=block)
            else:
                kept.append(block)
        if len(kept) < len(message.blocks):
            message.replace(kept)


def _is_server_result(block: Block) -> bool:
    return block.type.endswith("_tool_result")


def _broken_pair(block: Block, known: set[str], answered: set[str]) -> str | None:
    if block.is_server_call and block.id not in answered:
        return "a server call without a result was left out"
    if _is_server_result(block) and block.id not in known:
        return "a result of a server call that is not there was left out"
    if block.is_call and b'"caller"' in block.raw:
        caller = block.value("caller")
        made_by = caller.get("tool_id") if isinstance(caller, dict) else None
        if made_by and made_by not in answered:
            return "a call made by a server call without a result was left out"
    return None


def place_results(messages: list[Message], notes: Notes) -> None:
    """Put the results of each turn first into the next user message, in the order of the calls.

    Results without a call, and second results of one call, are left out. A call in the middle that
    has no result gets a constant one; calls of the last turn are left open.
    """
    pool = _pool(messages)
    last = next((m for m in reversed(messages) if m.role == "assistant"), None)
    placed: list[Message] = []
    for message in messages:
        answers = _answers(placed, pool, last)
        if answers and message.role != "user":
            placed.append(_moved(answers, after=placed[-1], notes=notes))
            answers = []
        _put_first(answers, message, notes)
        placed.append(message)
    answers = _answers(placed, pool, last)
    if answers:
        placed.append(_moved(answers, after=placed[-1], notes=notes))
    messages[:] = placed


def _pool(messages: list[Message]) -> dict[str, Block]:
    pool: dict[str, Block] = {}
    for message in messages:
        for block in message.results:
            pool.setdefault(block.id, block)
    return pool


def _answers(placed: list[Message], pool: dict[str, Block], last: Message | None) -> list[Block]:
    """Give the results that the newest message calls for; made up where they are lost."""
    if not placed or placed[-1].role != "assistant":
        return []
    found = []
    for call in placed[-1].calls:
        if call.id in pool:
            found.append(pool[call.id])
        elif placed[-1] is not last:
            found.append(_result(call.id, INTERRUPTED, is_error=True))
    return found


def _moved(answers: list[Block], *, after: Message, notes: Notes) -> Message:
    notes.add("results were put into a message of their own after it", message=after)
    return _user_message(answers, index=after.index)


def _put_first(answers: list[Block], message: Message, notes: Notes) -> None:
    """Give a message exactly these results, first, and note what that changed."""
    given = message.results
    wanted = {id(block) for block in answers}
    leads = message.blocks[: len(given)] == given
    # Another order than that of the calls is no fault: it costs no cache where nothing else is.
    same = given == answers or (not message.is_touched and {id(b) for b in given} == wanted)
    if leads and same and len(given) == len(wanted):
        return
    for block in given:
        if id(block) not in wanted:
            notes.add("a result does not belong here", message=message, block=block)
    if answers:
        notes.add("the results of the calls were put first", message=message)
    message.replace([*answers, *(block for block in message.blocks if not block.is_result)])


def _user_message(blocks: list[Block], *, index: int) -> Message:
    message = Message(role="user", blocks=blocks, index=index)
    message.touch()
    return message


def _result(name: str, text: str, *, is_error: bool = False) -> Block:
    fields: dict[str, object] = {"type": "tool_result", "tool_use_id": name, "content": text}
    if is_error:
        fields["is_error"] = True
    return Block(msgspec.json.encode(fields))


def open_calls(messages: list[Message]) -> list[str]:
    """Give the ids of the last turn's calls that have no result, in order."""
    for at in range(len(messages) - 1, -1, -1):
        if messages[at].role == "assistant":
            answered = {b.id for m in messages[at + 1 :] for b in m.results}
            return [name for name in messages[at].call_ids() if name not in answered]
    return []


def answer_open_calls(messages: list[Message]) -> list[str]:
    """Close open calls at the end with the same constant result; give their ids."""
    opened = open_calls(messages)
    if not opened:
        return []
    last = _last_assistant(messages)
    if last + 1 == len(messages) or messages[last + 1].role != "user":
        messages.insert(last + 1, _user_message([], index=messages[last].index))
    after = messages[last + 1]
    pool = {block.id: block for block in after.results}
    pool |= {name: _result(name, PLACEHOLDER) for name in opened}
    results = [pool[name] for name in messages[last].call_ids()]
    after.replace([*results, *(block for block in after.blocks if not block.is_result)])
    return opened


def cut_open_calls(messages: list[Message]) -> list[str]:
    """Leave out the last turn where one of its calls is open, with what was answered to it."""
    opened = open_calls(messages)
    if opened:
        last = _last_assistant(messages)
        for message in messages[last + 1 :]:
            kept = [block for block in message.blocks if not block.is_result]
            if len(kept) < len(message.blocks):
                message.replace(kept)
        del messages[last]
    return opened


def _last_assistant(messages: list[Message]) -> int:
    return max(at for at, message in enumerate(messages) if message.role == "assistant")
