"""Which calls to make next: first search, then search wider if nothing came, then read."""

from __future__ import annotations

import re
import shlex

from .evidence import Question, found_files, found_lines, question_of
from .history import Calls, History
from .topics import SOURCES
from .words import stem

MOST_FILES = 4
_LINES_READ = 300
_LINES_BEFORE = 40
_TEXTS = "*.{md,rst,txt,adoc}"
_LIKELY = ("README.md", "pyproject.toml", "package.json", "Cargo.toml", "go.mod")

_Call = tuple[str, dict[str, str | int]]


def next_calls(history: History) -> Calls:
    """Give the calls to make now; none where it is time to answer."""
    question = question_of(history.task)
    if not history.tried:
        return tuple(_first(history, question))
    if not found_files(history, question):
        return _untried(_wider(history, question), history)
    if "read_file" in history.tools and not any(c.name == "read_file" for c in history.tried):
        return tuple(_reads(history, question))
    return ()


def _first(history: History, question: Question) -> list[_Call]:
    calls: list[_Call] = []
    for path in question.paths[:3]:
        calls += _glob(history, f"**/{path.lstrip('./')}")
    for topic in question.topics:
        calls += _glob(history, topic.files)
        calls += _grep(history, topic.pattern, glob=topic.files.removeprefix("**/"))
        if topic.everywhere:
            calls += _grep(history, topic.pattern, glob=SOURCES)
    if question.names:
        calls += _grep(history, "|".join(rf"\b{re.escape(name)}\b" for name in question.names[:4]))
    if question.words:
        calls += _grep(history, _of_words(question), glob=_TEXTS if question.topics else None)
    if not calls and "glob" in history.tools:
        calls += _glob(history, "**/*")
    if not calls and "read_file" in history.tools:
        calls += [("read_file", {"file_path": path}) for path in question.paths or _LIKELY]
    return calls


def _wider(history: History, question: Question) -> list[_Call]:
    """Search all files for any part of any word, and list what there is."""
    parts = [stem(word)[:6] for word in (*question.words, *question.names)]
    calls = _grep(history, "(?i)" + "|".join(map(re.escape, parts))) if parts else []
    return [*calls, *_glob(history, "**/*")]


def _reads(history: History, question: Question) -> list[_Call]:
    """Read the best files, each around its best line."""
    best: dict[str, int] = {}
    for line in found_lines(history, question):
        best.setdefault(line.path, line.number)
    calls: list[_Call] = []
    for path in found_files(history, question)[:MOST_FILES]:
        first = max(best.get(path, 1) - _LINES_BEFORE, 1)
        window: dict[str, str | int] = {"limit": _LINES_READ}
        if best.get(path, 1) > _LINES_READ:
            window["offset"] = first
        calls.append(("read_file", {"file_path": path, **window}))
    return calls


def _of_words(question: Question) -> str:
    return r"(?i)\b(" + "|".join(re.escape(stem(word)) for word in question.words) + ")"


def _glob(history: History, pattern: str) -> list[_Call]:
    arguments: dict[str, str | int] = {"pattern": pattern}
    return [("glob", arguments)] if "glob" in history.tools else []


def _grep(history: History, pattern: str, glob: str | None = None) -> list[_Call]:
    """Search with grep, or with bash where that is all there is."""
    if "grep" in history.tools:
        only: dict[str, str | int] = {"glob": glob} if glob else {}
        return [("grep", {"pattern": pattern, **only})]
    if "bash" not in history.tools:
        return []
    command = f"grep -rnIP --exclude-dir=.git -e {shlex.quote(pattern)} . | head -n 300"
    return [("bash", dict[str, str | int](command=command))]


def _untried(calls: list[_Call], history: History) -> Calls:
    tried = [(call.name, call.arguments) for call in history.tried]
    return tuple(call for call in calls if call not in tried)
