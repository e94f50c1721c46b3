"""Draw tables as bars: SVG by hand, PNG where a program that converts is at hand."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from html import escape

from _bench.measure import Row, Table
from _bench.report import number

WIDTH, NAMES, BAR, ROW, HEAD = 900, 380, 380, 24, 48
OURS, THEIRS, INK, FAINT = "#2f6f4f", "#9aa5b1", "#1f2933", "#7b8794"
_CONVERTERS = (
    ("rsvg-convert", ["rsvg-convert", "-o"]),
    ("magick", ["magick", "svg:-"]),
)


def write(path: str, tables: Sequence[Table]) -> None:
    """Write the tables into FILE.svg or FILE.png."""
    drawn = svg([table for table in tables if any(row.values for row in table.rows)])
    if not path.endswith(".png"):
        with open(path, "w", encoding="utf-8") as file:
            file.write(drawn)
        return
    for name, argv in _CONVERTERS:
        if shutil.which(name):
            subprocess.run([*argv, path], input=drawn.encode(), check=True)
            return
    sys.exit("a PNG needs rsvg-convert or magick; name a file that ends with .svg instead")


def svg(tables: Sequence[Table]) -> str:
    """Give the drawing: one block for each table, a bar for each median, a line for the spread."""
    blocks, y = [], 0
    for table in tables:
        rows = [row for row in table.rows if row.values]
        blocks.append(_block(table, rows, y))
        y += HEAD + ROW * len(rows) + ROW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" '
        f'viewBox="0 0 {WIDTH} {y}" font-family="sans-serif" font-size="13">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(blocks)}</svg>\n'
    )


def _block(table: Table, rows: Sequence[Row], y: int) -> str:
    top = max(1e-9, *(row.spread[1] for row in rows))
    title = f"{table.title}{f' ({table.unit})' if table.unit else ''}"
    parts = [f'<text x="12" y="{y + 28}" font-weight="bold" fill="{INK}">{escape(title)}</text>']
    for place, row in enumerate(rows):
        parts.append(_bar(row, y + HEAD + place * ROW, top=top))
    return "".join(parts)


def _bar(row: Row, y: int, *, top: float) -> str:
    low, high = (value / top * BAR for value in row.spread)
    width = max(1.0, row.median / top * BAR)
    is_ours = any(word in row.name for word in ("forkrun", "warm", "cold", "zygote", "forks of"))
    middle = y + ROW / 2
    name = row.name.replace("`", "")
    return (
        f'<text x="{NAMES - 8}" y="{middle + 4}" text-anchor="end" fill="{INK}">'
        f"{escape(name)}</text>"
        f'<rect x="{NAMES}" y="{y + 4}" width="{width:.1f}" height="{ROW - 8}" '
        f'fill="{OURS if is_ours else THEIRS}"/>'
        f'<line x1="{NAMES + low:.1f}" x2="{NAMES + high:.1f}" y1="{middle}" y2="{middle}" '
        f'stroke="{INK}" stroke-width="1"/>'
        f'<text x="{NAMES + max(width, high) + 8:.1f}" y="{middle + 4}" fill="{FAINT}">'
        f"{number(row.median)}</text>"
    )
