"""Cases of the bash tool, each played with the right value, and their siblings."""

import os
import pty
import resource
import signal
import subprocess
import time

import pytest
from support_tools import PATH, drive, opened, pids_with

from forkrun.protocol import ToolLimits
from forkrun.tools.environment import UNATTENDED


def test_C01_background_job(box):
    """A background job does not hold the call up, is named in the result, and is gone."""
    started = time.monotonic()
    result = box("bash", command="sleep 300.101 & echo hi", timeout=20)
    assert time.monotonic() - started < 2
    assert not result.is_error
    assert result.text == "hi\n[background processes were ended with the call: sleep]"
    assert pids_with("300.101") == []


@pytest.mark.parametrize(
    "command",
    [
        "setsid sleep 300.102 & echo hi",
        "(setsid sleep 300.102 &) ; echo hi",
        "setsid bash -c 'trap \"\" TERM HUP; setsid sleep 300.102 & sleep 300.102' >/dev/null 2>&1 & echo hi",
        "nohup sleep 300.102 >/dev/null 2>&1 & disown; echo hi",
        "python3 -c 'import os,time\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0:\n"
        "  time.sleep(300.102)' & echo hi; sleep 0.2",
    ],
)
def test_C01_daemons(box, command):
    """Neither a session of its own, nor a double fork, nor deaf ears to SIGTERM save a process."""
    result = box("bash", command=command)
    assert result.text.startswith("hi\n[background processes were ended")
    assert pids_with("300.102") == []


def test_C01_a_respawner_and_many_daemons(box):
    """What starts itself again and again is caught too."""
    box.sh(
        'printf \'#!/bin/bash\\ntrap "" TERM\\nsetsid "$0" & sleep 0.01\\n\' > again; chmod +x again'
    )
    box("bash", command="setsid ./again & echo hi")
    assert pids_with("again") == []
    box("bash", command="for i in $(seq 100); do setsid sleep 300.103 & done")
    assert pids_with("300.103") == []


def test_C01_what_ends_by_itself_is_waited_for(box):
    """A process substitution may finish what it writes."""
    result = box("bash", command="echo data > >(sleep 0.05; cat > out.txt)")
    assert result.text == "(no output)"
    assert (box.workspace / "out.txt").read_text() == "data\n"


def test_C01_children_of_others_are_left_alone(ws):
    """A child that this process had before is neither killed nor reaped."""
    with subprocess.Popen(["sleep", "300.104"]) as mine, opened(ws) as box:
        done = subprocess.Popen(["true"])
        box("bash", command="sleep 300.105 & true")
        assert done.wait() == 0
        assert mine.poll() is None
        mine.kill()


def test_C04_command_that_reads_stdin(ws):
    """Each reader sees the end of its input at once, whatever the runner's own stdin is."""
    reading, writing = os.pipe()
    os.write(writing, b"SNAPSHOT")
    try:
        command = "cat; read x; python3 -c 'input()'; echo end"
        started = time.monotonic()
        [result] = drive(ws, [("bash", {"command": command, "timeout": 20})], stdin=reading)
    finally:
        os.close(reading)
        os.close(writing)
    assert time.monotonic() - started < 10
    assert "EOFError" in result["text"]
    assert result["text"].endswith("end")
    assert "SNAPSHOT" not in result["text"]


def test_C06_password_prompt_on_the_terminal(ws):
    """A command has no terminal, even if the runner has one, and nothing is written to that."""
    command = (
        "(exec 3</dev/tty) 2>/dev/null && echo HAS_TTY || echo NO_TTY;"
        "GIT_ASKPASS= git ls-remote https://127.0.0.1:1/x; ssh -o BatchMode=no -p 1 127.0.0.1; true"
    )
    terminal, runner_side = pty.openpty()
    try:
        started = time.monotonic()
        [result] = drive(
            ws,
            [("bash", {"command": command, "timeout": 20})],
            before=["setsid", "--ctty", "--wait"],
            stdin=runner_side,
            stdout=runner_side,
            stderr=runner_side,
        )
        control = subprocess.run(
            ["setsid", "--ctty", "--wait", "bash", "-c", "exec 3</dev/tty"],
            stdin=runner_side,
            stdout=runner_side,
            stderr=runner_side,
            check=False,
        )
        os.set_blocking(terminal, False)
        with pytest.raises(BlockingIOError):
            print(os.read(terminal, 100))
    finally:
        os.close(terminal)
        os.close(runner_side)
    assert control.returncode == 0
    assert "NO_TTY" in result["text"] and "HAS_TTY" not in result["text"]
    assert time.monotonic() - started < 10


