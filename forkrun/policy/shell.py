"""Read a bash command: which simple commands are in it, wherever they stand, and what is uncertain.

The grammar is tree-sitter's (MIT licence), imported when the first command is read. A parser made
for editors guesses where bash would not, so its tree is believed only where it accounts for every
byte in the way bash does; what remains is a `doubt`, and a doubt denies.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from forkrun.policy.glob import HELD, WILD

MAX_COMMAND_CHARS = 65_536
MAX_PARSE_S = 0.5  # of processor time: some texts that do not parse take long


# Control characters but tab and newline, blanks that are none to bash, and halves of surrogate
# pairs that stand for no byte.
_AMBIGUOUS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f\x85\xa0\u1680\u2000-\u200f\u2028-\u202f\u205f\u3000\ufeff"
    r"\ud800-\udc7f\udd00-\udfff]"
)


class Word(msgspec.Struct, frozen=True):
    """A word as written, and what it stands for: without its quotes, `WILD` where that is unknown,
    `HELD` for a blank inside of it."""

    raw: str
    value: str

    @property
    def is_known(self) -> bool:
        """Whether it is known before the command runs what the word stands for."""
        return WILD not in self.value

    @property
    def text(self) -> str:
        """What the word stands for, its blanks as blanks."""
        return self.value.replace(HELD, " ")


class Assignment(msgspec.Struct, frozen=True):
    """`NAME=value`; the value is None for an array."""

    name: str
    value: Word | None
    raw: str


class Command(msgspec.Struct, frozen=True):
    """A simple command: the assignments before it and its words."""

    assignments: tuple[Assignment, ...]
    words: tuple[Word, ...]

    @property
    def raw(self) -> str:
        """The words as written, one blank between two."""
        return " ".join(word.raw for word in self.words)

    @property
    def value(self) -> str:
        """What the words stand for, one blank between two."""
        return " ".join(word.value or HELD for word in self.words)

    @property
    def shown(self) -> str:
        """The command as a reason quotes it."""
        whole = " ".join([*(a.raw for a in self.assignments), *(w.raw for w in self.words)])
        return whole if len(whole) <= 200 else whole[:197] + "..."


class Redirect(msgspec.Struct, frozen=True):
    """`operator` without the descriptor before it (">", "<&"); `target` is None for `>&-`."""

    operator: str
    target: Word | None
    raw: str


class Node(Protocol):
    """What is needed of a node of the parser's tree; its places count bytes."""

    @property
    def type(self) -> str: ...
    @property
    def is_named(self) -> bool: ...
    @property
    def has_error(self) -> bool: ...
    @property
    def start_byte(self) -> int: ...
    @property
    def end_byte(self) -> int: ...
    @property
    def child_count(self) -> int: ...
    @property
    def children(self) -> Sequence[Node]: ...
    def child_by_field_name(self, name: str, /) -> Node | None: ...


class Script(msgspec.Struct):
    """What a command text holds. `beyond` names what is more than lists and pipelines of simple
    commands; `doubts` what is not certain at all."""

    commands: list[Command] = []
    redirects: list[Redirect] = []
    beyond: list[str] = []
    doubts: list[str] = []


def read_script(text: str) -> Script:
    """Read a command text. Never raises: what cannot be read is a doubt."""
    from forkrun.policy.tree import fill

    script = Script()
    doubt = _unreadable(text)
    if doubt is None:
        source = text.encode("utf-8", "surrogateescape")
        try:
            root = _parse(source)
        except ImportError as error:
            doubt = f"the shell parser is not installed: {error.name}"
        else:
            if root is not None:
                fill(script, source=source, root=root)
                return script
            doubt = "it takes too long to parse"
    script.doubts.append(doubt)
    return script


def load_parser() -> Any:
    """Import the grammar (30 ms the first time) and make a `tree_sitter.Parser`."""
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def _parse(source: bytes) -> Node | None:
    parser = load_parser()
    end_s = time.thread_time() + MAX_PARSE_S
    try:
        tree = parser.parse(
            lambda offset, _point: source[offset:],
            progress_callback=lambda _offset, _failed: time.thread_time() > end_s,
        )
    except ValueError:  # what tree-sitter raises when it was stopped
        return None
    root: Node = tree.root_node
    return root


def _unreadable(text: str) -> str | None:
    if len(text) > MAX_COMMAND_CHARS:
        return f"it is longer than {MAX_COMMAND_CHARS:,} characters"
    found = _AMBIGUOUS.search(text)
    if found:
        return f"the character {found[0]!r} means different things to different readers"
    return None
