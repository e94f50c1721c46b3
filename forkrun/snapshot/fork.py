"""Extend a frozen request by one user message, so that the provider's prompt cache still hits.

Tools, system, model, thinking and everything else stay what the parent sent. Who the child is, what
it may do and where it works stands in that last message, after a boundary that says where the
inherited part ends, and before the task.
"""

from __future__ import annotations

import msgspec

from forkrun.errors import InputError, UsageError
from forkrun.snapshot.freeze import Dangling, Snapshot
from forkrun.snapshot.repair import Repaired, repaired
from forkrun.snapshot.shape import parse_message, text_block
from forkrun.snapshot.start import MAX_REQUEST_BYTES, ForkedStart

BOUNDARY = (
    "Everything above is reference: the conversation of another agent, as it stood when you were "
    "forked from it. Its open tasks and plans are not yours; do not go on with them. "
    "Your task is the one below, and only that. When it is done, end with a message that says what "
    "you found or did: that message is all that anybody gets to see."
)


def fork(
    snapshot: Snapshot,
    prompt: str,
    *,
    dangling: Dangling = "placeholder",
    persona: str | None = None,
    restrictions: str | None = None,
    workspace: str | None = None,
    answer: str | None = None,
    max_bytes: int = MAX_REQUEST_BYTES,
) -> ForkedStart:
    """Give what a forked conversation starts with; the prompt stands in it once, at the end.

    `persona`, `restrictions`, `workspace` (the working directory) and `answer` (the form of the
    last message) are told in words.
    Raises `InputError` where the snapshot cannot be repaired or the request would be too large.
    """
    if not prompt.strip():
        raise UsageError("the prompt is empty")
    ready = repaired(snapshot, dangling)
    directive = _directive(
        prompt, persona=persona, restrictions=restrictions, workspace=workspace, answer=answer
    )
    prefix, opening = _opened(ready, directive)
    size_bytes = ready.size_bytes + len(directive)
    if size_bytes > max_bytes:
        raise InputError(
            f"snapshot: the request would be larger than {max_bytes} bytes: {size_bytes}"
        )
    return ForkedStart(
        params={name: msgspec.Raw(value) for name, value in ready.snapshot.params},
        prefix=prefix,
        opening=opening,
        betas=ready.snapshot.betas,
        layout=ready.snapshot.layout,
        size_bytes=size_bytes,
        tail_marks=min(2, ready.free_marks),
        prefix_sha256=ready.prefix_sha256,
        call_ids=ready.call_ids,
        repair=ready.repair,
    )


def _directive(
    prompt: str,
    *,
    persona: str | None,
    restrictions: str | None,
    workspace: str | None,
    answer: str | None,
) -> bytes:
    parts = [BOUNDARY]
    if persona:
        parts.append(f"Who you are now:\n{persona}")
    if restrictions:
        parts.append(f"What you may do (other calls are answered with a denial):\n{restrictions}")
    if workspace:
        parts.append(f"Your working directory: {workspace}")
    if answer:
        parts.append(f"The form of your answer:\n{answer}")
    parts.append(f"Your task:\n{prompt}")
    return text_block("\n\n".join(parts))


def _opened(ready: Repaired, directive: bytes) -> tuple[tuple[bytes, ...], bytes]:
    """Give the messages that stay and the user message that the directive ends."""
    messages = ready.snapshot.messages
    last = parse_message(messages[-1], len(messages) - 1) if messages else None
    if last is None or last.role != "user":
        return messages, b'{"role":"user","content":[' + directive + b"]}"
    return messages[:-1], last.open_json() + b"," + directive + b"]}"
