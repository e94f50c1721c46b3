"""Rules are read once, with errors that say which and why, and denials come before permissions."""

from __future__ import annotations

import subprocess
import sys

import pytest

from forkrun.errors import InputError, UsageError
from forkrun.policy import Policy, decode_rules
from forkrun.protocol import Rules


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("edit_fle(x)", "did you mean `edit_file`"),
        ("bsh", "did you mean `bash`"),
        ("WebSearch", "the names are"),
        ("", "expected `Tool`"),
        ("bash(", "expected `Tool`"),
        ("bash(ls", "expected `Tool`"),
        ("bash(ls) x", "expected `Tool`"),
        ("bash()", "empty"),
        ("read()", "empty"),
        ("*(x)", "takes no pattern"),
        ("mcp__", "mcp__server"),
        ("mcp__s__t(x)", "mcp__server"),
        ("read(!x)", "negated"),
        ("read(~/x)", "relative to the workspace"),
        ("read(//etc)", "relative to the workspace"),
        ("read(../x)", "resolved paths"),
        ("read(src/../x)", "resolved paths"),
        ("read(a//b)", "empty name"),
        ("read([a)", "`[` without `]`"),
        ("read([z-a])", "not a set"),
        ("read(a\\)", "backslash"),
        ("bash(ls\rx)", "carriage return"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_an_error(rule: str, said: str) -> None:
    """The error names the list, the position, the rule and the reason."""
    with pytest.raises(InputError) as caught:
        Policy.parse(deny=["bash", rule])
    assert "deny rule 2 is not valid" in str(caught.value)
    assert repr(rule) in str(caught.value)
    assert said in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize(
    ("rule", "tools"),
    [
        ("Bash", {"bash"}),
        ("Read", {"read_file"}),
        ("Write", {"write_file"}),
        ("Edit", {"edit_file"}),
        ("MultiEdit", {"edit_file"}),
        ("Glob", {"glob"}),
        ("Grep", {"grep"}),
        ("read", {"read_file", "glob", "grep"}),
        ("write", {"write_file", "edit_file"}),
        ("task", {"task"}),
        ("mcp__s__t", {"mcp__s__t"}),
        ("mcp__s", {"mcp__s__t", "mcp__s__u"}),
        ("mcp__s__*", {"mcp__s__t", "mcp__s__u"}),
        ("*", None),
    ],
)
def test_a_name_stands_for_its_tools(rule: str, tools: set[str] | None) -> None:
    """Our names, those of Claude Code, groups and servers."""
    every = {"bash", "read_file", "write_file", "edit_file", "glob", "grep", "task"}
    every |= {"mcp__s__t", "mcp__s__u", "mcp__other__t"}
    policy = Policy.parse(allow=[rule])
    assert {tool for tool in every if policy.judge(tool, "x") is None} == (tools or every)


def test_without_rules_everything_is_allowed() -> None:
    """No rule, no denial."""
    assert Policy.parse().judge("bash", "rm -rf x; $y") is None
    assert Policy.of([]).judge("write_file", "a") is None


def test_with_an_allow_rule_the_rest_is_denied_with_what_is_allowed() -> None:
    """The reason of a denial says what is allowed."""
    policy = Policy.parse(allow=["edit_file(session-memory.md)"])
    assert policy.judge("edit_file", "session-memory.md") is None
    only = "only edit_file on session-memory.md is allowed"
    for tool, subject in [("edit_file", "a.md"), ("bash", "ls"), ("write_file", "x")]:
        assert only in (policy.judge(tool, subject) or "")


@pytest.mark.parametrize("swap", [False, True])
def test_deny_comes_before_allow(swap: bool) -> None:
    """Whatever the order in which rules are given."""
    rules = {"allow": ["bash(ls *)", "read"], "deny": ["bash(ls /etc *)", "read(k)"]}
    policy = Policy.parse(**dict(reversed(rules.items())) if swap else rules)
    assert policy.judge("bash", "ls /etc -la") is not None
    assert policy.judge("bash", "ls /usr") is None
    assert policy.judge("read_file", "k") is not None


def test_an_ask_rule_denies_at_once() -> None:
    """There is nobody to ask, and the reason says so."""
    policy = Policy.parse(allow=["bash"], ask=["bash(git push *)"])
    assert "nobody to ask" in (policy.judge("bash", "git push origin") or "")
    assert policy.judge("bash", "git log") is None


def test_a_parent_s_denial_is_named_as_the_parent_s() -> None:
    """A reader can tell whose rule it was."""
    policy = Policy.parse(parents=[Policy.parse(deny=["bash(rm *)"])])
    assert "the parent's deny bash(rm *)" in (policy.judge("bash", "rm x") or "")


def test_layers_of_grandparents_are_kept() -> None:
    """Each layer must allow, however deep."""
    grandparent = Policy.parse(deny=["write(a)"])
    parent = Policy.parse(deny=["write(b)"], parents=[grandparent])
    child = Policy.parse(deny=["write(c)"], parents=[parent])
    assert [p for p in "abcd" if child.judge("write_file", p) is None] == ["d"]
    assert Policy.of(child.layers).judge("write_file", "a") is not None


@pytest.mark.parametrize(
    ("parent", "grant", "other"),
    [
        (Rules(allow=("task",), deny=("*",)), "write(out/**)", "the parent's deny *"),
        (Rules(deny=("write",)), "edit_file(a.md)", "the parent's deny write"),
        (Rules(deny=("write(**)",)), "write(out/**)", "the parent's deny write(**)"),
        (Rules(deny=("write(out)",)), "write(out/x/*.md)", "the parent's deny write(out)"),
        (Rules(deny=("bash(git *)",)), "bash(git push *)", "the parent's deny bash(git *)"),
        (Rules(ask=("bash",)), "bash(ls)", "the parent's ask bash"),
        (Rules(allow=("read",)), "write(out/**)", "the parent's allow read"),
        (Rules(allow=("write(a/**)",)), "write(b/**)", "the parent's allow write(a/**)"),
        (Rules(allow=("bash(git *)",)), "bash(ls *)", "the parent's allow bash(git *)"),
        (Rules(deny=("mcp__s",)), "mcp__s__t", "the parent's deny mcp__s"),
    ],
)
def test_a_grant_that_comes_to_nothing_is_a_conflict(parent: Rules, grant: str, other: str) -> None:
    """It is refused when the policy is made, and both rules are named."""
    with pytest.raises(UsageError) as caught:
        Policy.parse(allow=[grant], parents=[parent])
    assert f"allow {grant}" in str(caught.value)
    assert other in str(caught.value)


@pytest.mark.parametrize(
    ("parent", "grant"),
    [
        (Rules(deny=("write(secrets/**)",)), "write(**)"),
        (Rules(deny=("bash(git push *)",)), "bash(git *)"),
        (Rules(deny=("edit_file",)), "write"),
        (Rules(allow=("write(out/**)",)), "write(**)"),
        (Rules(allow=("bash(git *)",)), "bash(git log *)"),
        (Rules(deny=("bash(rm *)",)), "*"),
    ],
)
def test_a_parent_may_take_a_part(parent: Rules, grant: str) -> None:
    """A grant of which something is left is no conflict."""
    Policy.parse(allow=[grant], parents=[parent])


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("bash(find *)", "find writes, deletes and executes"),
        ("bash(sed:*)", "sed writes"),
        ("bash(awk *)", "awk writes"),
        ("bash(tar *)", "tar writes"),
        ("bash(sort *)", "sort writes"),
        ("bash(uniq *)", "uniq writes"),
        ("bash(tee *)", "tee writes"),
        ("bash(git *)", "git executes"),
        ("bash(timeout *)", "executes what follows it"),
        ("bash(/usr/bin/python3 *)", "python3 executes"),
        ("bash(ls && cat)", "matches none"),
        ("bash(* x)", "any program"),
    ],
)
def test_a_rule_that_admits_more_than_it_seems_is_warned_about(rule: str, said: str) -> None:
    """A warning stands in the policy; the rule is kept."""
    warnings = Policy.parse(allow=[rule]).warnings
    assert len(warnings) == 1
    assert said in warnings[0]


