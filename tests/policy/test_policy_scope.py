"""What the sandbox and a commit are told comes from write and edit rules alone."""

from __future__ import annotations

import pytest

from forkrun.policy import Policy
from forkrun.protocol import Rules


def test_one_file_is_one_literal() -> None:
    """The handcuffs of a single file."""
    scope = Policy.parse(allow=["edit_file(session-memory.md)"]).writable()
    assert (scope.everything, scope.nothing) == (False, False)
    assert (scope.literals, scope.subtrees, scope.patterns) == (("session-memory.md",), (), ())
    assert scope.may_write("session-memory.md")
    assert not scope.may_write("a/session-memory.md")
    assert not scope.may_write("other.md")


@pytest.mark.parametrize(
    ("allow", "deny"),
    [
        (["bash"], []),
        (["bash(git *)", "read"], []),
        ([], ["write"]),
        (["write(a)"], ["*"]),
        (["*"], ["write_file", "edit_file"]),
        (["write_file(a)"], ["write_file"]),
    ],
)
def test_nothing_is_writable_without_a_rule_that_lets_write(
    allow: list[str], deny: list[str]
) -> None:
    """A bash rule adds nothing."""
    scope = Policy.parse(allow=allow, deny=deny).writable()
    assert scope.nothing
    assert not scope.may_write("a")


@pytest.mark.parametrize("allow", [[], ["*"], ["write"], ["edit_file", "bash"]])
def test_everything_is_writable_where_no_rule_narrows(allow: list[str]) -> None:
    """Denials of paths are named beside it."""
    scope = Policy.parse(allow=allow, deny=["write(secrets/*)", "read(.env)"]).writable()
    assert scope.everything
    assert scope.excepted == ("secrets/*",)
    assert scope.may_write("a")
    assert not scope.may_write("secrets/a/b")


def test_directories_and_patterns_are_told_apart() -> None:
    """A subtree can be bound whole, a pattern must be expanded."""
    scope = Policy.parse(allow=["write(out/**)", "edit_file(*.md)", "write_file(a.txt)"]).writable()
    assert (scope.literals, scope.subtrees, scope.patterns) == (("a.txt",), ("out",), ("*.md",))
    assert scope.may_write("b.md")
    assert not scope.may_write("x/b.md")


def test_parents_narrow_what_is_writable() -> None:
    """What every layer grants, and nothing else."""
    parent = Rules(allow=("write(out/**)", "write(n.md)", "read"))
    scope = Policy.of([parent, Rules(allow=("write(out/a/**)", "write(x.md)", "write(n.md)"))])
    written = scope.writable()
    assert (written.literals, written.subtrees) == (("n.md",), ("out/a",))
    assert not written.everything
    assert Policy.of([parent, Rules()]).writable().subtrees == ("out",)
    assert Policy.of([parent, Rules(allow=("bash",))]).writable().nothing


def test_what_deny_rules_withhold_from_reading() -> None:
    """Literals and patterns, for the kernel; a bare name at every depth."""
    policy = Policy.parse(deny=["read(/.env)", "read(*.pem)", "write(x)", "Grep(y)", "bash(cat *)"])
    withheld = policy.unreadable()
    assert (withheld.literals, withheld.patterns) == ((".env",), ("*.pem",))
    assert withheld.covers(".env")
    assert withheld.covers("a/k.pem")
    assert not withheld.covers("x")
    assert not withheld.covers("a/.env")
    anywhere = Policy.parse(deny=["read(.env)"]).unreadable()
    assert anywhere.covers("a/.env")
    assert anywhere.literals == ()
    assert anywhere.patterns == (".env",)


def test_paths_that_are_not_resolved_are_never_admitted() -> None:
    """A path with `..`, or one outside, meets no pattern of an allow rule."""
    policy = Policy.parse(allow=["read(src/**)", "write(**)"])
    for path in ("src/../secret", "../ws-secret/c", "/etc/hostname", "src/.."):
        assert policy.judge("read_file", path) is not None
        assert policy.judge("write_file", path) is not None
    assert policy.judge("read_file", "./src/a") is None
    assert Policy.parse(deny=["read(.env)"]).judge("read_file", "/elsewhere/.env") is not None
