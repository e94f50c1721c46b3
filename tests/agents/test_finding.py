"""Which agent files count, `forkrun agents`, and `--agent`."""

import json
from pathlib import Path

import pytest
from support_api import replies
from support_cli import environment, run

import forkrun
from forkrun import agents
from forkrun.agents import Agent, use


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    (folder / ".git").mkdir(parents=True)
    return folder


def define(
    folder: Path, name: str, *lines: str, body: str = "BODY", file: str | None = None
) -> Path:
    path = folder / ".claude" / "agents" / (file or f"{name}.md")
    path.parent.mkdir(parents=True, exist_ok=True)
    head = "\n".join((f"name: {name}", f"description: It is {name}.", *lines))
    path.write_text(f"---\n{head}\n---\n{body}\n")
    return path


def names(found: list[Agent]) -> list[str]:
    return [agent.name for agent in found if agent.is_usable]


def test_project_before_user_and_nested_folders(home: Path, workspace: Path) -> None:
    """The nearest file of a name counts; the one it hides is reported; folders may be nested."""
    below = workspace / "part"
    below.mkdir()
    near = define(below, "one")
    hidden = define(workspace, "one")
    define(workspace, "two", file="deep/er/two.md")
    define(home, "two")
    define(home, "three")
    found = agents.load(cwd=below, environ={"HOME": str(home)})
    assert names(found) == ["one", "two", "three"]
    problems = {agent.path: agent.problems[0].message for agent in found if agent.problems}
    assert problems[str(hidden)] == f"not used, since one is defined by {near}"
    assert len(problems) == 2


def test_nothing_above_the_project_counts(home: Path, workspace: Path) -> None:
    """Agents of a directory above the repository are somebody else's."""
    define(workspace.parent, "stranger")
    assert agents.load(cwd=workspace, environ={"HOME": str(home)}) == []


def test_another_configuration_directory(home: Path, workspace: Path, tmp_path: Path) -> None:
    """$CLAUDE_CONFIG_DIR stands in place of ~/.claude."""
    define(tmp_path / "elsewhere", "one")
    environ = {"HOME": str(home), "CLAUDE_CONFIG_DIR": str(tmp_path / "elsewhere" / ".claude")}
    assert names(agents.load(cwd=workspace, environ=environ)) == ["one"]


def test_files_that_cannot_be_read(home: Path, workspace: Path) -> None:
    """Bytes that are no UTF-8, a directory and a pipe are each one problem, and hang nothing."""
    import os

    define(workspace, "good")
    folder = workspace / ".claude" / "agents"
    (folder / "bytes.md").write_bytes(b"---\nname: \xff\n---\n")
    (folder / "folder.md").mkdir()
    os.mkfifo(folder / "pipe.md")
    found = agents.load(cwd=workspace, environ={"HOME": str(home)})
    assert names(found) == ["good"]
    messages = sorted(agent.problems[0].message for agent in found if agent.problems)
    assert messages == ["cannot be read: not a regular file", "not UTF-8, at byte 10"]


def test_the_list_for_people_and_for_machines(home: Path, workspace: Path) -> None:
    """`forkrun agents` says what each may do and where its mistakes are; `--json` says the same."""
    path = define(workspace, "reviewer", "tools: Read, Bash(git diff:*), WebFetch", "maxTurns: 5")
    text = run("agents", cwd=workspace, env=environment(home), check=0).stdout.decode()
    assert "reviewer  It is reviewer." in text
    assert "may use: bash, read_file; only Read, Bash(git diff:*)" in text
    assert f"{path}:4: there is no such tool here: WebFetch" in text
    done = run("agents", "--json", cwd=workspace, env=environment(home), check=0)
    [line] = done.stdout.splitlines()
    found = json.loads(line)
    assert (found["name"], found["usable"], found["max_turns"]) == ("reviewer", True, 5)
    assert found["problems"][0]["line"] == 4


def test_an_agent_does_a_run(home: Path, workspace: Path, tmp_path: Path) -> None:
    """`spawn --agent` has the file's text, tools and turns, and its rules are enforced."""
    define(workspace, "writer", "tools: Write(notes.md), Bash(git log:*)", body="Write PINK notes.")
    calls = [
        {"name": "write_file", "input": {"file_path": "notes.md", "content": "x"}},
        {"name": "write_file", "input": {"file_path": "other.md", "content": "x"}},
    ]
    model = replies(tmp_path / "s", {"tool_use": calls}, {"text": "FINAL"})
    done = run(
        *("spawn", "--agent", "writer", "--prompt", "go", "--model", model),
        *("--output-format", "stream-json"),
        cwd=workspace,
        env=environment(home),
        check=0,
    )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events[0]["tools"] == ["bash", "write_file"]
    result = events[-1]
    assert result["label"] == "writer"
    assert [denial["input"]["file_path"] for denial in result["denials"]] == ["other.md"]
    assert (workspace / "notes.md").exists()
    assert not (workspace / "other.md").exists()