def test_careful_rules_give_no_warning() -> None:
    """Rules for a subcommand, or a program that only reads, are quiet."""
    rules = ["bash(git log *)", "bash(ls *)", "bash", "bash(find . -name x)", "read", "write(a)"]
    assert Policy.parse(allow=rules, deny=["bash(find *)"]).warnings == ()


def test_a_policy_file_is_read_strictly() -> None:
    """Lists of strings under known names, with rules that can be meant."""
    rules = decode_rules(b'{"allow": ["read"], "deny": ["bash"]}', source="p.json")
    assert rules == Rules(allow=("read",), deny=("bash",))
    for wrong in (
        b"",
        b"[]",
        b'{"allow": "read"}',
        b'{"alow": []}',
        b'{"deny": ["nope"]}',
        b"\xff",
    ):
        with pytest.raises(InputError, match=r"p\.json"):
            decode_rules(wrong, source="p.json")


def test_the_shell_parser_is_imported_for_command_patterns_alone() -> None:
    """Rules on names and paths, and commands under rules without a pattern, do not pay for it."""
    code = """
import sys
from forkrun.policy import Policy
policy = Policy.parse(allow=["bash", "edit_file(a.md)"], deny=["read(.env)"])
policy.prepare()
assert policy.judge("bash", "ls; $x") is None
assert policy.judge("edit_file", "a.md") is None
assert not {"tree_sitter", "tree_sitter_bash"} & set(sys.modules)
Policy.parse(allow=["bash(ls)"]).prepare()
assert "tree_sitter" in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
