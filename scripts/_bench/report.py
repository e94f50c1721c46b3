"""Tables as Markdown."""

from __future__ import annotations

from _bench.measure import Row, Table


def markdown(table: Table) -> str:
    """Give a table: median, spread (10th to 90th percentile), ratio to the baseline."""
    base = table.row(table.baseline) if table.baseline else None
    head = ["", f"median, {table.unit}", "10-90 %", *(["ratio"] if base else []), "n"]
    lines = [f"### {table.title}", "", _line(head), _line(["---", *(["---:"] * (len(head) - 1))])]
    lines += [_line(_cells(row, base=base, width=len(head))) for row in table.rows]
    return "\n".join([*lines, *(f"\n{note}" for note in table.notes)])


def _cells(row: Row, *, base: Row | None, width: int) -> list[str]:
    if not row.values:
        note = " ".join((row.note or "not measured").split())[:160]
        return [row.name, f"- ({note})", *([""] * (width - 2))]
    low, high = row.spread
    ratio = [f"{row.median / base.median:.2f}"] if base else []
    return [
        row.name,
        number(row.median),
        f"{number(low)}-{number(high)}",
        *ratio,
        str(len(row.values)),
    ]


BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def replace_measured(path: str, text: str) -> None:
    """Put text between the two marks of a Markdown file, in the place of what stood there."""
    with open(path, encoding="utf-8") as file:
        before, _, rest = file.read().partition(BEGIN)
        _, _, after = rest.partition(END)
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def number(value: float) -> str:
    """Give three digits that count."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
