"""Conversations of any size."""

from forkrun.snapshot.freeze import Snapshot


def snapshot_of(size: int) -> Snapshot:
    """A conversation of about this many bytes, in messages of 4,000."""
    messages = [{"role": "user", "content": "begin"}]
    while len(messages) * 4_000 < size:
        role = ("user", "assistant")[len(messages) % 2]
        messages.append({"role": role, "content": f"{len(messages)} " + "words " * 665})
    return Snapshot.of(model="m", max_tokens=9, messages=messages)
