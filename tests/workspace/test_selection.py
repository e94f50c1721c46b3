"""What is allowed is committed; the rest is named, with its reason, and stays out."""

from __future__ import annotations

import fnmatch
import os
import subprocess

import pytest
from support_views import picture, work_in

from forkrun.workspace.changes import read_changes
from forkrun.workspace.gitfiles import find_repository, parse_index
from forkrun.workspace.protected import executed, protected_part


def withheld(chosen):
    return {each.path: each.reason for each in chosen.withheld}


def test_only_what_the_rules_allow_is_committed(bench):
    """A path that no rule allows is withheld; the directories of what is allowed are made."""
    bench.write("src/a")
    bench.write("doc/b")
    outcome, chosen = bench.run(
        "echo y > src/a; echo y > doc/b; mkdir -p src/n/m other; echo n > src/n/m/x; echo n > other/x; rm -r doc",
        may_write=lambda path: fnmatch.fnmatch(path, "src/*.*") or path in ("src/a", "src/n/m/x"),
    )
    assert outcome.is_committed
    assert set(picture(bench.workspace)) == {
        "src",
        "src/a",
        "src/n",
        "src/n/m",
        "src/n/m/x",
        "doc",
        "doc/b",
    }
    assert withheld(chosen) == {
        "doc/": "no rule allows writing it",
        "doc/b": "no rule allows writing it",
        "other/": "no rule allows writing it",
        "other/x": "no rule allows writing it",
    }


def test_a_directory_is_removed_only_with_everything_in_it(bench):
    """What is withheld in a directory keeps it, and what was to take its place stays out."""
    bench.write("d/ours")
    bench.write("d/theirs")
    outcome, chosen = bench.run("rm -r d; echo f > d", may_write=lambda path: path != "d/theirs")
    assert outcome.is_committed
    assert set(picture(bench.workspace)) == {"d", "d/theirs"}
    assert withheld(chosen)["d"] == "it depends on a change that is withheld"


def test_configuration_is_withheld_and_named(bench):
    """Hooks, editor tasks, agent settings, shell start-up: never committed, one record for each."""
    bench.write(".git/config", "[core]\n")
    bench.write("sub/.git/HEAD", "ref: x\n")
    script = """
mkdir -p .git/hooks .vscode .claude sub/.git/hooks .config/fish a/b
for f in .git/hooks/pre-commit sub/.git/hooks/post-checkout; do printf '#!/bin/sh\\ntouch RAN\\n' > $f; chmod +x $f; done
printf '[core]\\nfsmonitor = touch RAN\\n[filter "x"]\\nclean = touch RAN\\n' > .git/config
for f in .vscode/tasks.json .claude/settings.json .mcp.json .envrc .bashrc .config/fish/config.fish pyvenv.cfg a/b/.ENVRC
do echo x > $f; done
echo '* filter=x' > .gitattributes; echo 'import os' > conftest.py; echo 'all:' > Makefile
"""
    before = picture(bench.workspace)
    outcome, chosen = bench.run(script)
    assert outcome.is_committed
    new = {path for path in picture(bench.workspace) if path not in before}
    assert new == {".gitattributes", "conftest.py", "Makefile"}
    assert {path: picture(bench.workspace)[path] for path in before} == before
    assert set(withheld(chosen)) == {
        ".git", "sub/.git", ".vscode", ".claude", ".mcp.json", ".envrc", ".bashrc", ".config/fish", "pyvenv.cfg", "a/b/.ENVRC",
    }  # fmt: skip
    assert not (bench.workspace / "RAN").exists()


def test_a_rule_that_names_configuration_allows_it(bench):
    """A path that is named literally is committed; its neighbour is not."""
    script = "mkdir .vscode; echo 1 > .vscode/tasks.json; echo 2 > .vscode/settings.json"
    outcome, chosen = bench.run(script, named=lambda path: path == ".vscode/tasks.json")
    assert outcome.is_committed
    assert os.listdir(bench.workspace / ".vscode") == ["tasks.json"]
    assert ".vscode" in withheld(chosen)


BARE = """
mkdir -p {0}/objects {0}/refs; echo 'ref: refs/heads/x' > {0}/HEAD
printf '[core]\\nrepositoryformatversion = 0\\nbare = false\\nworktree = {1}\\nfsmonitor = touch {1}/RAN; false\\n' > {0}/config
echo ok > {0}/readme; echo ok > outside
"""


