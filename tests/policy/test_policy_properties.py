"""For all rules and commands: a child has at most its parent's rights, and what is admitted is safe."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support_bash import prepare, run

from forkrun.errors import UsageError
from forkrun.policy import Policy
from forkrun.protocol import Rules

NAMES = st.sampled_from(["a", "b", "ab", "*", "**", "a*", "?", "[ab]", ".x"])
PATTERNS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
PATH_RULES = st.builds(
    "{}({})".format, st.sampled_from(["read", "write", "edit_file", "read_file", "Grep"]), PATTERNS
)
WORDS = st.sampled_from(["git", "log", "ls", "-l", "x", "*", "touch"])
BASH_RULES = st.lists(WORDS, min_size=1, max_size=3).map(lambda words: f"bash({' '.join(words)})")
PLAIN_RULES = st.sampled_from(["*", "bash", "read", "write", "glob", "task", "mcp__s", "mcp__s__t"])
RULES = st.lists(PATH_RULES | BASH_RULES | PLAIN_RULES, max_size=4).map(tuple)
LAYERS = st.builds(lambda allow, deny: Rules(allow=allow, deny=deny), RULES, RULES)

PATHS = st.lists(st.sampled_from(["a", "b", "ab", ".x", "A", "a\n"]), max_size=3).map("/".join)
FRAGMENTS = st.sampled_from(
    ["git", "log", "ls", "-l", "x", "touch", "$x", ";", "&&", "|", "'", '"', "A=1", "$(", ")", ">"]
)
CALLS = (
    st.tuples(st.sampled_from(["read_file", "write_file", "edit_file", "glob", "grep"]), PATHS)
    | st.tuples(st.just("bash"), st.lists(FRAGMENTS, min_size=1, max_size=5).map(" ".join))
    | st.tuples(st.sampled_from(["task", "mcp__s__t", "mcp__s__u", "mcp__t__t"]), st.none())
)


@given(parent=st.lists(LAYERS, min_size=1, max_size=2), child=LAYERS, calls=st.lists(CALLS))
@settings(max_examples=200, deadline=None)
def test_a_child_may_do_no_more_than_its_parent(
    parent: list[Rules], child: Rules, calls: list[tuple[str, str | None]]
) -> None:
    """What the child's policy allows, each layer of it allows alone."""
    policy = Policy.of([*parent, child])
    for tool, subject in calls:
        if policy.judge(tool, subject) is None:
            assert Policy.of(parent).judge(tool, subject) is None
            assert Policy.of([child]).judge(tool, subject) is None


@given(parent=LAYERS, child=LAYERS, path=PATHS)
@settings(max_examples=200, deadline=None)
def test_what_is_writable_agrees_with_the_judge(parent: Rules, child: Rules, path: str) -> None:
    """A path that may be written lies in the scope; where the scope is nothing, none may be."""
    policy = Policy.of([parent, child])
    scope = policy.writable()
    if not policy.may_write(path):
        return
    assert not scope.nothing
    assert (
        scope.everything
        or bool(scope.patterns)
        or any(path == top or path.startswith(f"{top}/") for top in scope.literals)
        or any(top == "" or path.startswith(f"{top}/") for top in scope.subtrees)
    )


@given(parent=LAYERS, child=LAYERS, calls=st.lists(CALLS, max_size=8))
@settings(max_examples=200, deadline=None)
def test_a_refused_grant_would_have_granted_nothing(
    parent: Rules, child: Rules, calls: list[tuple[str, str | None]]
) -> None:
    """Where a single grant is refused as a conflict, no call is allowed by it under the parent."""
    for grant in child.allow:
        try:
            Policy.parse(allow=[grant], parents=[parent])
        except UsageError:
            policy = Policy.of([parent, Rules(allow=(grant,))])
            assert [call for call in calls if policy.judge(*call) is None] == []


PIECES = st.sampled_from(
    [
        "touch P",
        "touch",
        "P",
        "ls",
        "echo",
        "true",
        " ",
        ";",
        "&",
        "&&",
        "||",
        "|",
        "|&",
        "\n",
        "\\\n",
        "\\",
        "'",
        '"',
        "$(",
        "`",
        ")",
        "(",
        "{ ",
        "; }",
        "#",
        " #",
        "$'",
        "<",
        "<<",
        "<<<",
        "EOF",
        "\nEOF\n",
        "<<EOF",
        "<<'EOF'",
        "> /dev/null",
        "2>&1",
        ">&2",
        "x=1 ",
        "x=touch",
        "$x",
        "${x}",
        "$((",
        "))",
        "[[ ",
        "]]",
        "if ",
        "then ",
        "fi",
        "done",
        "for i in a; do ",
        "case x in ",
        "esac",
        "x) ",
        "!",
        "time ",
        "coproc ",
        "eval ",
        "exec ",
        "nohup ",
        "env ",
        "f() ",
        "~",
        "*",
        "[",
        "=",
        "x[0]=",
        "timeout 1 ",
        "sh -c ",
        "<(",
        "&>",
        "é",
        "$",
        "xargs ",
        "command ",
        "trap ",
        "IFS=c ",
        "${x:-",
        "${!x}",
        "bash",
        "declare ",
        "export ",
    ]
)
COMMANDS = st.builds(
    lambda head, middle, tail: head + "".join(middle) + tail,
    st.sampled_from(["ls ", "echo ", "true;", "echo 'a' ", ""]),
    st.lists(PIECES, max_size=8),
    st.sampled_from(["touch P", " touch P", "\ntouch P", ";touch P", ""]),
)
ALLOWING = Policy.parse(allow=["bash(ls *)", "bash(echo *)", "bash(true)"])
DENYING = Policy.parse(deny=["bash(touch *)"])


@pytest.mark.slow
@given(command=COMMANDS)
@settings(max_examples=1500, deadline=None)
def test_no_admitted_command_has_the_denied_effect(command: str) -> None:
    """Whatever the pieces, a command that the rules admit does not make P in a real bash."""
    is_denied = DENYING.judge("bash", command) is not None or ">" in command  # which makes P too
    if ALLOWING.judge("bash", command) is not None and is_denied:
        return
    directory = Path(tempfile.mkdtemp())
    try:
        prepare(directory)
        run(command, directory)
        assert not os.path.lexists(directory / "P")
    finally:
        shutil.rmtree(directory)