def test_C07_pager(box):
    """Long output comes whole and without a wait, whatever pager is configured."""
    box.sh(
        "git init -q -b main . && git config user.email a@b.c && git config user.name a &&"
        "git config core.pager 'less' && git config pager.log true &&"
        'for i in $(seq 60); do echo $i > f; git add f; git commit -q -m "number $i"; done'
    )
    started = time.monotonic()
    text = box.ok("bash", command="git log; git diff HEAD~1; echo $PAGER", timeout=20)
    assert time.monotonic() - started < 5
    assert "number 60" in text and "number 1\n" in text and "\n+60" in text
    assert text.endswith("cat")


def test_C08_editor(ws):
    """No editor is started: the command fails or takes the default text, and the call ends."""
    (ws.parent / "bin").mkdir()
    fake = ws.parent / "bin" / "vi"
    fake.write_text(f"#!/bin/sh\ntouch {ws}/VI\nsleep 60\n")
    fake.chmod(0o755)
    env = {"PATH": f"{fake.parent}:{PATH}", "HOME": str(ws.parent), "EDITOR": "vi", "VISUAL": "vi"}
    with opened(ws, env=env) as box:
        box.sh(
            "git init -q -b main . && git config user.email a@b.c && git config user.name a &&"
            "git config core.editor vi && for i in 1 2; do echo $i > f; git add f; git commit -qm $i; done;"
            "echo 3 > f; git add f"
        )
        started = time.monotonic()
        text = box("bash", command="git commit; echo c=$?; git rebase -i HEAD~1; echo r=$?").text
        assert time.monotonic() - started < 10
    assert "empty commit message" in text and "c=1" in text and "r=" in text
    assert not (ws / "VI").exists()


def test_C09_time_limit_kills_the_tree(box):
    """At the limit nothing of the command lives; the next call works."""
    command = "python3 -c 'import time  # mark-c09\nwhile True: time.sleep(0.1)' ; echo never"
    started = time.monotonic()
    result = box("bash", command=command, timeout=1)
    assert time.monotonic() - started < 3
    assert result.is_error and "timed out after 1." in result.text and "never" not in result.text
    assert pids_with("mark-c09") == []
    assert box.ok("bash", command="echo works") == "works"


def test_C09_deaf_and_stopped_processes(box):
    """Processes that ignore signals or are stopped end as well."""
    command = (
        "trap '' TERM INT HUP; sleep 300.106 & (kill -STOP $BASHPID) & while :; do sleep 0.1; done"
    )
    result = box("bash", command=command, timeout=0.5)
    assert result.is_error and "timed out" in result.text
    assert pids_with("300.106") == []