@pytest.mark.parametrize("where", ["docs", "a/b/c.d", "."])
def test_a_repository_by_any_name_is_withheld_as_a_whole(bench, where):
    """What git would take for a bare repository is not committed, at once or in two runs."""
    at = bench.workspace / where
    script = BARE.format(where, at)
    in_doubt = {"HEAD", "objects", "refs", "config"}
    at.mkdir(parents=True, exist_ok=True)
    (at / "x").touch()
    outcome, chosen = bench.run(script)
    assert outcome.is_committed
    assert in_doubt.isdisjoint(os.listdir(at))
    assert (bench.workspace / "outside").exists()
    assert where in withheld(chosen) or in_doubt <= set(withheld(chosen))
    # Control: with all of it in place, git does what the config says.
    subprocess.run(["sh", "-c", script], cwd=bench.workspace, check=True)
    subprocess.run(["git", "status"], cwd=at, capture_output=True, check=False)
    assert (at / "RAN").exists()


def test_a_repository_is_not_completed_by_a_second_run(bench):
    """Half of one is committed, since it is none; what would make it whole is withheld."""
    bench.run("mkdir -p d/objects; touch d/HEAD d/config d/objects/x")
    assert sorted(os.listdir(bench.workspace / "d")) == ["HEAD", "config", "objects"]
    _, chosen = bench.run("mkdir d/refs; touch d/refs/x; echo y > d/config")
    assert set(withheld(chosen)) == {"d"}
    _, chosen = bench.run("mkdir -p d/sub; touch d/sub/x", named=lambda path: path == "d/sub/x")
    assert chosen.changes.entries[-1].path == "d/sub/x"


def test_pointers_to_a_repository_are_withheld(bench):
    """A file `.git`, and the directory of a worktree with its `commondir`."""
    _, chosen = bench.run(
        "mkdir -p sub w; echo 'gitdir: ../w' > sub/.git; touch w/HEAD; echo ../x > w/commondir"
    )
    assert set(withheld(chosen)) == {"sub/.git", "w"}


def test_the_list_of_configuration_can_be_extended(bench):
    """A list of one's own takes the place of ours."""
    outcome, _ = bench.run("echo 1 > Makefile; echo 2 > .envrc", protected=("Makefile",))
    assert outcome.is_committed
    assert os.listdir(bench.workspace) == [".envrc"]


@pytest.mark.parametrize(
    ("path", "part"),
    [
        (".git/config", ".git"), ("a/.GIT/hooks/x", "a/.GIT"), ("x.code-workspace", "x.code-workspace"),
        (".config/nvim/init.lua", ".config/nvim"), ("nvim/init.lua", None), (".gitignore", None),
        ("docs/.github/x", None), ("x.sublime-project", "x.sublime-project"), ("a/.hg/hgrc", "a/.hg"),
        (".cargo/config.toml", ".cargo/config.toml"), (".cargo/audit.toml", None), ("CLAUDE.md", None),
        (".github/hooks/x.json", ".github/hooks"), (".junie/mcp.json", ".junie"), (".Rprofile", ".Rprofile"),
        ("lib/.pdbrc", "lib/.pdbrc"), (".netrc", ".netrc"), ("opencode.json", "opencode.json"),
        ("a/.git/x/.vscode", "a/.git"), ("src/a.py", None), (".aider.conf.yml", ".aider.conf.yml"),
    ],
)  # fmt: skip
def test_protected_parts(path, part):
    """The part that is protected is the topmost; names that only look alike are free."""
    assert protected_part(path) == part


def test_instructions_of_agents_are_pointed_out():
    """What an agent reads as text is committed, and named, wherever it lies."""
    paths = ["CLAUDE.md", "a/agents.md", ".github/prompts/x.md", "docs/guide.md", ".rules"]
    assert executed(paths) == ("CLAUDE.md", "a/agents.md", ".github/prompts/x.md", ".rules")


IGNORED = """
mkdir -p build/x keep node_modules/p sub
echo o > build/x/o; echo l > a.log; echo l > keep/keep.log; echo l > sub/only; echo s > sub/b.log; echo p > node_modules/p/i
echo t > tracked.log; mkdir pycache; echo c > pycache/c.log; echo n > normal
"""


def test_what_git_ignores_is_counted_and_left_out(bench):
    """Nested rules, negations, directories and .git/info/exclude count; a tracked file does not."""
    bench.write(".gitignore", "build/\n*.log\n!keep/*.log\nnode_modules\n")
    bench.write("sub/.gitignore", "/only\n!b.log\n")
    subprocess.run(["git", "init", "-q"], cwd=bench.workspace, check=True)
    bench.write(".git/info/exclude", "normal\n")
    bench.write("tracked.log", "old\n")
    subprocess.run(["git", "add", "-f", "tracked.log"], cwd=bench.workspace, check=True)
    outcome, chosen = bench.run(IGNORED)
    assert outcome.is_committed
    assert set(withheld(chosen)) == {
        "build/",
        "a.log",
        "node_modules/",
        "sub/only",
        "pycache/c.log",
        "normal",
    }
    assert chosen.ignored == 10
    found = {path for path in picture(bench.workspace) if not path.startswith(".git/")}
    assert found == {
        ".git",
        ".gitignore",
        "sub",
        "sub/.gitignore",
        "sub/b.log",
        "keep",
        "keep/keep.log",
        "tracked.log",
    }
    assert (bench.workspace / "tracked.log").read_text() == "t\n"


