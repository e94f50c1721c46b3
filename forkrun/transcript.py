"""A record of a run: one JSON object a line, every reply and every result, flushed as they come.

A transcript is itself a script for the scripted model: its lines of type "reply" are replies, and
every other line is skipped. No credential can stand in it, since the child holds none.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from forkrun.errors import UsageError
from forkrun.models.base import Reply
from forkrun.protocol import ToolResult
from forkrun.workspace.landing import landing


class Transcript:
    """Writes to a file, or nowhere when `path` is None. A context manager.

    A file that can no longer be written does not end the run; `failure` says so in words.
    """

    def __init__(self, path: str | None, *, workspace: str) -> None:
        """No link in the workspace is followed, since an earlier run may have put it there."""
        self.failure: str | None = None
        self._fd = None if path is None else _create(path, workspace=workspace)

    def __enter__(self) -> Transcript:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def reply(self, reply: Reply, *, turn: int) -> None:
        """Record a whole reply, its blocks as they came."""
        self.line(
            "reply",
            turn=turn,
            content=[msgspec.Raw(block) for block in reply.content],
            stop_reason=reply.stop_reason,
            usage=reply.usage,
            model=reply.model,
            request_id=reply.request_id,
        )

    def tool_result(self, result: ToolResult, *, turn: int) -> None:
        """Record what a tool gave back; pictures by their size alone."""
        self.line(
            "tool_result",
            turn=turn,
            tool_use_id=result.id,
            text=result.text,
            is_error=result.is_error,
            denied=result.denied,
            images=[{"media_type": i.media_type, "bytes": len(i.content)} for i in result.images],
        )

    def line(self, kind: str, **fields: Any) -> None:
        """Record one line of another kind."""
        if self._fd is None or self.failure is not None:
            return
        content = msgspec.json.encode({"type": kind, **fields}) + b"\n"
        try:
            while content:
                content = content[os.write(self._fd, content) :]
        except OSError as error:
            self.failure = f"the transcript is not complete ({error.strerror})"


def _create(path: str, *, workspace: str) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        at = landing(path, workspace=workspace)
        if os.path.exists(path) and not os.path.isfile(path):
            return os.open(path, flags)  # a pipe or a terminal, say
        return os.open(at, flags | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"cannot write the transcript ({reason}): {path}") from error
