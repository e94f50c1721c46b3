"""Notes on a conversation: what was decided, touched, run and left open, also into a file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Set

from .history import Call, Calls, History, Said

MOST_ENTRIES = 10
_ENTRY_CHARACTERS = 200
HEADING = "## Notes from the conversation"

_ASKS = re.compile(
    r"(?i)\b(?:summar\w+|notes?|memory|recap\w*|handover|hand-over|compact\w*|session|decisions?"
    r"|extract\w*|what (?:was|have we|has been|did we)|open points?)\b"
)
_FILE = re.compile(
    r"(?<![\w/.-])(?:[\w.-]+/)*[\w-][\w.-]*\.(?:md|txt|rst|org)\b|/(?:[\w.-]+/)*[\w.-]+\.(?:md|txt)\b"
)
_WRITES = re.compile(r"(?i)write|edit|create|patch|replace|insert|delete|remove")
_DECIDED = re.compile(
    r"(?i)\b(?:decid\w+|decision|agreed|chose\w*|we(?:'ll| will| should| use)|let's|instead of|"
    r"prefer\w*|settled|must|always|never|rule|going with|don't|do not)\b"
)
_OPEN = re.compile(
    r"(?i)\b(?:todo|fixme|open (?:point|question|issue)s?|remain\w*|still|next(?: step)?|not yet"
    r"|later|unresolved|blocked|missing|follow.?up|unclear)\b|\?\s*$"
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"'(-])|\n+")
_LAST_LINES = 6


def wants_notes(history: History) -> bool:
    """Tell whether the task is about the conversation before it."""
    return len(history.said) + len(history.done) > 1 and bool(_ASKS.search(history.task))


def note_down(history: History) -> Calls | str:
    """Write the notes into the file that the task names, where it names one; then say them."""
    notes = conversation_notes(history)
    path = _file_named(history)
    if not path or history.must_finish or not history.tools.keys() & {"write_file", "edit_file"}:
        return notes
    written = [call for call in history.tried if _WRITES.search(call.name)]
    if written:
        return f"{_outcome(written[-1], path)}\n\n{notes}"
    read = next((call for call in history.tried if call.name == "read_file"), None)
    if read is None and "read_file" in history.tools:
        return (("read_file", {"file_path": path}),)
    calls = _write(path, notes, read=read, tools=history.tools.keys())
    return calls or f"Not written to {path}: {_why_not(read)}\n\n{notes}"


def conversation_notes(history: History) -> str:
    """Give the notes as Markdown; sections with nothing in them are left out."""
    first = next((said.text for said in history.said if said.role == "user"), "")
    sentences = [s for said in history.said for s in _sentences(said)]
    touched = [
        call for call in history.done if call.arguments.get("command") is None and call.subject
    ]
    sections = {
        "Task": [_clipped(first)] if first else [],
        "Decisions": _chosen(sentences, _DECIDED),
        "Files changed": _chosen_subjects(touched, writes=True),
        "Files read": _chosen_subjects(touched, writes=False),
        "Commands": [_command(call) for call in history.done if call.arguments.get("command")],
        "Errors": [
            f"{call.name} {_clipped(call.subject)}: {_clipped(call.result or '')}"
            for call in history.done
            if call.is_error and call.result
        ],
        "Open points": [
            *_chosen(sentences, _OPEN),
            *(
                f"no result yet: {c.name} {_clipped(c.subject)}"
                for c in history.done
                if not c.result
            ),
        ],
        "Last said": [
            _clipped(s) for said in history.said[-1:] for s in _sentences(said)[:_LAST_LINES]
        ],
    }
    parts = [HEADING]
    for title, entries in sections.items():
        unique = list(dict.fromkeys(entries))[-MOST_ENTRIES:]
        if unique:
            parts.append(f"### {title}\n" + "\n".join(f"- {entry}" for entry in unique))
    return "\n\n".join(parts)


def _write(path: str, notes: str, *, read: Call | None, tools: Set[str]) -> Calls:
    """Give the call that puts the notes at the end of the file; none where it cannot be done."""
    rows = _rows(read)
    if rows is None:  # there is no such file, or it cannot be seen
        exists = read is not None and not read.is_error
        if "write_file" in tools and not exists:
            return (("write_file", {"file_path": path, "content": f"{notes}\n"}),)
        return ()
    if "edit_file" in tools and any(row.strip() for row in rows):
        end = _unique_end(rows)
        return (
            (
                "edit_file",
                {"file_path": path, "old_string": end, "new_string": f"{end}\n\n{notes}"},
            ),
        )
    if "write_file" in tools:
        before = "\n".join(rows)
        content = f"{before}\n\n{notes}\n" if before.strip() else f"{notes}\n"
        return (("write_file", {"file_path": path, "content": content}),)
    return ()


def _rows(read: Call | None) -> list[str] | None:
    """Give the lines of a file that was read whole, else None."""
    if read is None or read.is_error or read.result is None:
        return None
    rows = read.result.splitlines()
    notes = [row for row in rows if row.startswith("[")]
    if any("lines 1 to" in note or "offset" in note for note in notes):
        return None
    matches = [re.fullmatch(r" *\d+\t(.*)", row) for row in rows if not row.startswith("[")]
    return [match[1] for match in matches if match]


def _unique_end(rows: Sequence[str]) -> str:
    """Give the fewest lines of the end, blank ones aside, that stand only once in the file."""
    text = "\n".join(rows).rstrip()
    lines = text.split("\n")
    for count in range(1, len(lines) + 1):
        end = "\n".join(lines[-count:])
        if text.count(end) == 1:
            return end
    return text


def _outcome(call: Call, path: str) -> str:
    if call.is_error:
        return f"Not written to {path}: {_clipped(call.result or 'the call failed')}"
    return f"The notes stand in {path}."


def _why_not(read: Call | None) -> str:
    if read is not None and read.is_error:
        return _clipped(read.result or "it could not be read")
    return "it is too long to be read whole, or no tool of this run can write it."


def _file_named(history: History) -> str:
    match = _FILE.search(history.task)
    return match[0] if match else ""


def _sentences(said: Said) -> list[str]:
    parts = (part.strip(" \t#*->") for part in _SENTENCE.split(said.text))
    return [part for part in parts if len(part) > 3]


def _chosen(sentences: Iterable[str], pattern: re.Pattern[str]) -> list[str]:
    return [_clipped(sentence) for sentence in sentences if pattern.search(sentence)]


def _chosen_subjects(calls: Iterable[Call], *, writes: bool) -> list[str]:
    keys = ("file_path", "path", "notebook_path")
    return [
        call.subject
        for call in calls
        if bool(_WRITES.search(call.name)) == writes and any(call.arguments.get(k) for k in keys)
    ]


def _command(call: Call) -> str:
    first = call.subject.strip().partition("\n")[0]
    return f"`{_clipped(first)}`" + (" (failed)" if call.is_error else "")


def _clipped(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _ENTRY_CHARACTERS else f"{text[: _ENTRY_CHARACTERS - 2]} …"