def test_what_git_ignores_is_committed_when_asked_for(bench):
    """With commit_ignored the rules of git do not count."""
    bench.write(".gitignore", "*.log\n")
    outcome, chosen = bench.run("echo l > a.log", commit_ignored=True)
    assert outcome.is_committed
    assert chosen.ignored == 0
    assert (bench.workspace / "a.log").exists()


def test_what_git_ignores_does_not_conflict(bench):
    """Somebody's change to an ignored file is nobody's business."""
    bench.write(".gitignore", "*.log\n")
    bench.write("a.log", "old\n")
    outcome, _ = bench.run(
        "echo mine > a.log; echo n > n",
        meanwhile=lambda: (bench.workspace / "a.log").write_text("theirs\n"),
    )
    assert outcome.is_committed
    assert (bench.workspace / "a.log").read_text() == "theirs\n"


def test_rules_that_the_child_writes_count_where_it_may_write_them(bench):
    """A scaffold with its own .gitignore does not commit what that ignores."""
    script = "echo node_modules/ > .gitignore; mkdir node_modules; echo 1 > node_modules/a"
    bench.run(script)
    assert set(os.listdir(bench.workspace)) == {".gitignore"}
    _, chosen = bench.run(
        "echo > .gitignore; mkdir node_modules; echo 1 > node_modules/a",
        may_write=lambda p: p != ".gitignore",
    )
    assert set(withheld(chosen)) == {".gitignore", "node_modules/"}


def test_ignored_agrees_with_git(bench):
    """The verdicts on a few hundred paths are git's own."""
    rules = [
        "*.o",
        "/top",
        "dir/",
        "a/**/z",
        "!important.o",
        "sp ace",
        "[ab]?c",
        "**/deep/x",
        "\\#odd",
        "q/*",
        "!q/keep",
        "foo",
        "!*.py",
    ]
    bench.write(".gitignore", "\n".join(rules) + "\n")
    subprocess.run(["git", "init", "-q"], cwd=bench.workspace, check=True)
    names = [
        "m.o",
        "top",
        "important.o",
        "sp ace",
        "abc",
        "x",
        "#odd",
        "keep",
        "z",
        "plain",
    ]
    directories = [
        "",
        "dir",
        "sub/dir",
        "a",
        "a/b/c",
        "deep",
        "s/deep",
        "q",
        "r/keep",
        "foo.py",
        "foo.py/foo",
    ]
    paths = [os.path.join(directory, name) for directory in directories for name in names]
    script = "".join(
        f"mkdir -p './{os.path.dirname(p) or '.'}'; [ -e './{p}' ] || echo 1 > './{p}'\n"
        for p in paths
    )
    with bench.view() as view:
        work_in(view, script)
        changes = read_changes(view)
        files = [each.path for each in changes.entries if each.after.type == "file"]
        from forkrun.workspace.selection import select_changes

        chosen = select_changes(view, changes, may_write=lambda path: True)
        ours = set(files) - {each.path for each in chosen.changes.entries}
    answer = subprocess.run(
        ["git", "check-ignore", "--no-index", "-z", "--stdin"],
        cwd=bench.workspace, input="\0".join(files).encode(), capture_output=True, check=False,
    )  # fmt: skip
    assert ours == set(filter(None, answer.stdout.decode().split("\0")))


@pytest.mark.parametrize("version", [2, 3, 4])
def test_the_index_of_git_is_read(tmp_path, version):
    """Every version of the index gives the paths that git ls-files gives."""
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    names = ["a", "dir/b", "dir/c", "dir/sub/" + "long" * 40, "é", "zz"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    if version == 3:
        (tmp_path / "later").write_text("x")
        subprocess.run(["git", "add", "-N", "later"], cwd=tmp_path, check=True)
        names.append("later")
    else:
        subprocess.run(
            ["git", "update-index", f"--index-version={version}"], cwd=tmp_path, check=True
        )
    assert parse_index((tmp_path / ".git/index").read_bytes()) == set(names)
    repository = find_repository(str(tmp_path / "dir"))
    assert repository.prefix == "dir/"
    assert repository.tracks("b")
    assert not repository.tracks("a")
    repository.close()


def test_a_damaged_index_is_no_harm():
    """Bytes that are no index name nothing, and what is cut short names what comes before."""
    assert parse_index(b"") == frozenset()
    assert parse_index(b"DIRC" + b"\0\0\0\2" + b"\xff\xff\xff\xff" + b"x" * 70) == frozenset()
