"""examples/parent.py and the recipes, each run as it stands against a model on the loopback."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from support_cli import environment
from support_parents import PROMPTS, anthropic_api, openai_api

EXAMPLES = Path(__file__).parents[2] / "examples"
HANG_S = 100


def need(package: str) -> None:
    """Skip where a recipe's package is not installed; fail where all of them are asked for."""
    found = find_spec(package)
    if found is None or found.origin is None:  # a folder of that name is no package
        if os.environ.get("FORKRUN_REQUIRE_RECIPES") == "1":
            pytest.fail(f"{package} is not installed")
        pytest.skip(f"{package} is not installed; it is in the dependency group `recipes`")


def play(example: str, tmp_path: Path, **extra: str) -> str:
    """Run an example in a workspace and give what it prints."""
    workspace = tmp_path / "ws"
    workspace.mkdir()
    (tmp_path / "tmp").mkdir()
    command = [sys.executable, str(EXAMPLES / example), "Which halves are there?"]
    done = subprocess.run(
        command,
        cwd=workspace,
        env=environment(
            tmp_path, ANTHROPIC_API_KEY="sk-test", TMPDIR=str(tmp_path / "tmp"), **extra
        ),
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n--- stderr\n{done.stderr}"
    return done.stdout


def check(printed: str) -> None:
    """Both reports reached the parent's model, in the order of its calls, marked as data."""
    assert "ANSWER" in printed
    assert all(f"FOUND by a subagent: {prompt}" in printed for prompt in PROMPTS), printed
    places = [printed.index(f"FOUND by a subagent: {prompt}") for prompt in PROMPTS]
    assert places == sorted(places)
    assert printed.count('<subagent-report stop_reason="completed">') == 2


def test_the_parent_of_twenty_lines(tmp_path: Path) -> None:
    """The example works against a strict Messages API, and has some twenty lines of code."""
    with anthropic_api() as server:
        check(play("parent.py", tmp_path, ANTHROPIC_BASE_URL=server.url))
    code = (EXAMPLES / "parent.py").read_text().split("async def main")[1].split("if __name__")[0]
    assert len(code.strip().splitlines()) <= 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "package"),
    [
        ("with_pydantic_ai.py", "pydantic_ai"),
        ("with_langchain.py", "langchain_anthropic"),
        ("with_deepagents.py", "deepagents"),
    ],
)
def test_a_recipe_on_the_messages_api(recipe: str, package: str, tmp_path: Path) -> None:
    """The recipe runs our task tool in the real package, two calls of one reply."""
    need(package)
    with anthropic_api() as server:
        check(play(f"recipes/{recipe}", tmp_path, ANTHROPIC_BASE_URL=server.url))


@pytest.mark.slow
def test_a_recipe_for_openai_agents(tmp_path: Path) -> None:
    """The recipe runs our task tool as a function tool of an agent on another model's API."""
    need("agents")
    with anthropic_api() as server, openai_api() as url:
        extra = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "sk-test"}
        printed = play(
            "recipes/with_openai_agents.py", tmp_path, ANTHROPIC_BASE_URL=server.url, **extra
        )
        check(printed)


@pytest.mark.slow
def test_a_recipe_for_claude_agent_sdk(tmp_path: Path) -> None:
    """The recipe runs our task tool as an MCP server inside of the program, for the real CLI."""
    need("claude_agent_sdk")
    with anthropic_api() as server:
        printed = play(
            "recipes/with_claude_agent_sdk.py",
            tmp_path,
            ANTHROPIC_BASE_URL=server.url,
            CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
            DISABLE_AUTOUPDATER="1",
        )
    check(printed)
