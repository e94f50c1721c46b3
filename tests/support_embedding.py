"""What the tests of answers, nesting, hooks and tracing have in common: runs in this process."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forkrun.job import Job
from forkrun.models.base import Heard, Reply, Request, Usage
from forkrun.result import Result
from forkrun.runner import Runner


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A directory to work in, with one file, and a home beside it."""
    path = tmp_path / "ws"
    path.mkdir()
    (tmp_path / "home").mkdir()
    (path / "README.md").write_text("# Title\nThe version is 7.\n")
    return path


def environ(workspace: Path, **more: str) -> dict[str, str]:
    """The environment that a runner reads."""
    home = workspace.parent / "home"
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "XDG_STATE_HOME": str(home / "state"),
        **more,
    }


def at(url: str) -> dict[str, str]:
    """The variables that lead to a loopback server."""
    return {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "sk-test"}


def run(
    place: Path,
    model: Any,
    /,
    *,
    events: list[Any] | None = None,
    env: dict[str, str] | None = None,
    runner: dict[str, Any] | None = None,
    snapshot: Any = None,
    output_type: type | None = None,
    job_env: dict[str, str] | None = None,
    **job: Any,
) -> Result:
    """Run one job to its end on a loop of its own."""

    async def whole() -> Result:
        async with Runner(
            model=model, environ=environ(place, **(env or {})), **(runner or {})
        ) as opened:
            return await opened.run(
                Job(prompt=job.pop("prompt", "go"), cwd=str(place), env=job_env or {}, **job),
                on_event=events.append if events is not None else None,
                snapshot=snapshot,
                output_type=output_type,
            )

    return asyncio.run(whole())


class Played:
    """A model that answers by a function of the request's messages; one for any number of runs.

    The function gets the messages, decoded, and gives a line as scripts have them: `text`,
    `tool_use` (name, input), `usage`.
    """

    name = "script:played"

    def __init__(self, answer: Callable[[list[Any]], dict[str, Any]]) -> None:
        self._answer = answer
        self.requests: list[Request] = []

    async def reply(self, request: Request, heard: Heard) -> Reply:
        self.requests.append(request)
        line = self._answer([json.loads(message) for message in request.messages])
        await asyncio.sleep(line.get("delay_s", 0))
        content: list[dict[str, Any]] = []
        if "text" in line:
            content.append({"type": "text", "text": line["text"]})
        for number, (name, fields) in enumerate(line.get("tool_use", ())):
            call_id = f"toolu_{len(request.messages)}_{number}"
            content.append({"type": "tool_use", "id": call_id, "name": name, "input": fields})
        heard(None)
        return Reply(
            content=tuple(map(msgspec.json.encode, content)),
            stop_reason="tool_use" if line.get("tool_use") else "end_turn",
            usage=Usage(**line.get("usage", {"input_tokens": 10, "output_tokens": 1})),
            model=self.name,
        )

    async def close(self) -> None:
        pass


def prompt_of(messages: list[Any]) -> str:
    """The prompt that a fresh run began with."""
    return messages[0]["content"][0]["text"]


def results_in(messages: list[Any]) -> list[dict[str, Any]]:
    """The tool results of the last message."""
    return [b for b in messages[-1]["content"] if b["type"] == "tool_result"]