def test_an_agent_by_its_file(home: Path, workspace: Path, tmp_path: Path) -> None:
    """`--agent FILE` takes any file; its notes are said on stderr with file and line."""
    path = tmp_path / "mine.md"
    path.write_text("---\nname: mine\ndescription: x\ncolour: red\n---\nBe brief.")
    model = replies(tmp_path / "s", {"text": "FINAL"})
    done = run(
        *("spawn", "--agent", path, "--prompt", "go", "--model", model),
        cwd=workspace,
        env=environment(home),
        check=0,
    )
    assert done.stdout == b"FINAL\n"
    assert f"{path}, line 4: unknown key: colour".encode() in done.stderr


@pytest.mark.parametrize(
    ("wanted", "exit_code", "message"),
    [
        ("nobody", 2, "there is no agent 'nobody'"),
        ("nowhere/x.md", 2, "there is no agent file"),
        ("broken", 65, "broken.md, line 1: the file does not begin with ---"),
    ],
)
def test_an_agent_that_cannot_be_had(
    wanted: str, exit_code: int, message: str, home: Path, workspace: Path
) -> None:
    """What is not there is a usage error that lists what is; a broken file is named with a line."""
    define(workspace, "known")
    (workspace / ".claude" / "agents" / "broken.md").write_text("no head")
    done = run(
        *("spawn", "--agent", wanted, "--prompt", "x", "--model", "offline"),
        cwd=workspace,
        env=environment(home),
        check=exit_code,
    )
    assert message in done.stderr.decode()
    if wanted == "nobody":
        assert b"the agents are known" in done.stderr


JOB = forkrun.Job(prompt="go")


def agent(*lines: str, scope: str = "user") -> Agent:
    head = "\n".join(("name: a", "description: b", *lines))
    return Agent.parse(f"---\n{head}\n---\nBODY", path="a.md", scope=scope)


def test_flags_go_before_the_file() -> None:
    """Model, tools and turns that the caller names are not the file's to change."""
    job = forkrun.Job(
        prompt="go", model="offline", tools=("bash",), limits=forkrun.Limits(max_turns=3)
    )
    used = use(agent("tools: Read", "model: haiku", "maxTurns: 9"), job)
    assert (used.model, used.tools, used.limits.max_turns) == ("offline", ("bash",), 3)
    used = use(agent("tools: Read", "model: haiku", "maxTurns: 90"), JOB)
    assert (used.tools, used.limits.max_turns) == (("read_file",), 90)
    assert used.append_system_prompt == "BODY"
    assert use(agent(), forkrun.Job(prompt="go", system="MINE")).append_system_prompt is None


def test_a_projects_file_only_narrows() -> None:
    """Tools that the caller left out, and turns beyond the bound, cannot be had by a file."""
    job = forkrun.Job(prompt="go", tools=("read_file", "grep"))
    used = use(agent("tools: Read, Bash", "maxTurns: 90", scope="project"), job)
    assert used.tools == ("read_file",)
    assert used.limits.max_turns == forkrun.Limits().max_turns
    assert use(agent("maxTurns: 4", scope="project"), job).limits.max_turns == 4
    assert use(agent("permissionMode: plan"), JOB).workspace == "read-only"


def test_rules_of_a_file_stand_beside_those_of_the_caller() -> None:
    """A call must be allowed by both."""
    job = forkrun.Job(prompt="go", allow=("read", "bash(git:*)"))
    used = use(agent("tools: Bash(git log:*), Read"), job)
    policy = forkrun.Policy.parse(allow=used.allow, parents=used.parents)
    assert policy.judge("bash", "git log") is None
    assert policy.judge("bash", "git push") is not None
    assert policy.judge("bash", "ls") is not None


def test_a_fork_keeps_what_is_forked() -> None:
    """In a fork an agent's tools become rules, and neither model nor tool list changes."""
    used = use(agent("tools: Read", "model: haiku"), JOB, is_fork=True)
    assert (used.tools, used.model) == (None, None)
    policy = forkrun.Policy.parse(parents=used.parents)
    assert policy.judge("bash", "ls") is not None
    assert policy.judge("read_file", "x") is None
