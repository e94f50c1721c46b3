"""What goes to stdout, in each of the three formats: whole bytes, flushed as they come."""

from __future__ import annotations

import os

import msgspec

from forkrun.events import ConfirmedEvent, CopyEvent, Event, ResultEvent, SettledEvent

PIECE_BYTES = 64 * 1024
_NOT_IN_THE_STREAM = (ConfirmedEvent, CopyEvent, SettledEvent, ResultEvent)


class Output:
    """Writes to stdout, unbuffered. Where its reader has gone, or it cannot be written (`failure`),
    that is remembered, and nothing more is written."""

    def __init__(self) -> None:
        self.reader_gone = False
        self.failure: str | None = None

    def take(self, event: Event) -> None:
        """Write what this event means for the format."""
        raise NotImplementedError

    def write(self, content: bytes) -> None:
        """Write it all, piece by piece."""
        view = memoryview(content)
        while view and not self.reader_gone and self.failure is None:
            try:
                view = view[os.write(1, view[:PIECE_BYTES]) :]
            except BrokenPipeError:
                self.reader_gone = True
            except OSError as error:
                self.failure = f"stdout cannot be written ({error.strerror})"


class TextOutput(Output):
    """The summary, as soon as the turn that ends the run is confirmed, and nothing else."""

    printed = False

    def take(self, event: Event) -> None:
        """Write the summary of the first event that has one."""
        summary = ""
        if isinstance(event, ConfirmedEvent):
            summary = event.summary
        elif isinstance(event, ResultEvent):
            summary = event.result.summary
        if summary.strip() and not self.printed:
            self.printed = True
            self.write(summary.encode() + (b"" if summary.endswith("\n") else b"\n"))


class JsonOutput(Output):
    """The result as one line."""

    def take(self, event: Event) -> None:
        """Write the result."""
        if isinstance(event, ResultEvent):
            self.write(msgspec.json.encode(event.result) + b"\n")


class StreamOutput(JsonOutput):
    """Every event as a line, and the result as the last one."""

    def take(self, event: Event) -> None:
        """Write the event."""
        if not isinstance(event, _NOT_IN_THE_STREAM):
            self.write(msgspec.json.encode(event) + b"\n")
        super().take(event)
