"""`forkrun apply` and `forkrun recover`, and what a run says about what it left out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

import pytest
from support_cli import call, environment, wait_until
from support_trees import contents

EDIT = call("bash", command="echo four >> src/a.py; echo new > added")


def kept(site) -> dict:
    """The result of a run that worked and then failed."""
    return site.spawn(EDIT, exits=11)


def test_a_patch_is_applied_by_its_result(plain):
    """The JSON of a result, or the last line of a stream, names the patch."""
    result = kept(plain)
    (plain.tmp / "result.json").write_text('{"type":"started"}\n' + json.dumps(result) + "\n")
    done = plain.forkrun("apply", str(plain.tmp / "result.json"))
    assert done.stdout == b""
    assert b"applied" in done.stderr
    assert (plain.workspace / "added").read_text() == "new\n"


def test_a_patch_is_applied_to_another_directory(plain):
    """--cwd names the workspace."""
    patch = kept(plain)["patch"]
    other = plain.tmp / "other"
    subprocess.run(["cp", "-a", plain.workspace, other], check=True)
    plain.forkrun("apply", patch, "--cwd", str(other))
    assert (other / "added").exists()
    assert not (plain.workspace / "added").exists()


def test_a_patch_that_conflicts_is_not_applied(plain):
    """Exit code 73, the paths are named, and nothing is changed."""
    patch = kept(plain)["patch"]
    (plain.workspace / "src/a.py").write_text("theirs\n")
    before = plain.picture()
    done = plain.forkrun("apply", patch, exits=73)
    assert b"src/a.py (changed meanwhile)" in done.stderr
    assert plain.picture() == before
    assert plain.residue(patch) == []


@pytest.mark.parametrize(
    ("content", "exits", "words"),
    [
        ("no patch at all\n", 65, b"error: "),
        ("# forkrun patch 1\ndiff --git a/x b/x\nindex 1..2\nrubbish\n", 65, b"error: "),
        ('{"type":"result","patch":null}\n', 65, b"names no patch"),
        ("{broken\n", 65, b"not a result"),
        (None, 65, b"cannot be read"),
    ],
)
def test_a_patch_that_is_none_is_refused(plain, content, exits, words):
    """Exit code 65 and one line that says what is wrong; the tree is untouched."""
    path = plain.tmp / "patch"
    if content is not None:
        path.write_text(content)
    before = plain.picture()
    done = plain.forkrun("apply", str(path), exits=exits)
    assert words in done.stderr
    assert b"Traceback" not in done.stderr
    assert plain.picture() == before


def test_the_home_directory_is_no_workspace_to_apply_to(plain):
    """What cannot be a workspace of a run cannot be one of apply or recover."""
    patch = kept(plain)["patch"]
    plain.forkrun("apply", patch, "--cwd", str(plain.home), exits=2)
    plain.forkrun("recover", "--cwd", "/", exits=2)
    plain.forkrun("recover", "--cwd", str(plain.tmp / "nowhere"), exits=2)


def test_nothing_to_recover_is_said(plain):
    """Without a killed commit, recover says so and changes nothing, not even a state directory."""
    done = plain.forkrun("recover")
    assert b"nothing to recover" in done.stderr
    assert not plain.state.exists()


@pytest.mark.parametrize("by", ["recover", "spawn"])
def test_a_commit_whose_parent_is_killed_is_made_good(site, by):
    """After SIGKILL in a commit of 200 files, `recover` or the next run make the tree whole."""
    many = call("bash", command="for i in $(seq 200); do echo $i > new$i; done; rm src/a.py")
    before = contents(site.tree)
    for later in range(8):
        if not killed_in_a_commit(site, many, after_s=0.001 * later):
            site.sh("rm -rf new* ; printf 'one\\ntwo\\nthree\\n' > src/a.py")
            continue
        if by == "recover":
            said = site.forkrun("recover").stderr
        else:
            events = site.forkrun(
                *(*site.arguments({"text": "nothing"}), "--output-format", "stream-json")
            )
            said = events.stderr
            kinds = [json.loads(line)["type"] for line in events.stdout.splitlines()]
            assert kinds[0] == "recovered" and kinds[-1] == "result"
        assert b"a commit that was killed was" in said
        after = contents(site.tree)
        if b"was undone" in said:
            assert after == before
        else:
            new = {f"new{i}" for i in range(1, 201)}
            assert after.keys() == (before.keys() | new) - {"src/a.py"}
        site.forkrun("recover")
        assert site.residue(*(site.state / "patches").glob("*")) == []
        return
    pytest.fail("no commit was ever met in the middle")


def killed_in_a_commit(site, work, *, after_s):
    """Kill a run this long after its commit has begun; say whether the commit was still open."""
    journals = site.state / "journals"
    running = subprocess.Popen(
        site.command(*site.arguments(work, {"text": "done"})),
        cwd=site.workspace,
        env=environment(site.home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: running.poll() is not None or list(journals.glob("*/plan")))
    time.sleep(after_s)
    running.send_signal(signal.SIGKILL)
    running.wait()
    return bool(list(journals.glob("*")))


PLANT = r"""
evil='touch /tmp/fr-planted; touch "$HOME/planted"'
mkdir -p .git/hooks .vscode .claude .config/nvim deep/.git/hooks .idea
for hook in pre-commit post-checkout post-commit fsmonitor-watchman; do
  printf '#!/bin/sh\n%s\n' "$evil" > .git/hooks/$hook; chmod 755 .git/hooks/$hook
