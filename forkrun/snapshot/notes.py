"""What was changed in a snapshot, said in words, with the place: the record of a repair."""

from __future__ import annotations

from forkrun.snapshot.shape import Block, Message

MOST_NOTES = 50


class Notes:
    """Collects what rules did; `count` tells whether anything was done."""

    def __init__(self) -> None:
        self.count = 0
        self._said: list[str] = []

    def add(self, said: str, *, message: Message, block: Block | None = None) -> None:
        """Note a change of a message, or of one of its blocks."""
        self.count += 1
        if len(self._said) < MOST_NOTES:
            place = f"message {message.index}" + (f", block {block.index}" if block else "")
            self._said.append(f"{place}: {said}")

    def said(self) -> tuple[str, ...]:
        """Give the notes in order; where there were very many, the last one counts the rest."""
        rest = self.count - len(self._said)
        return (*self._said, f"and {rest} changes more") if rest else tuple(self._said)
