"""Reads the head of a Markdown file: fields between two lines of `---`, then the text.

Files in the wild are often no strict YAML (`description: Use when: …`, an open bracket), and the
program that they were written for reads them all the same. So YAML is tried first, and where it
refuses, lines are read one by one. Every value stays text, or a list of texts.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

MAX_HEAD_CHARS = 64 * 1024
_FENCE = re.compile(r"(?:---|\.\.\.)[ \t]*")
_KEY = re.compile(r"([A-Za-z_][\w.-]*)[ \t]*:(?:[ \t]+(.*)|[ \t]*)")


class Field(msgspec.Struct, frozen=True):
    """The value of a key, and the line of the file that it begins on, counted from 1."""

    value: str | list[str]
    line: int


class Matter(msgspec.Struct, frozen=True, kw_only=True):
    """What a file holds. `faults` are sentences with their lines."""

    fields: dict[str, Field]
    body: str
    faults: tuple[tuple[int, str], ...] = ()


def read_matter(text: str) -> Matter | None:
    """Take a file apart; None where it does not begin with a line of `---`."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if not lines or not _FENCE.fullmatch(lines[0]) or lines[0].startswith("."):
        return None
    end = next((n for n, line in enumerate(lines) if n and _FENCE.fullmatch(line)), None)
    if end is None:
        return Matter(fields={}, body="", faults=((1, "the head has no closing line of ---"),))
    head, body = lines[1:end], "\n".join(lines[end + 1 :]).strip()
    if sum(map(len, head)) > MAX_HEAD_CHARS:
        fault = (1, f"the head is longer than {MAX_HEAD_CHARS} characters")
        return Matter(fields={}, body=body, faults=(fault,))
    fields, faults = _read_head(head)
    return Matter(fields=fields, body=body, faults=tuple(faults))


def _read_head(head: list[str]) -> tuple[dict[str, Field], list[tuple[int, str]]]:
    import yaml

    try:
        node = yaml.compose("\n".join(head), Loader=yaml.BaseLoader)
        if node is None:
            return {}, []
        if isinstance(node, yaml.MappingNode):
            return _of_yaml(node)
        why, line = "not a list of keys", 2
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        why = getattr(error, "problem", None) or "it cannot be read"
        line = mark.line + 2 if mark else 2
    fields, faults = _of_lines(head)
    return fields, [(line, f"no strict YAML ({why}), so read line by line"), *faults]


def _of_yaml(mapping: Any) -> tuple[dict[str, Field], list[tuple[int, str]]]:
    fields: dict[str, Field] = {}
    faults = []
    for key, value in mapping.value:
        line = key.start_mark.line + 2
        name = str(key.value)
        if name in fields:
            faults.append((line, f"{name} stands here for the second time; this one counts"))
        read = _yaml_value(value)
        if read is None:
            faults.append((line, f"{name} is neither text nor a list of texts"))
        else:
            fields[name] = Field(read, line)
    return fields, faults


def _yaml_value(node: Any) -> str | list[str] | None:
    if isinstance(node.value, str):
        return node.value
    if all(isinstance(item.value, str) for item in node.value if not isinstance(item, tuple)) and (
        not any(isinstance(item, tuple) for item in node.value)
    ):
        return [item.value for item in node.value]
    return None


def _of_lines(head: list[str]) -> tuple[dict[str, Field], list[tuple[int, str]]]:
    """Read `key: value` where a line begins with a key; other lines go on with what is above."""
    found: list[tuple[str, int, list[str]]] = []
    faults = []
    for number, line in enumerate(head, start=2):
        match = _KEY.fullmatch(line.rstrip())
        if match:
            found.append((match[1], number, [match[2] or ""]))
        elif found:
            found[-1][2].append(line)
        elif line.strip() and not line.lstrip().startswith("#"):
            faults.append((number, "a line before the first key means nothing"))
    return {name: Field(_joined(lines), line) for name, line, lines in found}, faults


def _joined(lines: list[str]) -> str | list[str]:
    first, rest = lines[0].strip(), [line.strip() for line in lines[1:]]
    if first in ("|", ">", "|-", ">-", "|+", ">+"):
        return ("\n" if first[0] == "|" else " ").join(rest).strip()
    items = [line for line in rest if line]
    if not first and items and all(line.startswith("-") for line in items):
        return [_unquoted(line[1:].strip()) for line in items]
    return _unquoted("\n".join([first, *rest]).strip())


def _unquoted(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        text = text[1:-1].replace("\\n", "\n").replace('\\"', '"')
    return text