done
cp .git/hooks/pre-commit deep/.git/hooks/pre-commit
printf '[core]\n\tfsmonitor = ./run.sh\n\thooksPath = hooks\n[filter "x"]\n\tclean = ./run.sh\n' >> .git/config
printf '#!/bin/sh\n%s\n' "$evil" > run.sh
echo '*.py filter=x' > .gitattributes
echo '{"tasks":[{"runOptions":{"runOn":"folderOpen"}}]}' > .vscode/tasks.json
echo '{}' > .claude/settings.json
for f in .envrc .bashrc pyvenv.cfg sitecustomize.py .mcp.json .idea/x.xml .config/nvim/init.lua x.pth; do echo x > $f; done
echo 'all:; ./run.sh' > Makefile; echo 'import os' > conftest.py; echo n > notes.txt
"""


def test_what_is_planted_is_reported_and_withheld_and_never_run(site):
    """Hooks, filters, tasks and start-up files stay out; what a program may run is pointed out."""
    site.sh("git init -q . && git add -A . && git -c user.name=a -c user.email=a@b commit -qm 1")
    before = contents(site.tree / ".git")
    done = site.forkrun(*site.arguments(call("bash", command=PLANT), {"text": "done"}))
    result = json.loads(done.stdout)
    assert result["committed"]
    withheld = {each["path"].split("/")[0] for each in result["withheld"]}
    assert withheld >= {
        *(".git", "deep", ".vscode", ".claude", ".idea", ".config", ".envrc", ".bashrc"),
        *("pyvenv.cfg", "sitecustomize.py", ".mcp.json", "x.pth"),
    }
    changes = {each["path"] for each in result["changes"]}
    assert changes == {"run.sh", ".gitattributes", "Makefile", "conftest.py", "notes.txt"}
    flagged = {each["path"] for each in result["flagged"]}
    assert flagged == {".gitattributes", "Makefile", "conftest.py"}
    assert b"withheld: .git " in done.stderr
    assert b"look at these before anything runs them: .gitattributes, Makefile" in done.stderr
    assert contents(site.tree / ".git") == before
    assert not os.path.exists("/tmp/fr-planted")
    assert not list(site.home.rglob("planted"))
    assert site.residue() == []


def test_paths_of_the_user_can_be_protected_too(plain):
    """--protect adds to the list, and a rule that names the path lifts it."""
    work = (call("bash", command="echo x > deploy; mkdir -p ci; echo x > ci/a.key"), {"text": "d"})
    flags = ("--protect", "deploy", "*.key")
    result = plain.spawn(*work, flags=flags)
    assert {each["path"] for each in result["withheld"]} == {"deploy", "ci/a.key"}
    assert not (plain.workspace / "deploy").exists()
    result = plain.spawn(*work, flags=(*flags, "--allow", "bash", "write", "write_file(deploy)"))
    assert {each["path"] for each in result["withheld"]} == {"ci/a.key"}
    assert (plain.workspace / "deploy").exists()


@pytest.mark.parametrize("path", ["", "/", "/etc/passwd"])
def test_what_is_no_path_of_the_workspace_cannot_be_protected(plain, path):
    """A usage error names it."""
    plain.forkrun(*plain.arguments({"text": "x"}), "--protect", path, exits=2)


def test_a_commit_that_cannot_be_made_keeps_the_patch(plain):
    """Where the workspace cannot be written any more, the result says why and where the patch is."""
    lock = subprocess.Popen(
        ["flock", str(plain.workspace), "sh", "-c", "echo held; read end"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert lock.stdout.readline() == b"held\n"
    code = (
        "import sys, forkrun.workspace.commit as c, functools;"
        "import forkrun.settling as s;"
        "s.commit_changes = functools.partial(c.commit_changes, lock_timeout_s=0.2);"
        "from forkrun.cli import main; sys.exit(main())"
    )
    command = plain.command(*plain.arguments(EDIT, {"text": "done"}))
    done = subprocess.run(
        [command[0], "-c", code, *command[3:]],
        cwd=plain.workspace,
        env=environment(plain.home),
        capture_output=True,
        check=False,
    )
    lock.communicate()
    result = json.loads(done.stdout)
    assert result["stop_reason"] == "crashed"
    assert "locked by another commit" in result["error"]["message"]
    assert not result["committed"]
    plain.forkrun("apply", result["patch"])
    assert (plain.workspace / "added").exists()


@pytest.mark.parametrize("place", ["nowhere/out.patch", "src", "toplink.patch", "dirlink/x.patch"])
def test_a_patch_that_cannot_be_written_is_refused_before_the_run(plain, place):
    """No such directory, a directory itself, a link in the workspace: exit code 2, nothing run."""
    victim = plain.tmp / "victim"
    victim.mkdir()
    (victim / "x.patch").write_text("mine\n")
    (plain.workspace / "toplink.patch").symlink_to(victim / "x.patch")
    (plain.workspace / "dirlink").symlink_to(victim)
    before = plain.picture()
    arguments = (*plain.arguments(EDIT, {"text": "done"}), "--patch", place)
    done = plain.forkrun(*arguments, exits=2)
    assert b"the patch cannot be written there" in done.stderr
    assert plain.picture() == before
    assert (victim / "x.patch").read_text() == "mine\n"


def test_a_patch_follows_the_users_own_links(plain):
    """A link outside of the workspace leads to where the user wants the patch."""
    (plain.tmp / "real").mkdir()
    (plain.tmp / "link").symlink_to("real")
    (plain.tmp / "latest").symlink_to("link/today")
    for path in (plain.tmp / "link" / "a", plain.tmp / "latest", plain.workspace / "in.patch"):
        plain.sh("git checkout -q . 2>/dev/null; rm -f added")
        result = plain.spawn(EDIT, {"text": "done"}, flags=("--patch", str(path)))
        assert result["committed"]
        assert path.read_text().startswith("# forkrun patch 1\n")
    assert sorted(each.name for each in (plain.tmp / "real").iterdir()) == ["a", "today"]
    assert (plain.tmp / "latest").is_symlink()


def test_a_patch_that_cannot_be_written_any_more_is_kept(plain):
    """The place is gone when the run ends: the work is kept, not committed, and the result says so."""
    target = plain.tmp / "target"
    target.mkdir()
    before = plain.picture()
    arguments = (*plain.arguments(EDIT, {"delay_s": 2, "text": "done"}), "--patch", f"{target}/p")
    transcript = plain.tmp / "transcript"
    command = plain.command(*arguments, "--transcript", str(transcript))
    with subprocess.Popen(
        command, cwd=plain.workspace, env=environment(plain.home), stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
    ) as run:  # fmt: skip
        wait_until(lambda: transcript.exists() and b'"reply"' in transcript.read_bytes())
        target.rmdir()
        result = json.loads(run.communicate()[0])
    assert "cannot be written" in result["error"]["message"]
    assert not result["committed"]
    assert plain.picture() == before
    assert result["patch"].startswith(str(plain.state))
    plain.forkrun("apply", result["patch"])
    assert (plain.workspace / "added").read_text() == "new\n"


ODD = (
    "touch $'a\\xffb' $'\\xfd.mk' $'p\\xe9.envrc'; mkdir -p $'d\\xfe' $'g\\xff/.git'; echo x > $'d\\xfe/f';"
    " touch $'g\\xff/.git/x' && mkfifo $'p\\xff'"
)


@pytest.mark.parametrize("output", ["json", "stream-json", "text"])
def test_names_that_are_not_utf8_are_said_everywhere(plain, output):
    """Result, events, transcript, patch, diffstat, stderr and the tools' output: one result, and no
    traceback, whatever bytes a name is made of."""
    looks = [call("bash", command=ODD), call("glob", pattern="**/*"), call("grep", pattern="x")]
    arguments = (*plain.arguments(*looks, {"text": "done"}), "--output-format", output, "-v")
    files = ("--transcript", str(plain.tmp / "t.jsonl"), "--patch", str(plain.tmp / "p.patch"))
    done = plain.forkrun(*arguments, *files)
    assert b"Traceback" not in done.stderr
    assert rb"a\xffb" in done.stderr
    assert rb"\377" in (plain.tmp / "p.patch").read_bytes()
    assert os.path.exists(os.fsencode(plain.workspace) + b"/a\xffb")
    for line in (plain.tmp / "t.jsonl").read_text(encoding="utf-8").splitlines():
        json.loads(line)
    if output != "text":
        lines = [json.loads(each) for each in done.stdout.decode("utf-8").splitlines()]
        assert [each["type"] for each in lines].count("result") == 1
        changed = {each["path"] for each in lines[-1]["changes"]}
        assert {r"a\xffb", r"d\xfe/f", r"\xfd.mk"} <= changed
        assert r"p\xff" in {each["path"] for each in lines[-1]["withheld"]}
        assert r"\xfd.mk" in {each["path"] for each in lines[-1]["flagged"]}


def test_a_patch_or_a_state_directory_that_is_not_utf8(plain):
    """A result cannot name such a patch: refused. A state directory may have such a name."""
    arguments = plain.arguments(EDIT)
    done = plain.forkrun(*arguments, "--patch", os.fsdecode(b"q\xff.patch"), exits=2)
    assert rb"not UTF-8: q\xff.patch" in done.stderr
    done = subprocess.run(
        plain.command(*arguments),
        cwd=plain.workspace,
        env={
            **environment(plain.home),
            "XDG_STATE_HOME": os.fsdecode(b"%b/s\xff" % os.fsencode(plain.home)),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 11, done.stderr
    assert rb"s\xff" in json.loads(done.stdout)["patch"].encode()
