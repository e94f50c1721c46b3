"""The answer: a sentence that says it where one can, then the lines that show it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .evidence import (
    Line,
    Question,
    defines,
    found_files,
    found_lines,
    is_aside,
    question_of,
    speaks_of,
)
from .history import History, Said
from .topics import Topic
from .words import stem

MOST_LINES = 14
MOST_OF_FILE = 10
MOST_NAMES = 3
_LINE_CHARACTERS = 240
_CLOSE = 2.0  # how much less than the best a second answer may weigh


def answer(history: History) -> str:
    """Answer the task with what the calls have brought to light so far."""
    question = question_of(history.task)
    lines = found_lines(history, question)
    sentences = [_of_topic(topic, lines) for topic in question.topics]
    sentences += [_of_name(name, lines) for name in question.names]
    shown = _shown(lines, least=0.75 if any(sentences) else 0.55)
    parts = [
        " ".join(filter(None, sentences)) or _otherwise(history, question, lines=shown),
        "\n".join(f"{line.path}:{line.number}: {_clipped(line.text)}" for line in shown),
        _quotes(history.said, question),
        _failures(history),
    ]
    return "\n\n".join(filter(None, parts))


def _of_topic(topic: Topic, lines: Sequence[Line]) -> str:
    """Say what the topic's lines name, the best supported first; "" where they name nothing."""
    on_tests = "test" in topic.words.split()
    lines = [
        line
        for line in lines
        if speaks_of(topic, line.path, line.text) and (on_tests or not is_aside(line.path))
    ]
    if not topic.names:
        paths = list(dict.fromkeys(line.path for line in lines[:MOST_LINES]))[:2]
        return topic.sentence.format(where=" and ".join(paths)) if paths else ""
    support: dict[str, list[Line]] = {}
    for line in lines:
        for what in _named_in(topic, line.text):
            support.setdefault(what, []).append(line)
    if not support:
        return ""
    weights = {what: _support(evidence) for what, evidence in support.items()}
    ranked = sorted(weights, key=lambda what: (weights[what], what))
    limit = 1 if "" in topic.names else MOST_NAMES
    close = [what for what in ranked if weights[what] <= weights[ranked[0]] + _CLOSE][:limit]
    first = min(support[ranked[0]])
    return topic.sentence.format(what=_listed(close), where=f"{first.path}:{first.number}")


def _support(evidence: Sequence[Line]) -> float:
    """Rank an answer by its best line, and by how many more are nearly as good."""
    best = min(evidence).rank
    return best - 0.3 * min(sum(line.rank <= best + _CLOSE for line in evidence), 6)


def _named_in(topic: Topic, text: str) -> list[str]:
    found = []
    for name, pattern in topic.names.items():
        match = re.search(pattern, text, re.IGNORECASE)
        if match:
            found.append(name or next(group for group in match.groups() if group))
    return found


def _of_name(name: str, lines: Sequence[Line]) -> str:
    places = [line for line in lines if defines(name, line.text)]
    if not places:
        return ""
    return f"`{name}` is defined in {places[0].path}:{places[0].number}."


def _otherwise(history: History, question: Question, *, lines: Sequence[Line]) -> str:
    """Say, where no sentence answers, what was searched and what came of it."""
    searched = (*question.paths, *question.names, *question.words)
    topics = (word for topic in question.topics for word in topic.words.split()[:3])
    words = ", ".join(searched or topics) or "all files"
    if not history.tools:
        return (
            "I have no tools in this run and I am not a language model, so I cannot answer this. "
            f"With grep, glob and read_file I would search for: {words}."
        )
    if lines:
        return f"No single line answers this; these come closest (searched for: {words})."
    files = found_files(history, question)
    if files:
        listed = "\n".join(files[:MOST_LINES])
        return f"No line speaks to this (searched for: {words}). Files that may:\n{listed}"
    patterns = ", ".join(dict.fromkeys(call.subject for call in history.tried if call.subject))
    return f"Nothing in this workspace speaks to this. Searched for: {words} (as {patterns})."


def _shown(lines: Sequence[Line], *, least: float) -> list[Line]:
    """Choose the best lines, not all from one file, and put those of a file together.

    `least` is how much of the best line's rank a line must have.
    """
    chosen: list[Line] = []
    for line in lines:
        of_file = sum(other.path == line.path for other in chosen)
        if of_file < MOST_OF_FILE and line.rank <= least * lines[0].rank:
            chosen.append(line)
        if len(chosen) == MOST_LINES:
            break
    files = list(dict.fromkeys(line.path for line in chosen))
    return sorted(chosen, key=lambda line: (files.index(line.path), line.number))


def _quotes(said: Sequence[Said], question: Question) -> str:
    """Quote what the conversation before the task said about it, the last words first."""
    wanted = {stem(word) for word in question.words} | set(question.names)
    found = []
    for text in reversed([line for each in said for line in each.text.splitlines()]):
        words = {stem(word) for word in re.findall(r"[^\W\d_]{2,}", text)} | set(text.split())
        if len(wanted & words) >= max(1, len(wanted) // 2):
            found.append(f"- {_clipped(text)}")
    return "From the conversation:\n" + "\n".join(found[:4]) if found else ""


def _failures(history: History) -> str:
    failed = [call for call in history.tried if call.is_error]
    reasons = {f"- {call.name}: {_clipped(call.result or '')}": None for call in failed}
    return f"{len(failed)} calls failed:\n" + "\n".join(list(reasons)[:4]) if failed else ""


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _clipped(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LINE_CHARACTERS else f"{text[: _LINE_CHARACTERS - 2]} …"
