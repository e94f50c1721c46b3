"""The lines that were found, and how much each says to the question."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatch

import msgspec

from .history import Call, History
from .topics import MANIFESTS, Topic
from .words import STOP_WORDS, stem, topics_of, words_of

_HIT = re.compile(r"(?:\./)?([^:\n]+):(\d+):(.*)")
_NUMBERED = re.compile(r" *(\d+)\t(.*)")
_IN_TICKS = re.compile(r"`([^`\n]+)`")
_COMPOUND = re.compile(r"\b(?:\w+(?:_\w+)+|[a-z]+(?:[A-Z]\w+)+|(?:[A-Z][a-z0-9]+){2,})\b")
_CALLED = re.compile(r"\b(?:class|function|method|struct|constant|variable) (\w+)")
_PATH = re.compile(
    r"(?<![\w/.-])(?:[\w.-]+/)*[\w-]*\.?[\w-]+\.[A-Za-z]\w{0,5}\b|(?:[\w.-]+/)+[\w.-]+"
)
_DEFINES = (
    r"\b(?:def|class|func|function|fn|struct|enum|trait|interface|type|const|let|var|module)\s+"
)
_GENERATED = (
    "*.lock", "*-lock.*", "*.min.*", "*.map", "*.svg", "*.snap", "CHANGELOG*", "CHANGES*",
    "HISTORY*", "History*", "*.ipynb", "go.sum", "*.csv", "*.jsonl",
)  # fmt: skip
_ASIDE = re.compile(
    r"(?:^|/)(?:tests?|testing|fixtures?|examples?|docs?|benchmarks?|vendor|third_party)/"
)
_IS_PATTERN = re.compile(r"\\[bsdw]|\(\?[:i]")  # a pattern is not a fact
_THIS_FILE = 8.0
_MOST_BELOW = 12
_OPENS = re.compile(r"""^\[|[\[{(]\s*$|\"{3}\s*$""")
_CLOSING = ("]", "}", ")", '"""')


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What a task asks, as far as words tell: topics, words, names of code, paths of files."""

    topics: tuple[Topic, ...]
    words: tuple[str, ...]
    names: tuple[str, ...]
    paths: tuple[str, ...]


class Line(msgspec.Struct, frozen=True, order=True):
    """One line of a file; the smaller, the more it says."""

    rank: float
    path: str
    number: int
    text: str


def question_of(task: str) -> Question:
    """Read the words of a task."""
    quoted = [name for name in _IN_TICKS.findall(task) if re.fullmatch(r"[\w.:$-]+", name)]
    paths = [
        path for path in _PATH.findall(task) if not re.fullmatch(r"[\d.]+|[ei]\.[ge]\.?", path)
    ]
    called = [name for name in _CALLED.findall(task) if stem(name) not in STOP_WORDS]
    names = [n for n in (*quoted, *_COMPOUND.findall(task), *called) if n not in paths]
    rest = re.sub("|".join(map(re.escape, (*paths, *names))) or "$^", " ", task)
    return Question(
        topics=tuple(topics_of(rest)),
        words=tuple(words_of(rest)[:8]),
        names=tuple(dict.fromkeys(names)),
        paths=tuple(dict.fromkeys(paths)),
    )


def found_lines(history: History, question: Question) -> list[Line]:
    """Give the lines that were found and say something, what says most first, each once."""
    rows = {(path, number): text for path, number, text in _rows(history.tried) if text.strip()}
    weights = {place: weight_of(place[0], text, question) for place, text in rows.items()}
    for topic in question.topics:
        if topic.heads_block:
            _weigh_blocks(topic, rows, weights)
    telling = sorted(
        Line(-weight, *place, rows[place]) for place, weight in weights.items() if weight > 0
    )
    in_named = [line for line in telling if _named(line.path, question) >= _THIS_FILE]
    return in_named or telling


def found_files(history: History, question: Question) -> list[str]:
    """Give the files that were found, the most promising first."""
    best: dict[str, float] = {}
    for line in found_lines(history, question):
        best[line.path] = min(best.get(line.path, 0.0), line.rank)
    for call in history.tried:
        if call.name == "glob" and call.result and not call.is_error:
            for path in call.result.splitlines():
                if path and not path.startswith("[") and not path.endswith("/"):
                    best.setdefault(path, -_place_weight(path, question) - _named(path, question))
    return sorted(best, key=lambda path: (best[path], path))


def _weigh_blocks(
    topic: Topic, rows: dict[tuple[str, int], str], weights: dict[tuple[str, int], float]
) -> None:
    """Give the lines below one that matches its weight, until a blank line or a new part."""
    for (path, number), text in rows.items():
        if not speaks_of(topic, path, text) or not _OPENS.search(text):
            continue
        for below in range(number + 1, number + _MOST_BELOW):
            line = rows.get((path, below), "")
            if not line or line.startswith("[") or line.strip().startswith(_CLOSING):
                break
            weights[path, below] = max(weights[path, below], weights[path, number])


def _rows(calls: tuple[Call, ...]) -> Iterator[tuple[str, int, str]]:
    """Give path, number and text of each line that a call printed."""
    for call in calls:
        if not call.result or call.is_error:
            continue
        pattern = _NUMBERED if call.name == "read_file" else _HIT
        for row in call.result.splitlines():
            match = pattern.fullmatch(row)
            if match and call.name == "read_file":
                yield call.subject, int(match[1]), match[2]
            elif match and call.name in ("grep", "bash"):
                yield match[1], int(match[2]), match[3]


def weight_of(path: str, text: str, question: Question) -> float:
    """Weigh a line: what it says, and then where it stands; 0 where it says nothing."""
    says = sum(3.0 + 3.0 * defines(name, text) for name in question.names if name in text)
    for place, topic in enumerate(question.topics):
        if speaks_of(topic, path, text):
            named = any(re.search(p, text, re.IGNORECASE) for p in topic.names.values())
            says += (6.0 if named else 1.0 if topic.names else 4.0) / (1 + place)
    stems = {stem(word) for word in re.findall(r"[^\W\d_]{2,}", text)}
    words = sum(stem(word) in stems for word in question.words)
    says += 1.5 * min(words, 4) * (0.5 + words / max(len(question.words), 1))
    if _named(path, question) >= _THIS_FILE and re.match("#+ ", text):
        says += 1.0
    if _IS_PATTERN.search(text):
        says /= 4
    return says and max(says + _place_weight(path, question) + _named(path, question), 0.1)


def defines(name: str, text: str) -> bool:
    """Tell whether a line defines this name."""
    escaped = re.escape(name)
    return bool(re.search(rf"{_DEFINES}{escaped}\b|^\s*{escaped}\s*(?::[^=]*)?=[^=]", text))


def speaks_of(topic: Topic, path: str, text: str) -> bool:
    """Tell whether a line can hold a topic's answer: not in every file, and not in a comment."""
    is_comment = text.lstrip().startswith(("# ", "//")) and not path.endswith(".md")
    in_scope = topic.everywhere or matches(topic.files, path)
    return in_scope and not is_comment and bool(re.search(topic.pattern, text))


def is_aside(path: str) -> bool:
    """Tell whether a file only tries out, shows or describes what the project is."""
    return bool(_ASIDE.search(path))


def matches(glob: str, path: str) -> bool:
    """Match a path by a glob of the form `**/{a,b,c/*}`."""
    choices = glob.removeprefix("**/").strip("{}").split(",")
    name = path.rpartition("/")[2]
    return any(
        fnmatch(path, f"*{choice}") if "/" in choice else fnmatch(name, choice)
        for choice in choices
    )


def _place_weight(path: str, question: Question) -> float:
    weight = -0.4 * path.count("/")
    if matches("{" + ",".join(_GENERATED) + "}", path):
        weight -= 4.0
    elif any(matches(topic.files, path) for topic in question.topics[:1]):
        weight += 2.0
    if question.topics and matches(f"{{{MANIFESTS}}}", path):
        weight += 1.5
    if is_aside(path):
        weight -= 3.5
    return weight


def _named(path: str, question: Question) -> float:
    """Weigh a path by what of it the task names."""
    if any(path == named or path.endswith(f"/{named}") for named in question.paths):
        return _THIS_FILE
    parts = {stem(part) for part in re.findall(r"[^\W\d_]{2,}", path)}
    return 1.0 * sum(stem(word) in parts for word in question.words)
