"""Measure contenders in turn, A B A B, so that what the machine does meanwhile meets all alike."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Row:
    """The values of one contender; `note` says what kept it from being measured."""

    name: str
    values: Sequence[float] = ()
    note: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> tuple[float, float]:
        """The 10th and the 90th percentile."""
        ordered = sorted(self.values)
        last = len(ordered) - 1
        return ordered[round(last * 0.1)], ordered[round(last * 0.9)]


@dataclass(frozen=True, kw_only=True)
class Table:
    """What was measured. `baseline` names the row that the others are divided by."""

    title: str
    unit: str
    rows: Sequence[Row]
    baseline: str | None = None
    notes: Sequence[str] = field(default_factory=tuple)

    def row(self, name: str) -> Row | None:
        """Give the row of this name, if it was measured."""
        return next((row for row in self.rows if row.name == name and row.values), None)


Once = Callable[[], float]


def in_turn(contenders: Mapping[str, Once], *, rounds: int, warm_up: int = 1) -> list[Row]:
    """Measure each contender `rounds` times, one after the other in every round.

    One that fails is measured no more, and its row says why.
    """
    values: dict[str, list[float]] = {name: [] for name in contenders}
    failed: dict[str, str] = {}
    for number in range(-warm_up, rounds):
        for name, once in contenders.items():
            if name in failed:
                continue
            try:
                value = once()
            except Exception as error:  # noqa: BLE001 - a peer may fail in any way
                failed[name] = f"{type(error).__name__}: {error}"
                continue
            if number >= 0:
                values[name].append(value)
        print(f"\rround {max(number + 1, 0)} of {rounds} ", end="", file=sys.stderr, flush=True)
    print("\r" + " " * 30 + "\r", end="", file=sys.stderr, flush=True)
    return [
        Row(name=name, values=() if name in failed else values[name], note=failed.get(name, ""))
        for name in contenders
    ]
