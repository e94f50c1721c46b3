"""Runs the check of a run: a command of the user's, in what the subagent left, before any commit.

    changes of the view ─▶ archive ─▶ a fresh sandbox, a fresh view: unpack, then the command

The check does not run in the subagent's own sandbox. What that has left running, or has put into
its home directory, `/tmp` or the memory of its worker, could answer for the check; so a new child
gets a new view, and in it the changes as data. It sees what a commit would bring, and what git
ignores (installed packages, build results); what is withheld by a rule or a protection it does not
see. What the command itself runs is code of the workspace, changed by the subagent: it is confined
as that was, and a test that was made to pass does pass.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from forkrun.events import Emit, Event, ToolResultEvent
from forkrun.job import Job
from forkrun.models.base import Heard, Model, Reply, Request, Usage
from forkrun.protocol import Rules
from forkrun.result import Result

OUTPUT_CHARS = 2_000
_SPARE_S = 60.0

_UNPACK = """\
import contextlib, os, shutil, sys, tarfile
with tarfile.open(sys.argv[1], encoding="utf-8", errors="surrogateescape") as archive:
    gone, *members = archive.getmembers()
    for line in archive.extractfile(gone).read().split(b"\\0")[:-1]:
        path = os.fsdecode(line)
        with contextlib.suppress(FileNotFoundError):
            if os.path.islink(path) or not os.path.isdir(path):
                os.unlink(path)
            else:
                shutil.rmtree(path)
    for member in members:
        if os.path.lexists(member.name) and not member.isdir():
            os.unlink(member.name)
    trusted = {"filter": "fully_trusted"} if hasattr(tarfile, "data_filter") else {}
    archive.extractall(members=members, **trusted)
"""


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the command succeeded, and the end of what it printed."""

    passed: bool
    output: str


RunJob = Callable[[Job, Model, Emit], Awaitable[Result]]


async def run_check(job: Job, *, archive: str, run_job: RunJob) -> Checked:
    """Run the check of a job over the changes in an archive, by `run_job`; never raises for it."""
    assert job.check is not None
    model = _Commands(_unpack_command(archive), job.check)
    result = await run_job(check_job(job, archive=archive), model, model.watch)
    if result.stop_reason != "completed":
        why = result.error.message if result.error else "it did not come to its end"
        return Checked(passed=False, output=f"[{result.stop_reason}: {why}]"[-OUTPUT_CHARS:])
    return Checked(passed=model.ended == [False, False], output=model.output[-OUTPUT_CHARS:])


def check_job(job: Job, *, archive: str) -> Job:
    """Give the job that the check is: confined as the run was, with nothing of it kept."""
    limits = msgspec.structs.replace(
        job.limits,
        timeout_s=job.limits.tool_timeout_s + _SPARE_S,
        idle_timeout_s=job.limits.tool_timeout_s + _SPARE_S,
        max_turns=3,
        max_total_tokens=None,
        max_budget_usd=None,
    )
    return Job(
        prompt="Run the check.",
        tools=("bash",),
        deny=_about_files(job.deny),
        parents=tuple(Rules(deny=_about_files(rules.deny)) for rules in job.parents),
        workspace="discard",
        cwd=job.cwd,
        env=job.env,
        network=job.network,
        sandbox=job.sandbox,
        root=job.root,
        readable=(*job.readable, archive),
        writable=job.writable,
        limits=limits,
    )


def _about_files(rules: tuple[str, ...]) -> tuple[str, ...]:
    """Leave out what is about the model's own commands: the check is the user's."""
    return tuple(
        each for each in rules if each.partition("(")[0].strip().casefold() not in ("bash", "*")
    )


def _unpack_command(archive: str) -> str:
    return shlex.join([sys.executable, "-I", "-S", "-X", "utf8", "-c", _UNPACK, archive])


class _Commands:
    """A model that has these commands run, one after the other, as long as they succeed."""

    name = "check"

    def __init__(self, *commands: str) -> None:
        self._commands = commands
        self.ended: list[bool] = []
        self.output = ""

    def watch(self, event: Event) -> None:
        """Note how each command ended."""
        if isinstance(event, ToolResultEvent):
            self.ended.append(event.is_error)

    async def reply(self, request: Request, heard: Heard) -> Reply:
        if self.ended:
            self.output = _result_text(request.messages[-1])
        if any(self.ended) or len(self.ended) == len(self._commands):
            block: dict[str, Any] = {"type": "text", "text": "done"}
        else:
            number = len(self.ended)
            command = {"command": self._commands[number]}
            block = {"type": "tool_use", "id": f"c{number}", "name": "bash", "input": command}
        return Reply(
            content=(msgspec.json.encode(block),),
            stop_reason="tool_use" if block["type"] == "tool_use" else "end_turn",
            usage=Usage(),
            model=self.name,
        )

    async def close(self) -> None:
        """Hold nothing."""


class _Text(msgspec.Struct):
    text: str = ""


class _ToolResult(msgspec.Struct):
    content: str | list[_Text] = ""


class _Message(msgspec.Struct):
    content: list[_ToolResult]


def _result_text(message: bytes) -> str:
    content = msgspec.json.decode(message, type=_Message).content[0].content
    return content if isinstance(content, str) else "".join(each.text for each in content)
