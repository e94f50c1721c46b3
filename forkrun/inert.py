"""Makes text of a subagent inert: it stays readable, and cannot pass for anybody else's words.

The same text always gives the same text, and each rule leaves what it does visible:

1. Terminal escapes, control characters and invisible characters are taken out (joiners between
   letters that are not ASCII stay, as do tab and newline).
2. The `<` of a tag that hosts or models use for their own (`<system-reminder>`, `<user>`,
   `<tool_result>`, `<function_calls>`, our own marker, and each closing form) becomes U+2039, a
   quotation mark that looks much like it, and so does that of `<|…|>` and `<<SYS>>`; `[INST]`
   becomes `(INST)`.
3. A word for a role with a colon at the start of a line (`Human:`, `**System**:`) is put in quotes.

Wide forms of letters and signs count as the plain ones. Letters of other scripts that only look
alike do not.
"""

from __future__ import annotations

import re
import unicodedata

from forkrun.text import printable

QUOTE = "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}"
_ROLES = r"system|human|user|assistant|developer|tool"
_TAGS = (
    rf"(?:{_ROLES})(?:[-_:][\w:.-]*)?|antml\b[\w:.-]*|function_(?:calls?|results?)|invoke|parameter"
    r"|tool[-_](?:use|results?|calls?)|instructions?|subagent[\w-]*|task-notification|thinking"
    r"|important|admin|command-[\w-]+|local-command-[\w-]+|user-prompt[\w-]*|start_of_turn"
    r"|end_of_turn"
)
_OPEN = re.compile(rf"<(?=\s*/?\s*(?:{_TAGS})(?![\w-]))|<(?=\|)|<(?=<\s*/?\s*SYS\b)", re.IGNORECASE)
_GENERIC = re.compile(r"\w$")
_INST = re.compile(r"\[(\s*/?\s*(?:INST|SYSTEM|ASSISTANT|USER)\s*)\]", re.IGNORECASE)
_TURN = re.compile(rf"^([ \t>#*_`~-]*)({_ROLES})([ \t*_`~]*):", re.IGNORECASE | re.MULTILINE)


def inert(text: str) -> str:
    """Give text that imitates neither system text, nor roles, nor the marker around it."""
    text = _without_invisible(printable(text))
    folded = "".join(map(_plain, text))
    edits = [(at, at + 1, QUOTE) for at in _tags(folded)]
    for found in _INST.finditer(folded):
        edits += [(found.start(), found.start() + 1, "("), (found.end() - 1, found.end(), ")")]
    for found in _TURN.finditer(folded):
        start, end = found.span(2)
        edits.append((start, end, f'"{text[start:end]}"'))
    return _edited(text, edits)


def _tags(folded: str) -> list[int]:
    """Find the `<` of tags; one behind a letter opens a type parameter (`List<User>`) and stays,
    unless its tag has a hyphen, as no type has, or closes."""
    found = []
    for match in _OPEN.finditer(folded):
        tag = re.match(r"<\s*(/?)\s*[\w:.]*(-?)", folded[match.start() :])
        is_type = _GENERIC.search(folded[: match.start()][-1:]) and tag and not (tag[1] or tag[2])
        if not is_type:
            found.append(match.start())
    return found


def _without_invisible(text: str) -> str:
    if text.isascii():
        return text
    kept = []
    for at, char in enumerate(text):
        if unicodedata.category(char) == "Cf":
            around = text[max(0, at - 1) : at] + text[at + 1 : at + 2]
            if char not in "\u200c\u200d" or len(around) < 2 or not _is_foreign(around):
                continue
        kept.append(char)
    return "".join(kept)


def _is_foreign(around: str) -> bool:
    return all(ord(char) > 0x24F and unicodedata.category(char) != "Cf" for char in around)


def _plain(char: str) -> str:
    """Give the plain form of a wide or ornamental character, where that is one character too."""
    if char.isascii():
        return char
    plain = unicodedata.normalize("NFKC", char)
    return plain if len(plain) == 1 else char


def _edited(text: str, edits: list[tuple[int, int, str]]) -> str:
    parts, at = [], 0
    for start, end, new in sorted(edits):
        parts += [text[at:start], new]
        at = end
    return "".join(parts) + text[at:]