def test_C11_output_without_end(ws):
    """Endless output ends at the limit, is bounded in memory and says what is missing."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with opened(ws) as box:
        started = time.monotonic()
        result = box("bash", command="echo first; yes; ", timeout=1)
        assert time.monotonic() - started < 3
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 20_000
    assert result.is_error and "timed out" in result.text
    assert len(result.text) < 31_000
    assert result.text.startswith("first\ny\n") and " bytes dropped " in result.text


@pytest.mark.parametrize(
    "command", ["head -c 300M /dev/zero", "head -c 300M /dev/zero | tr '\\0' a"]
)
def test_C11_one_endless_line(box, command):
    """Output without a line end is bounded as well, and the bytes are counted."""
    text = box.ok("bash", command=command, timeout=60)
    assert len(text) < 31_000
    kept = sum(text.count(character) for character in ("a", "\ufffd")) - 3  # "a" in the note
    dropped = int(text.partition("[… ")[2].partition(" ")[0])
    assert dropped > 299_000_000
    assert "a" * 100 not in text or dropped + kept == pytest.approx(300 * 1024 * 1024, abs=10)


def test_C13_output_that_is_not_utf_8(box):
    """Any bytes become text; the exit code is that of the command."""
    text = box.ok("bash", command="printf 'a\\377\\360\\000b\\n'; head -c 300 /dev/urandom")
    assert text.startswith("a\ufffd\ufffd\ufffdb")
    text.encode()


def test_C13_cut_in_the_middle_of_a_character(ws):
    """Where output is cut, no character is broken."""
    with opened(ws, limits=ToolLimits(result_chars=100)) as box:
        text = box.ok("bash", command="for i in $(seq 5000); do printf 日; done")
    assert "\ufffd" not in text and "日" in text
    dropped = int(text.partition("[… ")[2].partition(" ")[0])
    assert dropped == pytest.approx(3 * (5000 - text.count("日")), abs=4)


def test_C15_no_success_is_claimed(box):
    """The code is that of the shell, and nobody calls it a success."""
    result = box("bash", command="sh -c 'echo 2 failed; exit 3' 2>&1 | tail -1")
    assert result.text == "2 failed" and not result.is_error
    result = box("bash", command="sh -c 'echo 2 failed; exit 3'")
    assert result.text == "2 failed\n[exit code 3]" and result.is_error
    result = box("bash", command="kill -SEGV $$")
    assert "SIGSEGV" in result.text and result.is_error


def test_C16_no_pipefail(box):
    """A pipeline means what it means in a plain `bash -c`."""
    command = "seq 1 100000 | head -3; echo rc=$?; grep zzz /etc/hosts | wc -l; echo rc=$?"
    assert box.ok("bash", command=command) == "1\n2\n3\nrc=0\n0\nrc=0"


def test_C17_sigpipe_is_not_ignored(box):
    """Commands start with default signals and an empty mask, whatever the runner has."""
    assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
    try:
        text = box.ok("bash", command="yes | head -1; echo ${PIPESTATUS[@]}", timeout=10)
        status = box.ok("bash", command="cat /proc/self/status")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    assert text == "y\n141 0"
    masks = dict(line.split(":\t") for line in status.split("\n") if line.startswith("Sig"))
    of_the_libc = 0b11 << 31  # 32 and 33 are glibc's own and cannot be set from outside
    for name in ("SigBlk", "SigIgn", "SigCgt"):
        assert int(masks[name], 16) & ~of_the_libc == 0, name


def test_C18_heredoc_at_the_end(box):
    """A heredoc that ends the command is whole, and nothing of ours is in it."""
    text = box.ok("bash", command="cat > out.txt <<'EOF'\nline 1\nEOF")
    assert text == "(no output)"
    assert (box.workspace / "out.txt").read_bytes() == b"line 1\n"


def test_C20_working_directory_removed(box):
    """The next command starts in the workspace, whatever became of the last one's directory."""
    box.ok("bash", command="mkdir -p t/u && cd t/u && rm -rf ../../t")
    assert box.ok("bash", command="echo alive; pwd") == f"alive\n{box.workspace}"


def test_C20_the_working_directory_of_the_runner_stays(box):
    """Running a command does not move the process that runs it."""
    before = os.getcwd()
    box.ok("bash", command="cd /; true")
    assert os.getcwd() == before


def test_C22_nul_in_the_command(box):
    """A NUL is named and nothing runs; file tools do the same for paths."""
    assert "NUL" in box.fails("bash", command="echo a\0; touch PWNED")
    for tool, arguments in (
        ("read_file", {"path": "a\0b"}),
        ("write_file", {"path": "a\0b", "content": "x"}),
        ("edit_file", {"path": "a\0b", "old_string": "a", "new_string": "b"}),
        ("glob", {"pattern": "a\0b"}),
        ("grep", {"pattern": "x", "path": "a\0b"}),
        ("grep", {"pattern": "a\0b"}),
        ("grep", {"pattern": "a", "glob": "a\0b"}),
    ):
        assert "NUL" in box.fails(tool, **arguments), tool
    assert os.listdir(box.workspace) == []


@pytest.mark.parametrize("command", ["", "  \n", "x" * 200_000])
def test_C22_commands_that_no_shell_takes(box, command):
    """An empty command and one that is too long are errors that say so."""
    assert "command is" in box.fails("bash", command=command)


def test_C22_lone_surrogate(box):
    """Half of a character in the input is an error result."""
    for raw in (b'{"command": "echo \\ud800"}', b'{"command": "\xff"}'):
        result = box.raw("bash", raw)
        assert result.is_error and "reason of its own" not in result.text
    result = box.raw("write_file", b'{"file_path": "f", "content": "\\ud800"}')
    assert result.is_error and os.listdir(box.workspace) == []


