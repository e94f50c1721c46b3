"""Progress for people, on stderr: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any

import msgspec

from forkrun.cli import tell
from forkrun.events import (
    CheckEvent,
    ConfirmedEvent,
    CopyEvent,
    DeniedEvent,
    Event,
    LimitEvent,
    RecoveredEvent,
    ResultEvent,
    RetryEvent,
    SettledEvent,
    StartedEvent,
    ToolCallEvent,
    TurnEvent,
)
from forkrun.text import one_line

LINE_WIDTH = 100


class Progress:
    """Shows what a run does. A context manager; the live line is gone when it ends.

    `verbosity`: -1 shows nothing, 0 what happens, 1 also how long replies were.
    """

    def __init__(self, *, verbosity: int) -> None:
        self._quiet = verbosity < 0
        self._verbose = verbosity > 0
        self._live = _LiveLine() if not self._quiet and os.isatty(2) else None
        self._tokens = 0
        self._has_started = False
        self._bar: _Bar | None = None
        self.notices: tuple[str, ...] = ()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._live:
            self._live.stop()
        if self._bar:
            self._bar.stop()
            self._bar = None

    def _show_copy(self, event: CopyEvent) -> None:
        """Draw how far the copy of the workspace is."""
        if event.done_bytes >= event.total_bytes:
            self._stop()
        elif event.done_bytes:
            self._bar = self._bar or _Bar(event.total_bytes)
            self._bar.show(event.done_bytes)

    def show(self, event: Event) -> None:
        """Show what an event means, if it means anything to people."""
        if self._quiet:
            return
        if isinstance(event, CopyEvent) and self._live:
            self._show_copy(event)
        if isinstance(event, StartedEvent) and not self._has_started:
            self._has_started = True
            for notice in self.notices:
                tell(notice)
            for missing in event.sandbox.missing:
                tell(f"not confined by {missing.layer}: {missing.reason}")
        if isinstance(event, TurnEvent):
            self._tokens += event.usage.total_tokens
        if isinstance(event, SettledEvent):
            self._stop()
            tell(event.diffstat, prefix="")
        elif self._live and isinstance(event, ConfirmedEvent | ResultEvent):
            self._stop()
        elif text := self._line(event):
            line = f"[{event.t:6.1f}s] {text}"
            if self._live and not isinstance(event, CopyEvent):
                self._live.show(f"{line}  ({self._tokens:,} tokens)")
            else:
                tell(line, prefix="")

    def _line(self, event: Event) -> str | None:
        line = None
        match event:
            case ToolCallEvent():
                line = f"turn {event.turn}: {event.tool} {_gist(event.input)}"
            case DeniedEvent():
                line = f"turn {event.turn}: {event.tool} denied: {one_line(event.reason, width=80)}"
            case RetryEvent():
                error = one_line(event.error, width=80)
                line = f"retry {event.attempt} in {event.wait_s:.1f} s: {error}"
            case LimitEvent():
                line = f"bound reached: {event.limit.kind} {event.limit.value:g}"
            case RecoveredEvent():
                paths = ", ".join(event.paths)
                line = f"a commit that was killed was {event.outcome}: {one_line(paths, width=400)}"
            case CopyEvent() if not event.done_bytes:
                line = (
                    "the workspace is copied, since no overlay can be had over it: "
                    f"{event.total_bytes / 1e6:,.1f} MB"
                )
            case CheckEvent():
                last = one_line(event.output.strip().rpartition("\n")[2], width=80)
                said = "passed" if event.passed else "failed"
                line = f"attempt {event.attempt}: the check {said}" + (last and f": {last}")
            case TurnEvent() if self._verbose:
                line = f"turn {event.turn}: {event.usage.output_tokens:,} tokens written"
        return line


def _gist(text: msgspec.Raw) -> str:
    """Give the values of a call's input on one line."""
    fields = msgspec.json.decode(text)
    return one_line(" ".join(str(value) for value in fields.values()), width=LINE_WIDTH)


class _LiveLine:
    """One line with a spinner, drawn by rich, which is imported when there is something to show."""

    def __init__(self) -> None:
        self._status: Any = None

    def show(self, text: str) -> None:
        from rich.console import Console
        from rich.markup import escape

        if self._status is None:
            self._status = Console(stderr=True).status("")
            self._status.start()
        self._status.update(escape(text))

    def stop(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None


class _Bar:
    """A bar with sizes, speed and the time that is left, drawn by rich."""

    def __init__(self, total_bytes: int) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        columns = (TextColumn("copying"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task("copy", total=total_bytes)
        self._progress.start()

    def show(self, done_bytes: int) -> None:
        self._progress.update(self._task, completed=done_bytes)

    def stop(self) -> None:
        self._progress.stop()
