"""Read a bash command: which simple commands are in it, wherever they stand, and what is uncertain.

The grammar is tree-sitter's (MIT licence), imported when the first command is read. A parser made
for editors guesses where bash would not, so its tree is believed only where it accounts for every
byte in the way bash does; what remains is a `doubt`, and a doubt denies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forkrun.policy.glob import HELD, WILD

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

MAX_COMMAND_CHARS = 100_000
RESERVED = frozenset(
    "if then else elif fi do done case esac while until for select function { } [[ ]] coproc in !".split()
)


@dataclass(frozen=True, slots=True)
class Word:
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


@dataclass(frozen=True, slots=True)
class Assignment:
    """`NAME=value`; the value is None for an array."""

    name: str
    value: Word | None
    raw: str


@dataclass(frozen=True, slots=True)
class Command:
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


@dataclass(frozen=True, slots=True)
class Redirect:
    """`operator` without the descriptor before it (">", "<&"), and where it leads, None for `>&-`."""

    operator: str
    target: Word | None
    raw: str


@dataclass(slots=True)
class Script:
    """What a command text holds. `beyond` names what is more than lists and pipelines of simple
    commands; `doubts` what is not certain at all."""

    commands: list[Command] = field(default_factory=list)
    redirects: list[Redirect] = field(default_factory=list)
    beyond: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)


def read_script(text: str) -> Script:
    """Read a command text. Never raises: what cannot be read is a doubt."""
    script = Script()
    unreadable = _unreadable(text)
    if unreadable:
        script.doubts.append(unreadable)
        return script
    source = text.encode("utf-8", "surrogateescape")
    try:
        parser = load_parser()
    except ImportError as error:
        script.doubts.append(f"the shell parser is not installed here ({error.name})")
        return script
    _Reading(source, script).read(parser.parse(source).root_node)
    return script


def load_parser() -> Parser:
    """Import the grammar (30 ms the first time) and make a parser."""
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def _unreadable(text: str) -> str | None:
    if len(text) > MAX_COMMAND_CHARS:
        return f"a command of more than {MAX_COMMAND_CHARS:,} characters"
    found = re.search(
        r"[\x00-\x08\x0b-\x1f\x7f\x85\xa0\u1680\u2000-\u200f\u2028-\u202f\ufeff]", text
    )
    if found:
        return f"the character {found[0]!r}, which shells and readers take in different ways"
    if re.search(r"[\ud800-\udc7f\udd00-\udfff]", text):
        return "half of a surrogate pair"
    return None


# What is more than a list of simple commands, by the parser's names.
_BEYOND = {
    "command_substitution": "a command substitution",
    "process_substitution": "a process substitution",
    "arithmetic_expansion": "an arithmetic expansion, which evaluates what variables hold",
    "heredoc_redirect": "a here-document",
    "subshell": "a subshell",
    "compound_statement": "a compound statement",
    "if_statement": "an if statement",
    "for_statement": "a for loop",
    "c_style_for_statement": "a for loop",
    "while_statement": "a while loop",
    "case_statement": "a case statement",
    "function_definition": "a function definition",
    "test_command": "a test",
    "subscript": "an array subscript, which is evaluated",
    "array": "an array",
}
_PLAIN = frozenset(
    "program list pipeline redirected_statement negated_command command command_name word number "
    "string string_content raw_string ansi_c_string concatenation simple_expansion expansion "
    "variable_name special_variable_name variable_assignment variable_assignments comment "
    "file_redirect file_descriptor herestring_redirect declaration_command unset_command "
    "brace_expression".split()
)
_COMMANDS = frozenset({"command", "declaration_command", "unset_command"})
_OPAQUE = frozenset({"raw_string", "ansi_c_string", "comment", "heredoc_content", "regex"})
_LIVE = re.compile(rb"(?<!\\)(?:\\\\)*(?:\$\(|`|[<>]\()")
_UNQUOTED_META = re.compile(rb"(?<!\\)(?:\\\\)*[;&|()<> \t\n'\"]")


class _Reading:
    """One pass over the tree of one text, which fills a Script."""

    def __init__(self, source: bytes, script: Script) -> None:
        self.source = source
        self.script = script

    def read(self, root: Node) -> None:
        if root.has_error:
            self.doubt("what does not parse")
            return
        end = 0
        for node in _walk(root):
            self._classify(node)
            if node.type in _COMMANDS:
                self._command(node)
            elif node.type in ("variable_assignment", "variable_assignments"):
                self._bare_assignment(node)
            elif node.type == "file_redirect":
                self._redirect(node)
            elif node.type == "heredoc_redirect":
                self._heredoc(node)
            if node.child_count == 0:
                self._leaf(node)
                self._gap(node, end)
                end = max(end, node.end_byte)
        if self.source[end:].strip(b" \t\n"):
            self.doubt("text after what parses")

    def doubt(self, what: str) -> None:
        self.script.doubts.append(what)

    def text(self, node: Node) -> str:
        return self.source[node.start_byte : node.end_byte].decode("utf-8", "surrogateescape")

    def _classify(self, node: Node) -> None:
        if node.type == "expansion" and not re.fullmatch(r"\$\{\w+\}", self.text(node)):
            self.script.beyond.append(f"the expansion {self.text(node)[:60]}")
        elif node.type in _BEYOND:
            self.script.beyond.append(_BEYOND[node.type])
        elif node.is_named and node.type not in _PLAIN:
            self.script.beyond.append(f"a {node.type.replace('_', ' ')}")

    def _leaf(self, node: Node) -> None:
        """Check that bash would end this token where the parser does."""
        content = self.source[node.start_byte : node.end_byte]
        before = self.source[: node.start_byte]
        starts_word = not before or before[-1:] in b" \t\n;&|(" and before[-2:-1] != b"\\"
        if node.type == "comment":
            if not starts_word or b"\n" in content:
                self.doubt("a `#` that may not begin a comment")
        elif content.startswith(b"#") and starts_word and not _inside(node, "string"):
            self.doubt("a `#` that may begin a comment")
        if node.type not in _OPAQUE and _LIVE.search(content) and node.type not in _STARTS:
            self.doubt("a substitution inside of a word")
        if node.type == "word" and _UNQUOTED_META.search(content):
            if not (_inside(node, "test_command") or _inside(node, "expansion")):
                self.doubt("a word that ends where bash would end it elsewhere")

    def _gap(self, node: Node, end: int) -> None:
        """Check that nothing but blanks lies between two tokens, and no newline within a command."""
        gap = self.source[end : node.start_byte]
        if not gap or _inside(node, "string") or _inside(node, "heredoc_redirect"):
            return
        rest = re.sub(rb"(?<=[ \t\n])\\\n", b" ", gap)
        if rest.strip(b" \t\n"):
            self.doubt("text that the parser passes over")
        parent = node.parent
        while parent is not None and parent.start_byte == node.start_byte:
            parent = parent.parent
        if b"\n" in rest and parent is not None and parent.type in (*_COMMANDS, "file_redirect"):
            self.doubt("a newline in the middle of a command")

    def _command(self, node: Node) -> None:
        assignments: list[Assignment] = []
        words: list[Word] = []
        for group in self._groups(node):
            if group[0].type == "variable_assignment" and node.type == "command":
                assignments.append(self._assignment(group[0]))
                if len(group) > 1:
                    self.doubt("an assignment that goes on")
            else:
                words.append(self._word(group))
        parent = node.parent
        if parent is not None and parent.type == "redirected_statement":
            for redirect in parent.children:
                if redirect.type == "file_redirect":
                    words += [self._word([late]) for late in _destinations(redirect)[1:]]
        if not words:
            self.doubt("a command without a name")
            return
        if words[0].raw in RESERVED:
            self.doubt(f"the reserved word {words[0].raw!r} as a command")
        self.script.commands.append(Command(tuple(assignments), tuple(words)))

    def _groups(self, node: Node) -> Iterator[list[Node]]:
        """Give the children of a command that are its words, adjacent ones together."""
        group: list[Node] = []
        for child in node.children:
            if child.type in ("file_redirect", "herestring_redirect", "heredoc_redirect"):
                continue
            if group and group[-1].end_byte == child.start_byte:
                group.append(child)
                continue
            if group:
                yield group
            group = [child]
        if group:
            yield group

    def _bare_assignment(self, node: Node) -> None:
        parent = node.parent
        if parent is not None and parent.type in (*_COMMANDS, "variable_assignments"):
            return
        nodes = node.children if node.type == "variable_assignments" else [node]
        found = tuple(self._assignment(one) for one in nodes)
        self.script.commands.append(Command(found, ()))

    def _assignment(self, node: Node) -> Assignment:
        raw = self.text(node)
        name, _, _ = raw.partition("=")
        value = node.child_by_field_name("value")
        if value is None:
            word = Word("", "")
        elif value.type == "array":
            return Assignment(name=name.rstrip("+"), value=None, raw=raw)
        else:
            word = self._word([value])
        if not re.fullmatch(r"\w+\+?", name):
            self.script.beyond.append("an assignment to an array element")
        return Assignment(name=name.rstrip("+"), value=word, raw=raw)

    def _redirect(self, node: Node) -> None:
        targets = _destinations(node)
        operator = next((c.type for c in node.children if not c.is_named), "?")
        target = self._word([targets[0]]) if targets else None
        raw = operator + (target.raw if target else "")
        self.script.redirects.append(Redirect(operator.removesuffix("-"), target, raw))
        parent = node.parent
        if len(targets) > 1 and not (
            parent is not None
            and parent.type == "redirected_statement"
            and parent.children[0].type == "command"
        ):
            self.doubt("words after a redirection")

    def _heredoc(self, node: Node) -> None:
        """Check that the body ends where bash ends it: at the first line that is the delimiter."""
        parts = {child.type: child for child in node.children}
        start, body, end = (parts.get("heredoc_" + name) for name in ("start", "body", "end"))
        if start is None or end is None or self.source.count(b"<<") > 1:
            self.doubt("a here-document")
            return
        quoted = self.text(start)
        delimiter = re.sub(r"^(['\"])(\w+)\1$", r"\2", quoted)
        first = self.source.find(b"\n", start.end_byte) + 1
        lines = self.source[first:].decode("utf-8", "surrogateescape").split("\n")
        if "<<-" in parts:
            lines = [line.lstrip("\t") for line in lines]
        ends_at = self.source.count(b"\n", first, end.start_byte)
        is_continued = quoted == delimiter and body is not None and "\\\n" in self.text(body)
        stray = any(child.type in ("word", "string", "raw_string") for child in node.children)
        if (
            not re.fullmatch(r"\w+", delimiter)
            or delimiter not in lines
            or lines.index(delimiter) != ends_at
            or is_continued
            or stray
        ):
            self.doubt("a here-document")

    def _word(self, group: list[Node]) -> Word:
        raw = self.source[group[0].start_byte : group[-1].end_byte]
        value = "".join(self._value(node) for node in group)
        if value.startswith("~") or re.search(r"(?<!\\)\{", _without_quotes(raw)):
            value = WILD
        held = re.sub(r"[ \t\n]", HELD, value)
        return Word(raw=raw.decode("utf-8", "surrogateescape"), value=held)

    def _value(self, node: Node) -> str:
        """Give what a node stands for, with WILD for what is not known before it runs."""
        text = self.text(node)
        if node.type in ("command_name", "concatenation"):
            return self._joined(node)
        if node.type == "string":
            return self._string(node)
        if node.type == "raw_string":
            return text[1:-1]
        if node.type == "ansi_c_string":
            return text[2:-1] if "\\" not in text else WILD
        if (
            node.type in ("word", "number", "variable_name", "variable_assignment")
            or not node.is_named
        ):
            return _unescape_word(text)
        return WILD

    def _joined(self, node: Node) -> str:
        if node.child_count == 0:
            return _unescape_word(self.text(node))
        for left, right in zip(node.children, node.children[1:], strict=False):
            if left.end_byte != right.start_byte:
                self.doubt("a word with a gap in it")
        return "".join(self._value(child) for child in node.children)

    def _string(self, node: Node) -> str:
        parts = []
        at = node.start_byte + 1
        for child in [c for c in node.children if c.is_named and c.type != "string_content"]:
            parts += [self.source[at : child.start_byte], None]
            at = child.end_byte
        parts.append(self.source[at : node.end_byte - 1])
        texts = [WILD if p is None else p.decode("utf-8", "surrogateescape") for p in parts]
        if any(re.search(r'(?<!\\)(?:\\\\)*"', text) for text in texts):
            self.doubt("a string that ends where bash would end it elsewhere")
        return "".join(re.sub(r'\\([$`"\\\n])', _kept, text) for text in texts)


_STARTS = frozenset({"$(", "`", "<(", ">(", "$(("})


def _kept(found: re.Match[str]) -> str:
    return "" if found[1] == "\n" else found[1]


def _unescape_word(text: str) -> str:
    """Give what an unquoted word stands for; globs stand for what is not known."""
    if re.search(r"(?<!\\)(?:\\\\)*\$", text):
        return WILD
    value = re.sub(r"\\(.)|([*?]|\[(?=.))", lambda m: _kept_or_wild(m), text, flags=re.DOTALL)
    return value


def _kept_or_wild(found: re.Match[str]) -> str:
    if found[1] is None:
        return WILD
    return "" if found[1] == "\n" else found[1]


def _without_quotes(raw: bytes) -> str:
    text = raw.decode("utf-8", "surrogateescape")
    return re.sub(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|\$\{\w+\}", "", text, flags=re.DOTALL)


def _destinations(redirect: Node) -> list[Node]:
    return [c for c in redirect.children if c.is_named and c.type != "file_descriptor"]


def _inside(node: Node, kind: str) -> bool:
    parent = node.parent
    while parent is not None:
        if parent.type == kind:
            return True
        parent = parent.parent
    return False


def _walk(root: Node) -> Iterator[Node]:
    """Give every node, parents before children, in the order of the text."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.children))
