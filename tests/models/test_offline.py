"""The offline model, driving the real tools over small projects laid for it."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forkrun.catalog import INPUTS, definitions
from forkrun.models.base import Reply, Request
from forkrun.models.offline import OfflineModel
from forkrun.prompts import SUMMARY_NOW
from forkrun.protocol import ToolCall, ToolLimits
from forkrun.tools import Toolbox

QUESTION = "What testing framework does this project use?"
MOST_TURNS = 6
PYTHON = {
    "pyproject.toml": '[project]\nname = "cart"\nversion = "2.4.1"\nlicense = "MIT"\n'
    'requires-python = ">=3.11"\n\n[dependency-groups]\ndev = ["pytest>=9"]\n',
    "cart/__init__.py": '"""A shopping cart."""\n',
    "cart/prices.py": '"""Prices."""\n\n\ndef total_price(lines):\n    """Add up."""\n    return sum(lines)\n',
    "tests/test_prices.py": "from cart.prices import total_price\n\n\ndef test_total():\n    assert total_price([1]) == 1\n",
    "README.md": "# Cart\n\nRefunds are booked by the night job.\n",
}
NODE = {
    "package.json": '{\n  "name": "shop",\n  "version": "0.9.0",\n  "scripts": {"test": "vitest run"},\n'
    '  "dependencies": {"express": "^5.0.0"},\n  "devDependencies": {\n    "vitest": "^3.0.0"\n  }\n}\n',
    "package-lock.json": '{"packages": {"node_modules/jest": {"version": "29.0.0"}}}\n',
    "src/server.js": 'import express from "express";\nconst app = express();\napp.listen(8080);\n',
}
RUST = {
    "Cargo.toml": '[package]\nname = "sieve"\nversion = "0.3.0"\nlicense = "Apache-2.0"\n',
    "src/lib.rs": "pub fn sieve() {}\n\n#[cfg(test)]\nmod tests {\n    #[test]\n    fn it_sieves() {}\n}\n",
}


def lay(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def user(*texts: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text} for text in texts]}


def ask(messages: list[dict[str, Any]], *, tools: tuple[str, ...], max_tokens: int = 8000) -> Reply:
    params = {"model": "offline", "max_tokens": max_tokens, "tools": definitions(tools)}
    request = Request(
        params={name: msgspec.Raw(msgspec.json.encode(value)) for name, value in params.items()},
        messages=[msgspec.json.encode(message) for message in messages],
    )
    return asyncio.run(OfflineModel().reply(request, lambda _: None))


def drive(
    folder: Path,
    *messages: dict[str, Any] | str,
    tools: tuple[str, ...] = tuple(INPUTS),
    judge: Callable[[str, str], str | None] = lambda tool, subject: None,
) -> tuple[str, list[ToolCall]]:
    """Run the loop to its end in this folder; give the last text and the calls that were made."""
    said = [user(m) if isinstance(m, str) else m for m in messages]
    made: list[ToolCall] = []
    with Toolbox(
        str(folder), tools=tools, env={"PATH": "/usr/bin:/bin"}, limits=ToolLimits(), judge=judge
    ) as toolbox:
        for _ in range(MOST_TURNS):
            reply = ask(said, tools=tools)
            blocks = [msgspec.json.decode(block) for block in reply.content]
            if reply.stop_reason == "end_turn":
                return "".join(block["text"] for block in blocks), made
            results = []
            for block in blocks:
                call = ToolCall(
                    id=block["id"], name=block["name"], input=msgspec.json.encode(block["input"])
                )
                made.append(call)
                result = toolbox.run(call)
                results.append(
                    {
                        "type": "tool_result",
                        "tool_use_id": call.id,
                        "content": result.text,
                        "is_error": result.is_error,
                    }
                )
            said += [{"role": "assistant", "content": blocks}, {"role": "user", "content": results}]
    raise AssertionError(f"no answer after {MOST_TURNS} turns: {made}")


@pytest.mark.parametrize(
    ("files", "question", "sentence", "evidence"),
    [
        (PYTHON, QUESTION, "tests with pytest", 'pyproject.toml:8: dev = ["pytest>=9"]'),
        (NODE, QUESTION, "tests with vitest", 'package.json:7: "vitest": "^3.0.0"'),
        (RUST, QUESTION, "cargo's own test harness", "src/lib.rs:5: #[test]"),
        (PYTHON, "Which version is this?", "version is 2.4.1", "pyproject.toml:3:"),
        (NODE, "Which version is this?", "version is 0.9.0", "package.json:3:"),
        (RUST, "Under which license is it?", "license is Apache-2.0", "Cargo.toml:4:"),
        (PYTHON, "Which Python does it require?", "requires >=3.11", "pyproject.toml:5:"),
        (NODE, "What port does the server listen on?", "port is 8080", "src/server.js:3:"),
        (NODE, "Which web framework is it?", "built on Express", "package.json:5:"),
        (PYTHON, "Where is `total_price` defined?", "cart/prices.py:4", "def total_price(lines):"),
        (PYTHON, "Explain the class total_price", "defined in cart/prices.py:4", "def total_price"),
        (PYTHON, "When are refunds booked?", "README.md", "README.md:3: Refunds are booked"),
    ],
)
def test_a_question_is_answered_with_file_and_line(
    files: dict[str, str], question: str, sentence: str, evidence: str, tmp_path: Path
) -> None:
    """The answer says it, and shows the line of the file that says so."""
    text, calls = drive(lay(tmp_path, files), question)
    assert sentence in text
    assert evidence in text
    assert {call.name for call in calls} <= {"glob", "grep", "read_file"}


def test_this_project_s_own_framework_is_found() -> None:
    """On this very checkout the first question of the README gets its answer."""
    root = Path(__file__).resolve().parents[2]
    text, _ = drive(root, QUESTION)
    first = text.splitlines()[0]
    assert first.startswith("This project tests with pytest")
    assert "pyproject.toml:" in first


def test_the_first_turn_searches_in_parallel_and_the_next_reads(tmp_path: Path) -> None:
    """Searches come together in one turn, then files are read."""
    _, calls = drive(lay(tmp_path, PYTHON), QUESTION)
    turns = {call.id.rpartition("_")[0] for call in calls}
    names = [call.name for call in calls]
    assert len(turns) == 2
    assert names.index("read_file") > max(names.index("glob"), names.index("grep"))


def test_an_empty_workspace_gets_a_plain_answer(tmp_path: Path) -> None:
    """Where there is nothing, the answer says so and what was searched for."""
    text, _ = drive(tmp_path, QUESTION)
    assert text.startswith(
        "Nothing in this workspace speaks to this. Searched for: testing, framework"
    )


def test_words_that_occur_nowhere_are_named(tmp_path: Path) -> None:
    """Where nothing fits, the files that there are come instead."""
    text, _ = drive(lay(tmp_path, RUST), "Zymurgy?")
    assert "No line speaks to this (searched for: Zymurgy)" in text
    assert "src/lib.rs" in text


@pytest.mark.parametrize("tools", [("bash",), ("read_file",), ("grep",), ("glob", "read_file")])
def test_it_makes_do_with_the_tools_that_there_are(tools: tuple[str, ...], tmp_path: Path) -> None:
    """It calls only what it is given, and still answers."""
    text, calls = drive(lay(tmp_path, PYTHON), QUESTION, tools=tools)
    assert {call.name for call in calls} <= set(tools)
    assert "tests with pytest" in text


def test_without_tools_it_says_so() -> None:
    """With no tool at all it calls none and says what it is."""
    reply = ask([user(QUESTION)], tools=())
    assert reply.stop_reason == "end_turn"
    assert b"no tools in this run and I am not a language model" in reply.content[0]


def test_denied_calls_are_reported(tmp_path: Path) -> None:
    """When every search is denied the answer says so with the reason, and the run still ends."""
    text, _ = drive(
        lay(tmp_path, PYTHON), QUESTION, tools=("bash",), judge=lambda *_: "not bash here"
    )
    assert "calls failed:\n- bash: not bash here" in text


def test_a_recovery_turn_gets_words_only(tmp_path: Path) -> None:
    """Asked for the final summary, it answers from what it has and makes no call."""
    call = {"type": "tool_use", "id": "t", "name": "grep", "input": {"pattern": "pytest"}}
    hit = {
        "type": "tool_result",
        "tool_use_id": "t",
        "content": 'pyproject.toml:8:dev = ["pytest"]',
    }
    messages = [
        user(QUESTION),
        {"role": "assistant", "content": [call]},
        {
            "role": "user",
            "content": [hit, {"type": "text", "text": f"Bound reached. {SUMMARY_NOW}"}],
        },
    ]
    reply = ask(messages, tools=("grep", "read_file"))
    assert reply.stop_reason == "end_turn"
    assert b"tests with pytest" in reply.content[0]


def test_the_same_request_gives_the_same_reply(tmp_path: Path) -> None:
    """Two runs over the same files make the same calls and give the same answer."""
    folder = lay(tmp_path, NODE)
    assert drive(folder, QUESTION) == drive(folder, QUESTION)


def test_a_reply_keeps_to_max_tokens() -> None:
    """An answer is no longer than the output tokens asked for, and its usage is counted."""
    reply = ask([user(" ".join(f"word{n}" for n in range(300)))], tools=(), max_tokens=20)
    assert reply.usage.output_tokens <= 30
    assert reply.usage.input_tokens > 300


def test_the_text_is_heard_as_it_is_written() -> None:
    """The pieces that are heard make up the text of the reply."""
    heard: list[str | None] = []
    request = Request(
        params={}, messages=[msgspec.json.encode({"role": "user", "content": "hello"})]
    )
    reply = asyncio.run(OfflineModel().reply(request, heard.append))
    assert "".join(piece or "" for piece in heard) == msgspec.json.decode(reply.content[0])["text"]


CONVERSATION = (
    user("Move the importer to the new API. Keep the old one until Friday."),
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "We decided to use httpx instead of requests. I look first."},
            {"type": "tool_use", "id": "a", "name": "Read", "input": {"file_path": "importer.py"}},
            {"type": "tool_use", "id": "b", "name": "Edit", "input": {"file_path": "client.py"}},
            {"type": "tool_use", "id": "c", "name": "Bash", "input": {"command": "make check"}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": "1\timport requests"},
            {
                "type": "tool_result",
                "tool_use_id": "b",
                "content": [{"type": "text", "text": "ok"}],
            },
            {"type": "tool_result", "tool_use_id": "c", "content": "exit 2", "is_error": True},
        ],
    },
    {"role": "assistant", "content": "The retry test still fails. TODO: mock the clock."},
)


def test_a_conversation_becomes_notes(tmp_path: Path) -> None:
    """Asked for notes, it names decisions, files, commands with their failure, and open points."""
    text, calls = drive(tmp_path, *CONVERSATION, "Summarize the conversation so far.")
    assert not calls
    assert "### Decisions\n- We decided to use httpx instead of requests." in text
    assert "### Files changed\n- client.py" in text
    assert "### Files read\n- importer.py" in text
    assert "- `make check` (failed)" in text
    assert "- The retry test still fails." in text
    assert "- TODO: mock the clock." in text


MEMORY_TASK = "Your task:\nUpdate session-memory.md with notes on this session."


def test_notes_are_added_to_a_file_that_exists(tmp_path: Path) -> None:
    """The file that the task names keeps what it held and gains the notes."""
    before = "# Memory\n\n- older\n\n- older\n"
    lay(tmp_path, {"session-memory.md": before})
    text, calls = drive(tmp_path, *CONVERSATION, MEMORY_TASK)
    after = (tmp_path / "session-memory.md").read_text()
    assert [call.name for call in calls] == ["read_file", "edit_file"]
    assert after.startswith(before.rstrip())
    assert "### Decisions" in after
    assert text.startswith("The notes stand in session-memory.md.")


def test_notes_make_a_file_that_is_missing(tmp_path: Path) -> None:
    """Where there is no such file, it is written."""
    drive(tmp_path, *CONVERSATION, MEMORY_TASK)
    assert (tmp_path / "session-memory.md").read_text().startswith("## Notes from the conversation")


def test_notes_that_may_not_be_written_are_said_instead(tmp_path: Path) -> None:
    """A denial is told, and the notes are in the answer all the same."""
    lay(tmp_path, {"session-memory.md": "# Memory\n"})
    text, _ = drive(
        tmp_path,
        *CONVERSATION,
        MEMORY_TASK,
        judge=lambda tool, _: "only reading is allowed" if tool == "edit_file" else None,
    )
    assert text.startswith("Not written to session-memory.md: only reading is allowed")
    assert "### Decisions" in text
    assert (tmp_path / "session-memory.md").read_text() == "# Memory\n"


def test_a_fork_with_a_question_searches_and_remembers(tmp_path: Path) -> None:
    """A question after a conversation is answered from the workspace and from what was said."""
    text, _ = drive(lay(tmp_path, PYTHON), *CONVERSATION, "Why does the retry test fail?")
    assert "From the conversation:\n- The retry test still fails. TODO: mock the clock." in text


def test_a_fork_calls_the_parent_s_tools_by_their_names() -> None:
    """Where the request shows tools under a parent's names, those are called."""
    tools = [
        {"name": name, "input_schema": {"type": "object"}} for name in ("Read", "Grep", "Task")
    ]
    request = Request(
        params={"tools": msgspec.Raw(msgspec.json.encode(tools))},
        messages=[msgspec.json.encode(user(QUESTION))],
    )
    reply = asyncio.run(OfflineModel().reply(request, lambda _: None))
    assert {msgspec.json.decode(block)["name"] for block in reply.content} == {"Grep"}
