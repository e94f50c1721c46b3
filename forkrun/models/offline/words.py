"""The words of a prompt: which are worth searching for, and what they are about."""

from __future__ import annotations

import re

from .topics import TOPICS, Topic

_STOP_WORDS = """
    a about all also am an and any are as at be been being but by can could did do doe done each
    either every find for from get give had ha have he her here him hi how i if in into is it its
    just know let like list look make many may me might more most much my name need no not of on one
    or other our out over please read say see shall she should show so some such tell than that the
    their them then there these they thi this those to too us use used using very want wa we were
    what when where which while who whom whose why will with work would you your codebase code repo
    repository project file explain describ summar summari summaris summariz answer question
"""
_ENDINGS = (("ies", "y"), ("ing", ""), ("ed", ""), ("es", ""), ("s", ""), ("e", ""))
STOP_WORDS = frozenset(_STOP_WORDS.split())


def stem(word: str) -> str:
    """Take the endings off an English word, so that what belongs together becomes the same."""
    word = word.lower()
    for ending, instead in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            return word[: -len(ending)] + instead
    return word


def words_of(text: str) -> list[str]:
    """Give the words of a text that are worth searching for, each once, in their order."""
    found = re.findall(r"[^\W\d]\w*(?:[-.]\w+)*", text)
    worth = [w for w in found if stem(w) not in STOP_WORDS and w.lower() not in STOP_WORDS]
    return list(dict.fromkeys(w for w in worth if len(w) > 1))


def topics_of(text: str) -> list[Topic]:
    """Give the topics that a question is about, the nearest first, at most two."""
    stems = [stem(word) for word in re.findall(r"[^\W\d_]+", text)]
    scored = []
    for topic in TOPICS:
        hits = sum(stems.count(stem(word)) for word in topic.words.split())
        if hits:
            scored.append((hits, topic))
    if len(scored) > 1 and "about" not in stems:
        scored = [pair for pair in scored if pair[1] is not TOPICS[-1]] or scored
    scored.sort(key=lambda pair: -pair[0])
    return [topic for _, topic in scored[:2]]
