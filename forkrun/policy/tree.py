"""Take a Script out of the parser's tree, and check that bash reads every byte as the tree does.

Tokens are checked one by one: if each ends where bash ends it, and nothing but blanks lies between
two, then bash reads the same tokens. Where that fails there is a doubt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from forkrun.policy.glob import HELD, WILD
from forkrun.policy.shell import Assignment, Command, Node, Redirect, Script, Word


def fill(script: Script, *, source: bytes, root: Node) -> None:
    """Fill the script from the tree of its text."""
    if root.has_error:
        script.doubts.append("it does not parse")
        return
    reading = _Reading(source=source, script=script)
    end = 0
    for place in _walk(root):
        reading.node(place)
        if place.node.child_count == 0:
            reading.leaf(place, end)
            end = max(end, place.node.end_byte)
    if source[end:].strip(b" \t\n"):
        script.doubts.append("there is text after what parses")


class _Place(msgspec.Struct, frozen=True):
    """A node, the node that it is a child of, the lowest one that also holds what stands before it,
    and the kinds of those around it that matter."""

    node: Node
    parent: Node | None
    container: str
    around: frozenset[str]


def _walk(root: Node) -> Iterator[_Place]:
    """Give every node, parents before children, in the order of the text."""
    stack = [_Place(root, None, root.type, frozenset())]
    while stack:
        place = stack.pop()
        yield place
        node = place.node
        around = place.around | {node.type} if node.type in _SURROUNDINGS else place.around
        stack.extend(
            _Place(
                child,
                node,
                place.container if child.start_byte == node.start_byte else node.type,
                around,
            )
            for child in reversed(node.children)
        )


_SURROUNDINGS = frozenset({"string", "heredoc_redirect", "test_command", "expansion"})

# What is more than lists of simple commands, by the parser's names, in words.
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
    {
        "program",
        "list",
        "pipeline",
        "redirected_statement",
        "negated_command",
        "command",
        "command_name",
        "word",
        "number",
        "string",
        "string_content",
        "raw_string",
        "ansi_c_string",
        "concatenation",
        "simple_expansion",
        "expansion",
        "variable_name",
        "special_variable_name",
        "variable_assignment",
        "variable_assignments",
        "comment",
        "file_redirect",
        "file_descriptor",
        "herestring_redirect",
        "declaration_command",
        "unset_command",
        "brace_expression",
    }
)
_COMMANDS = frozenset({"command", "declaration_command", "unset_command"})
_REDIRECTS = frozenset({"file_redirect", "herestring_redirect", "heredoc_redirect"})
# Nodes between whose children a newline may stand, and those where not even a blank may.
_LINES = frozenset(
    {
        "program",
        "list",
        "pipeline",
        "compound_statement",
        "subshell",
        "command_substitution",
        "process_substitution",
        "if_statement",
        "elif_clause",
        "else_clause",
        "do_group",
        "while_statement",
        "for_statement",
        "c_style_for_statement",
        "case_statement",
        "case_item",
        "function_definition",
        "array",
        "arithmetic_expansion",
        "binary_expression",
        "test_command",
        "heredoc_redirect",
        "heredoc_body",
        "string",
    }
)
_TIGHT = frozenset({"simple_expansion", "concatenation", "command_name", "variable_assignment"})
_OPAQUE = frozenset({"raw_string", "ansi_c_string", "comment", "heredoc_content", "regex"})
_OPENINGS = frozenset({"$(", "`", "<(", ">(", "$(("})
_LIVE = re.compile(rb"(?<!\\)(?:\\\\)*(?:\$\(|`|[<>]\()")
_UNQUOTED_META = re.compile(rb"(?<!\\)(?:\\\\)*[;&|()<> \t\n'\"]")


class _Reading(msgspec.Struct, frozen=True):
    """One pass over the tree of one text."""

    source: bytes
    script: Script

    def doubt(self, what: str) -> None:
        self.script.doubts.append(what)

    def text(self, node: Node) -> str:
        return _decoded(self.source[node.start_byte : node.end_byte])

    def node(self, place: _Place) -> None:
        """Take what a node says: a command, an assignment, a redirection; or note what it is."""
        node = place.node
        self._classify(node)
        if node.type in _COMMANDS:
            self._command(place)
        elif node.type in ("variable_assignment", "variable_assignments"):
            self._bare_assignment(place)
        elif node.type == "file_redirect":
            self._redirect(place)
        elif node.type == "heredoc_redirect":
            self._heredoc(node)

    def leaf(self, place: _Place, end: int) -> None:
        """Check that bash would begin and end this token where the parser does."""
        node = place.node
        self._check_gap(place, self.source[end : node.start_byte])
        content = self.source[node.start_byte : node.end_byte]
        before = self.source[max(0, node.start_byte - 2) : node.start_byte]
        starts_word = not before or (before[-1:] in b" \t\n;&|(<>" and before[-2:-1] != b"\\")
        if node.type == "comment":
            if not starts_word or b"\n" in content:
                self.doubt("there is a `#` that may not begin a comment")
        elif content[:1] == b"#" and starts_word and "string" not in place.around:
            self.doubt("there is a `#` that may begin a comment")
        if node.type not in _OPAQUE | _OPENINGS and _LIVE.search(content):
            self.doubt("there may be a substitution inside of a word")
        if (
            node.type == "word"
            and not place.around & {"test_command", "expansion"}
            and _UNQUOTED_META.search(content)
        ):
            self.doubt("there is a word that bash ends elsewhere")

    def _check_gap(self, place: _Place, gap: bytes) -> None:
        """Check that what the parser passes over before a token is nothing to bash."""
        if not gap or place.around & {"string", "heredoc_redirect"}:
            return
        rest = re.sub(rb"(?<=[ \t\n])\\\n", b" ", gap)
        if rest.strip(b" \t\n") or place.container in _TIGHT:
            self.doubt("there is text that the parser passes over")
        elif b"\n" in rest and place.container not in _LINES:
            self.doubt("there is a newline in the middle of a command")

    def _classify(self, node: Node) -> None:
        if node.type == "expansion":
            if not re.fullmatch(r"\$\{\w+\}", self.text(node)):
                self.script.beyond.append(f"the expansion {self.text(node)[:60]}")
        elif node.type in _BEYOND:
            self.script.beyond.append(_BEYOND[node.type])
        elif node.is_named and node.type not in _PLAIN:
            self.script.beyond.append(f"a {node.type.replace('_', ' ')}")

    def _command(self, place: _Place) -> None:
        node = place.node
        assignments: list[Assignment] = []
        words: list[Word] = []
        for group in _groups(node):
            if group[0].type == "variable_assignment" and node.type == "command" and not words:
                assignments.append(self._assignment(group[0]))
                if len(group) > 1:
                    self.doubt("there is an assignment that goes on")
            else:
                words.append(self._word(group))
        if place.parent is not None and place.parent.type == "redirected_statement":
            for redirect in place.parent.children:
                if redirect.type == "file_redirect":
                    words += [self._word([late]) for late in _targets(redirect)[1:]]
        if not words:
            self.doubt("there is a command without a name")
            return
        self.script.commands.append(Command(tuple(assignments), tuple(words)))

    def _bare_assignment(self, place: _Place) -> None:
        """Take assignments that stand alone as a command without words."""
        inner = place.parent is not None and place.parent.type in (
            *_COMMANDS,
            "variable_assignments",
        )
        if inner:
            return
        node = place.node
        nodes = node.children if node.type == "variable_assignments" else [node]
        self.script.commands.append(Command(tuple(map(self._assignment, nodes)), ()))

    def _assignment(self, node: Node) -> Assignment:
        raw = self.text(node)
        name = raw.partition("=")[0]
        if not re.fullmatch(r"\w+\+?", name):
            self.script.beyond.append("an assignment to an array element")
        value = node.child_by_field_name("value")
        if value is not None and value.type == "array":
            return Assignment(name=name.rstrip("+"), value=None, raw=raw)
        word = Word("", "") if value is None else self._word([value])
        return Assignment(name=name.rstrip("+"), value=word, raw=raw)

    def _redirect(self, place: _Place) -> None:
        node, parent = place.node, place.parent
        targets = _targets(node)
        operator = next((c.type for c in node.children if not c.is_named), "?")
        target = self._word([targets[0]]) if targets else None
        raw = operator + (target.raw if target else "")
        self.script.redirects.append(Redirect(operator=operator, target=target, raw=raw))
        follows_command = (
            parent is not None
            and parent.type == "redirected_statement"
            and parent.children[0].type in _COMMANDS
        )
        if len(targets) > 1 and not follows_command:
            self.doubt("there are words after a redirection")

    def _heredoc(self, node: Node) -> None:
        """Check that the body ends where bash ends it: at the first line that is the delimiter."""
        parts = {child.type: child for child in node.children}
        start, body, end = (parts.get("heredoc_" + name) for name in ("start", "body", "end"))
        stray = any(child.type in ("word", "string", "raw_string") for child in node.children)
        if start is None or end is None or stray or self.source.count(b"<<") > 1:
            self.doubt("there is a here-document that bash may end elsewhere")
            return
        written = self.text(start)
        delimiter = re.sub(r"^(['\"])(\w+)\1$", r"\2", written)
        first = self.source.find(b"\n", start.end_byte) + 1
        lines = _decoded(self.source[first:]).split("\n")
        if "<<-" in parts:
            lines = [line.lstrip("\t") for line in lines]
        ends_at = self.source.count(b"\n", first, end.start_byte)
        goes_on = written == delimiter and body is not None and "\\\n" in self.text(body)
        is_sure = re.fullmatch(r"\w+", delimiter) and delimiter in lines and not goes_on
        if not is_sure or lines.index(delimiter) != ends_at:
            self.doubt("there is a here-document that bash may end elsewhere")

    def _word(self, group: Sequence[Node]) -> Word:
        raw = self.source[group[0].start_byte : group[-1].end_byte]
        value = "".join(self._value(node) for node in group)
        if value.startswith("~") or "{" in _unquoted(_decoded(raw)).replace("{}", ""):
            value = WILD
        if raw == b"[":
            value = "["
        return Word(raw=_decoded(raw), value=re.sub(r"[ \t\n]", HELD, value))

    def _value(self, node: Node) -> str:
        """Give what a node stands for, with WILD for what is not known before it runs."""
        text = self.text(node)
        if node.type == "string":
            return self._string_value(node)
        if node.type == "raw_string":
            return text[1:-1]
        if node.type == "ansi_c_string":
            return text[2:-1] if "\\" not in text else WILD
        if node.child_count and node.type in ("command_name", "concatenation"):
            return "".join(self._value(child) for child in node.children)
        if node.type in _LITERAL or not node.is_named:
            return _unescaped(text)
        return WILD

    def _string_value(self, node: Node) -> str:
        parts = []
        at = node.start_byte + 1
        for child in node.children:
            if child.is_named and child.type != "string_content":
                parts += [_decoded(self.source[at : child.start_byte]), WILD]
                at = child.end_byte
        parts.append(_decoded(self.source[at : node.end_byte - 1]))
        if any(re.search(r'(?<!\\)(?:\\\\)*"', part) for part in parts):
            self.doubt("there is a string that bash ends elsewhere")
        return "".join(re.sub(r'\\([$`"\\\n])', _escaped, part) for part in parts)


_LITERAL = frozenset({"word", "number", "variable_name", "variable_assignment", "command_name"})


def _groups(command: Node) -> Iterator[list[Node]]:
    """Give the children of a command that are its words, adjacent ones together."""
    group: list[Node] = []
    for child in command.children:
        if child.type in _REDIRECTS:
            continue
        if group and group[-1].end_byte != child.start_byte:
            yield group
            group = []
        group.append(child)
    if group:
        yield group


def _targets(redirect: Node) -> list[Node]:
    return [c for c in redirect.children if c.is_named and c.type != "file_descriptor"]


def _unescaped(text: str) -> str:
    """Give what an unquoted word stands for; a glob or a variable stands for what is not known."""
    if re.search(r"(?<!\\)(?:\\\\)*\$", text):
        return WILD
    return re.sub(r"\\(.)|[*?[]", _escaped, text, flags=re.DOTALL)


def _escaped(found: re.Match[str]) -> str:
    if found[1] is None:
        return WILD
    return "" if found[1] == "\n" else found[1]


def _unquoted(raw: str) -> str:
    """Leave out of a word what is quoted or escaped."""
    return re.sub(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*"|\$\{\w+\}""", "", raw, flags=re.DOTALL)


def _decoded(source: bytes) -> str:
    return source.decode("utf-8", "surrogateescape")
