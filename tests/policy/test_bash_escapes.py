"""Nothing gets out of a prefix rule by chaining, substituting, redirecting, wrapping or assigning."""

from __future__ import annotations

from pathlib import Path

import pytest
from support_bash import makes_p
from support_commands import ESCAPES, HARMLESS, blocks

from forkrun.policy import Policy

RESTRICTED = Policy.parse(
    allow=["bash(ls *)", "bash(echo:*)", "bash(cat *)", "bash(grep *)", "bash(true)"]
)


@pytest.mark.parametrize("block", blocks(ESCAPES), ids=lambda block: block[0])
def test_a_command_that_does_more_than_its_prefix_is_denied(
    block: list[str], tmp_path: Path
) -> None:
    """Each makes P unconfined, and is denied with a reason that says what is allowed."""
    idle, admitted = [], []
    for number, command in enumerate(block):
        directory = tmp_path / str(number)
        directory.mkdir()
        if not makes_p(command, directory):
            idle.append(command)
        if "only bash with `ls *`" not in (RESTRICTED.judge("bash", command) or ""):
            admitted.append(command)
    assert idle == [], "the control failed: these do nothing"
    assert admitted == []


@pytest.mark.parametrize("block", blocks(HARMLESS), ids=lambda block: block[0])
def test_a_command_made_of_allowed_parts_is_allowed(block: list[str], tmp_path: Path) -> None:
    """Quotes, pipelines, lists, comments and harmless redirections do not lose the permission."""
    refused = {c: reason for c in block if (reason := RESTRICTED.judge("bash", c))}
    assert refused == {}
    for number, command in enumerate(block):
        directory = tmp_path / str(number)
        directory.mkdir()
        assert not makes_p(command, directory)


@pytest.mark.parametrize("command", ["ls\r\ntouch P", "ls\rtouch P", "ls\x0btouch P", "ls\u00a0x"])
def test_a_character_that_readers_take_differently_is_denied(command: str) -> None:
    """A carriage return is neither a separator nor harmless white space."""
    assert "certainty" in (RESTRICTED.judge("bash", command) or "")


@pytest.mark.parametrize(
    "command", ["lsof", "./ls", "/bin/ls", "ls-x", "l", "'ls -l'", "ls\\ -l", "xls", "LS"]
)
def test_a_prefix_ends_at_the_end_of_a_word(command: str) -> None:
    """`ls *` is about the command `ls` and no other."""
    assert RESTRICTED.judge("bash", command) is not None


def test_a_reason_names_the_part_that_was_not_allowed() -> None:
    """The model can read which part of a list failed."""
    reason = RESTRICTED.judge("bash", "ls && touch P && echo done")
    assert reason is not None
    assert reason.startswith("`touch P` is not allowed: only ")


def test_an_exact_pattern_takes_nothing_more() -> None:
    """Without a star a pattern is the whole command."""
    policy = Policy.parse(allow=["bash(git status)"])
    assert policy.judge("bash", "git status") is None
    assert policy.judge("bash", "git  'status'") is None
    assert policy.judge("bash", "git status -s") is not None
    assert policy.judge("bash", "git status $x") is not None
    assert policy.judge("bash", "echo x | xargs git status") is not None


def test_a_star_in_the_middle_matches_slashes_and_blanks() -> None:
    """A star in a command pattern is anything."""
    policy = Policy.parse(allow=["bash(cat * notes.md)"])
    assert policy.judge("bash", "cat /a/b c notes.md") is None
    assert policy.judge("bash", "cat notes.md x") is not None


def test_an_unknown_word_meets_no_literal_part() -> None:
    """A variable stands for anything, so it is not taken for the word that the rule names."""
    policy = Policy.parse(allow=["bash(git log *)"])
    assert policy.judge("bash", "git log $x") is None
    assert policy.judge("bash", "git $x") is not None
    assert policy.judge("bash", "git l*") is not None


def test_a_redirection_may_write_what_write_rules_name() -> None:
    """`> out/x` is admitted where write_file on that path is, and the directory did not change."""
    policy = Policy.parse(allow=["bash(ls *)", "bash(cd *)", "write_file(out/**)"])
    assert policy.judge("bash", "ls > out/list.txt") is None
    assert policy.judge("bash", "ls > ./out//list.txt") is None
    for command in ("ls > in.txt", "ls > out/../in.txt", "cd sub; ls > out/x", "ls > out/$x"):
        assert policy.judge("bash", command) is not None


def test_input_from_the_network_is_no_file() -> None:
    """Bash opens connections for /dev/tcp, so redirections do not reach into /dev."""
    assert RESTRICTED.judge("bash", "cat < /dev/tcp/127.0.0.1/1") is not None
