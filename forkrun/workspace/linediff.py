"""Compare two texts line by line, in bounded time, and write hunks as diff(1) and git do."""

from __future__ import annotations

from collections.abc import Iterator

CONTEXT_LINES = 3
NO_NEWLINE = b"\\ No newline at end of file\n"
_MAX_EDITS = 400
_MAX_LINES = 50_000

Match = tuple[int, int, int]
"""(start in the old, start in the new, length), in lines from 0."""


def split_lines(content: bytes) -> list[bytes]:
    """Split after each newline and nowhere else (a lone CR is part of its line)."""
    lines = content.split(b"\n")
    last = lines.pop()
    return [line + b"\n" for line in lines] + ([last] if last else [])


def find_matches(old: list[bytes], new: list[bytes]) -> list[Match]:
    """Return what is equal, in order. Beyond some hundred edits only the ends are compared."""
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    middle = _shortest(old[head : len(old) - tail], new[head : len(new) - tail])
    found = [(0, 0, head)]
    found += [(one + head, other + head, length) for one, other, length in middle]
    found.append((len(old) - tail, len(new) - tail, tail))
    return [match for match in found if match[2]]


def write_hunks(old: list[bytes], new: list[bytes]) -> Iterator[bytes]:
    """Yield the hunks that turn the old lines into the new ones."""
    for group in _groups(_gaps(find_matches(old, new), len(old), len(new)), len(old)):
        yield _hunk(old, new, group)


Gap = tuple[int, int, int, int]
"""Lines that differ: (old start, old end, new start, new end)."""


def _gaps(matches: list[Match], old_length: int, new_length: int) -> list[Gap]:
    gaps, one, other = [], 0, 0
    for start, new_start, length in [*matches, (old_length, new_length, 0)]:
        if one < start or other < new_start:
            gaps.append((one, start, other, new_start))
        one, other = start + length, new_start + length
    return gaps


def _groups(gaps: list[Gap], old_length: int) -> list[list[Gap]]:
    """Put gaps whose contexts touch into one hunk."""
    groups: list[list[Gap]] = []
    for gap in gaps:
        if groups and gap[0] - groups[-1][-1][1] <= 2 * CONTEXT_LINES:
            groups[-1].append(gap)
        else:
            groups.append([gap])
    return groups


def _hunk(old: list[bytes], new: list[bytes], group: list[Gap]) -> bytes:
    start = max(0, group[0][0] - CONTEXT_LINES)
    new_start = group[0][2] - (group[0][0] - start)
    end = min(len(old), group[-1][1] + CONTEXT_LINES)
    new_end = group[-1][3] + (end - group[-1][1])
    ranges = (_range(start, end - start), _range(new_start, new_end - new_start))
    parts = [b"@@ -%b +%b @@\n" % ranges]
    at = start
    for one, one_end, other, other_end in group:
        parts += [_line(b" ", line) for line in old[at:one]]
        parts += [_line(b"-", line) for line in old[one:one_end]]
        parts += [_line(b"+", line) for line in new[other:other_end]]
        at = one_end
    parts += [_line(b" ", line) for line in old[at:end]]
    return b"".join(parts)


def _range(start: int, count: int) -> bytes:
    return b"%d,%d" % (start + 1 if count else start, count)


def _line(sign: bytes, line: bytes) -> bytes:
    return sign + line if line.endswith(b"\n") else sign + line + b"\n" + NO_NEWLINE


def _shortest(old: list[bytes], new: list[bytes]) -> list[Match]:
    """Find the matches of a shortest edit script (Myers 1986), or none beyond the bounds."""
    if not old or not new or len(old) + len(new) > _MAX_LINES:
        return []
    furthest = {1: 0}
    trace = []
    for edits in range(min(_MAX_EDITS, len(old) + len(new)) + 1):
        trace.append(dict(furthest))
        for diagonal in range(-edits, edits + 1, 2):
            at = _step(furthest, diagonal, edits)
            while at < len(old) and 0 <= at - diagonal < len(new) and old[at] == new[at - diagonal]:
                at += 1
            furthest[diagonal] = at
            if at >= len(old) and at - diagonal >= len(new):
                return _walk_back(trace, len(old), len(new))
    return []


def _step(furthest: dict[int, int], diagonal: int, edits: int) -> int:
    if _is_down(furthest, diagonal, edits):
        return furthest[diagonal + 1]
    return furthest[diagonal - 1] + 1


def _is_down(furthest: dict[int, int], diagonal: int, edits: int) -> bool:
    """Whether the best way onto a diagonal is an insertion, from the diagonal above."""
    if diagonal in (-edits, edits):
        return diagonal == -edits
    return furthest[diagonal - 1] < furthest[diagonal + 1]


def _walk_back(trace: list[dict[int, int]], at: int, other: int) -> list[Match]:
    found = []
    for edits in range(len(trace) - 1, -1, -1):
        furthest, diagonal = trace[edits], at - other
        start = _step(furthest, diagonal, edits) if edits else 0
        if at > start:
            found.append((start, start - diagonal, at - start))
        down = _is_down(furthest, diagonal, edits)
        at = start if down else start - 1
        other = start - diagonal - 1 if down else start - diagonal
    return found[::-1]