def test_C24_environment_is_what_was_given(ws, monkeypatch):
    """Nothing of the runner's own environment reaches a command."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-canary-1")
    monkeypatch.setenv("FORKRUN_ANYTHING", "canary-3")
    with opened(ws, env={"PATH": PATH, "GIVEN": "yes"}) as box:
        text = box.ok(
            "bash",
            command="env; printenv; python3 -c 'import os;print(dict(os.environ))'; cat /proc/self/environ",
        )
        names = {
            line.partition("=")[0]
            for line in box.ok("bash", command="env -0 | tr '\\0' '\\n'").split("\n")
        }
    assert "canary" not in text and "GIVEN=yes" in text
    assert names <= {"PATH", "GIVEN", "PWD", "SHLVL", "_", "OLDPWD", *UNATTENDED}


def test_C24_descriptors_are_not_inherited(box):
    """A command has descriptors 0, 1 and 2, even if somebody made others inheritable."""
    reading, writing = os.pipe()
    os.set_inheritable(reading, True)
    os.set_inheritable(writing, True)
    try:
        text = box.ok("bash", command="ls /proc/$$/fd; true")
    finally:
        os.close(reading)
        os.close(writing)
    assert text == "0\n1\n2"


def test_C26_no_room_for_the_output(ws):
    """Output is kept in memory: a limit on files does not touch it."""
    before = ["bash", "-c", 'ulimit -f 1; "$@"', "sh"]
    env = {"PATH": PATH, "TMPDIR": "/nonexistent"}
    calls = [("bash", {"command": "for i in $(seq 2000); do echo hello; done | tail -1"})]
    [result] = drive(ws, calls, before=before, env=env)
    assert result == {"text": "hello", "is_error": False}


def test_C27_colour_codes_and_progress_bars(box):
    """The model sees the words and the last state of the progress."""
    command = (
        "printf '\\033[31mred\\033[0m\\n'; for i in 1 2 3; do printf '\\r%d%%' $i; done;"
        "printf '\\033]0;title\\007\\n'; echo $TERM $NO_COLOR"
    )
    assert box.ok("bash", command=command) == "red\n3%\ndumb 1"


def test_C28_output_before_the_time_limit_is_kept(box):
    """What was printed before the limit is in the result, from both streams, in order."""
    result = box("bash", command="echo step1; echo err1 >&2; sleep 60", timeout=0.5)
    assert result.is_error
    assert result.text.startswith("step1\nerr1\n[timed out after 0.5 s")
    result = box(
        "bash", command="python3 -c 'import time; print(\"early\"); time.sleep(60)'", timeout=1
    )
    assert result.text.startswith("early\n[timed out")


def test_C28_asked_time_has_a_bound(ws):
    """A call cannot ask for more time than there is, and gets the default without asking."""
    with opened(ws, limits=ToolLimits(tool_timeout_s=0.3, max_tool_timeout_s=0.6)) as box:
        assert "timed out after 0.3" in box("bash", command="sleep 9").text
        assert "timed out after 0.6" in box("bash", command="sleep 9", timeout=120_000).text
        for timeout in (0, -1):
            assert "timeout" in box.fails("bash", command="touch RAN", timeout=timeout)
    assert os.listdir(ws) == []


def test_C30_one_stuck_command_blocks_no_later_one(box):
    """Each call is a shell of its own."""
    assert box.ok("bash", command="for i in 1 2 3; do\n  echo $i\ndone") == "1\n2\n3"
    assert "timed out" in box.fails("bash", command="cat <(sleep 100)", timeout=0.5)
    result = box("bash", command='echo "unfinished')
    assert result.is_error and "unexpected EOF" in result.text and "[exit code 2]" in result.text
    assert box.ok("bash", command="echo alive") == "alive"


def test_C30_a_shell_that_closes_its_output_is_still_waited_for(box):
    """The end of output is not the end of the command."""
    result = box("bash", command="exec >&- 2>&-; sleep 0.3; exit 7")
    assert result.text == "[exit code 7]"


def test_signs_of_life(ws):
    """Output is a sign of life, at most once a second and for the call that runs."""
    heard = []
    with opened(ws, alive=heard.append) as box:
        box.ok("bash", command="for i in $(seq 15); do echo $i; sleep 0.1; done")
        box.ok("bash", command="sleep 0.1")
    assert heard in (["t1"] * 2, ["t1"])
