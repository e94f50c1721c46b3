"""Cases from the field on permission rules, played against a real bash and a real git.

F15, F16 and F18 (siblings, links and dots in paths) are the file tools', which resolve a path before
it is judged; what of them is the rules' own stands in the tests named after them. There is no built-in set of commands that
count as reading, so in F11 and F12 nothing is admitted that no rule names.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support_bash import makes_p, prepare, run
from support_cli import call, spawn
from support_tree import tree

from forkrun.errors import UsageError
from forkrun.policy import Policy
from forkrun.protocol import Rules


def all_denied(policy: Policy, commands: list[str], directory: Path) -> None:
    """Check that each makes P unconfined, and that the policy denies it."""
    for number, command in enumerate(commands):
        place = directory / str(number)
        place.mkdir()
        assert makes_p(command, place), f"the control failed: {command!r}"
        assert policy.judge("bash", command) is not None, command


def test_F01_chaining_after_an_allowed_prefix(tmp_path: Path) -> None:
    """Each part of a list or pipeline needs a rule, and the reason names the part."""
    policy = Policy.parse(allow=["bash(ls *)", "bash(git status)"], deny=["bash(touch *)"])
    chained = ["ls && touch P", "ls ; touch P", "ls | touch P", "ls nope || touch P"]
    chained += ["ls & touch P", "ls |& touch P", "(ls; touch P)", "{ ls; touch P; }"]
    chained += ["if ls; then touch P; fi", "ls; touch P #"]
    all_denied(policy, chained, tmp_path)
    for command in chained:
        assert "`touch P`" in (policy.judge("bash", command) or "")
    assert policy.judge("bash", "ls -la | cat") is not None
    wider = Policy.parse(allow=["bash(ls *)", "bash(cat)"])
    assert wider.judge("bash", "ls -la | cat") is None


def test_F02_newline_as_separator(tmp_path: Path) -> None:
    """A second line is a second command; a carriage return is not harmless either."""
    policy = Policy.parse(allow=["bash(ls *)"])
    all_denied(policy, ["ls\ntouch P", "\n\nls\n\ntouch P"], tmp_path)
    assert policy.judge("bash", "ls\r\ntouch P") is not None
    assert policy.judge("bash", "ls\rtouch P") is not None


def test_F04_substitutions_inside_an_allowed_command(tmp_path: Path) -> None:
    """What runs inside of an argument needs no rule because it is denied."""
    policy = Policy.parse(allow=["bash(git *)", "bash(ls *)", "bash(echo *)"])
    commands = ["git status $(touch P)", "ls `touch P`", "ls <(touch P)"]
    commands += ['echo "${x:-$(touch P)}"', "echo $((a[$(touch P)]))"]
    all_denied(policy, commands, tmp_path)


def test_F05_assignment_in_front_of_a_denied_command(tmp_path: Path) -> None:
    """It does not hide the command, and does not lose a harmless one its permission."""
    policy = Policy.parse(allow=["bash(*)"], deny=["bash(touch *)"])
    commands = ["FOO=1 touch P", "A=1 B='x y' touch P", "FOO= touch P", " touch P", "\ttouch P"]
    all_denied(policy, commands, tmp_path)
    reading = Policy.parse(allow=["bash(ls *)"])
    assert reading.judge("bash", "X=1 ls") is None
    assert reading.judge("bash", "PATH=. ls") is not None


def test_F07_wrapper_programs(tmp_path: Path) -> None:
    """A denial sees what a wrapper runs."""
    policy = Policy.parse(allow=["bash(*)"], deny=["bash(touch *)"])
    wrappers = ["nohup", "timeout 3", "nice", "setsid -w", "env", "time", "command", "exec"]
    commands = [f"{wrapper} touch P" for wrapper in wrappers] + ["xargs touch <<< P"]
    all_denied(policy, commands, tmp_path)
    assert policy.judge("bash", "setsid touch P") is not None


def test_F09_global_options_of_git_void_a_prefix_rule() -> None:
    """`git -c …` meets no rule for a subcommand (tests/policy/test_git_reads.py runs a real git)."""
    allow = ["bash(git status *)", "bash(git diff *)", "bash(git log *)"]
    policy = Policy.parse(allow=allow)
    assert policy.judge("bash", "git -c core.fsmonitor='touch P; false' status") is not None
    assert policy.judge("bash", "git -c diff.external='touch P #' diff") is not None
    assert policy.judge("bash", "git diff") is None
    assert policy.environment_for("git diff")


def test_F11_find_that_is_not_read_only(tmp_path: Path) -> None:
    """Nothing admits find unless a rule does, and that rule is warned about."""
    commands = ["find . -maxdepth 0 -exec touch P \\;", "find . -maxdepth 0 -execdir touch P ';'"]
    commands += ["yes | find . -maxdepth 0 -ok touch P \\;", "find . -fprint P"]
    commands += ["find . -fprintf P x", "find . -fls P"]
    all_denied(Policy.parse(allow=["bash(ls *)", "read"]), commands, tmp_path)
    assert Policy.parse(allow=["read"]).judge("bash", "find . -name '*.tmp' -delete") is not None
    (warning,) = Policy.parse(allow=["bash(find *)"]).warnings
    assert "deletes and executes" in warning


def test_F12_other_readers_that_write_or_execute(tmp_path: Path) -> None:
    """The same for sed, sort, awk, tar, uniq and tee."""
    commands = ["sed '1e touch P' f", "sed -n 'w P' f", "sort -o P f", "sort f -oP"]
    commands += ["awk 'BEGIN{system(\"touch P\")}'", "awk '{print > \"P\"}' f", "uniq f P"]
    commands += ["tar cf /dev/null f --checkpoint=1 --checkpoint-action=exec='touch P'"]
    commands += ["sed --expression='w P' f"]
    all_denied(Policy.parse(allow=["bash(ls *)", "read"]), commands, tmp_path)
    names = ["sed", "sort", "awk", "tar", "uniq", "tee"]
    policy = Policy.parse(allow=[f"bash({name} *)" for name in names])
    assert len(policy.warnings) == len(names)


def test_F13_redirection_after_an_allowed_command(tmp_path: Path) -> None:
    """A file is written where a write rule names it, and nowhere else."""
    policy = Policy.parse(allow=["bash(ls *)", "bash(echo *)"])
    commands = ["ls > P", "ls >> P", "ls &> P", "ls >| P", "echo x | tee P", "ls 2>P", "ls >&P"]
    commands += ["> P ls", "exec > P; ls", "ls <> P"]
    all_denied(policy, commands, tmp_path)
    for harmless in ("ls 2>&1", "ls >/dev/null", "ls > /dev/null 2>&1"):
        assert policy.judge("bash", harmless) is None
    writing = Policy.parse(allow=["bash(ls *)", "write_file(P)"])
    assert writing.judge("bash", "ls > P") is None
    assert writing.judge("bash", "ls > Q") is not None


@pytest.mark.parametrize("path", ["../ws-secret/c", "/w/ws-secret/c", "ws-secret"])
def test_F15_a_sibling_with_the_same_beginning(path: str) -> None:
    """Patterns match whole names."""
    policy = Policy.parse(allow=["read(ws/**)", "write(ws/**)"])
    assert policy.judge("read_file", path) is not None
    assert policy.judge("write_file", path) is not None


def test_F18_dots_in_a_path() -> None:
    """A path that still holds `..` meets no rule, and a rule cannot hold it."""
    policy = Policy.parse(allow=["read(src/**)"])
    assert policy.judge("read_file", "src/../secret") is not None
    assert Policy.parse(deny=["read(x)"]).judge("read_file", "a/../y") is not None


def test_F19_star_and_slash(tmp_path: Path) -> None:
    """A star in a command is anything; a path denial covers the subtree."""
    policy = Policy.parse(allow=["bash(*)"], deny=["bash(*touch /*)", "write(secrets/*)"])
    target = tmp_path / "P"
    for command in (f"touch {target}", f"  touch  {target}"):
        run(command, tmp_path)
        assert target.exists()
        target.unlink()
        assert policy.judge("bash", command) is not None
    assert policy.judge("write_file", "secrets/a/b.txt") is not None
    assert Policy.parse(deny=["write(secrets/*)"]).judge("write_file", "other/b.txt") is None


def test_F21_a_child_may_not_do_what_its_parent_may_not() -> None:
    """The layers as they crossed deny both; a policy with the grant is refused when it is made."""
    parent = Rules(allow=("read(**)",), deny=("write(**)", "bash(*)"))
    child = Rules(allow=("write(**)",), deny=("read(secrets/**)",))
    crossed = Policy.of([parent, child])
    assert crossed.judge("write_file", "x") is not None
    assert crossed.judge("read_file", "secrets/k") is not None
    with pytest.raises(UsageError, match="write"):
        Policy.parse(allow=child.allow, deny=child.deny, parents=[parent])


def test_F22_an_inherited_denial_and_an_explicit_grant() -> None:
    """The conflict is found at spawn, and both rules are named."""
    parent = Policy.parse(allow=["spawn(*)"], deny=["*"])
    with pytest.raises(UsageError) as caught:
        Policy.parse(allow=["write(out/**)"], parents=[parent])
    assert "allow write(out/**)" in str(caught.value)
    assert "the parent's deny *" in str(caught.value)


def test_F25_operators_inside_quotes_are_no_operators(tmp_path: Path) -> None:
    """Each is allowed, and bash prints what the quotes say."""
    policy = Policy.parse(allow=["bash(echo *)", "bash(grep *)", "bash(cat *)"])
    printed = {
        "echo 'a && b; c | d'": b"a && b; c | d\n",
        "grep -E 'x|a' f": b"a\n",
        'echo "run git commit first"': b"run git commit first\n",
        "grep '$(x)' f": b"",
        "cat f | grep a": b"a\n",
        "echo a\\;b": b"a;b\n",
        "echo a # ; touch P": b"a\n",
    }
    prepare(tmp_path)
    for command, output in printed.items():
        assert policy.judge("bash", command) is None
        assert run(command, tmp_path).stdout == output
    assert not (tmp_path / "P").exists()


@pytest.mark.parametrize(
    "lines",
    [
        ["allow bash(ls *)", "deny bash(ls /etc *)"],
        ["deny bash(ls /etc *)", "allow bash(ls *)"],
    ],
)
def test_F26_order_of_rules(lines: list[str]) -> None:
    """Deny before ask before allow, whatever the order."""
    rules: dict[str, list[str]] = {"allow": [], "ask": [], "deny": []}
    for line in lines:
        effect, _, rule = line.partition(" ")
        rules[effect].append(rule)
    policy = Policy.parse(allow=rules["allow"], deny=rules["deny"])
    assert policy.judge("bash", "ls /etc -la") is not None
    assert policy.judge("bash", "ls -la") is None
    asked = Policy.parse(allow=["bash(ls *)"], ask=["bash(ls *)"])
    assert "nobody to ask" in (asked.judge("bash", "ls") or "")


def test_F14_destructive_arguments_of_harmless_commands(tmp_path: Path) -> None:
    """Rules allow cp, mv and ln with any argument; the kernel keeps them inside of the workspace."""
    outside, workspace = tmp_path / "outside", tmp_path / "ws"
    commands = [
        "cp /dev/null ../outside/keep.txt",
        "cp -t ../outside a",
        "ln -sfn ../outside x && cp a x/keep.txt",
        "cp --target-directory=../outside a",
        "cp a ~/../outside_probe",
        "mv a ../outside/keep.txt",
    ]

    def lay() -> None:
        for folder in (outside, workspace):
            folder.mkdir(exist_ok=True)
        (outside / "keep.txt").write_text("kept\n")
        (workspace / "a").write_text("a\n")

    lay()
    before = tree(outside)
    rules = ("--allow", "bash(cp *)", "bash(mv *)", "bash(ln *)")
    calls = [call("bash", command=command) for command in commands]
    for mode in ("commit", "live"):
        result = spawn(workspace, *calls, {"text": "done"}, arguments=("--workspace", mode, *rules))
        assert result["denials"] == [] and result["tool_calls"] == len(commands)
        assert tree(outside) == before
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            "home",
            "outside",
            "script.jsonl",
            "ws",
        ]
    for command in commands[:3]:  # the control: with nothing around them, each of these writes
        lay()
        run(command, workspace)
        assert tree(outside) != before, command
        for path in outside.iterdir():
            path.unlink()
