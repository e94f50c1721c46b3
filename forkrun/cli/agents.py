"""`forkrun agents`, and what `--agent` means for a job."""

from __future__ import annotations

import os
import sys
from typing import Any

import msgspec

from forkrun.agents import Agent, find, load, use
from forkrun.cli import tell
from forkrun.errors import UsageError
from forkrun.job import Job
from forkrun.text import one_line

WIDTH = 100


def list_agents(*, cwd: str, as_json: bool) -> int:
    """Print every agent that can be used here and every file that has a mistake; give 0."""
    if not os.path.isdir(cwd):
        raise UsageError(f"there is no directory {cwd}")
    agents = load(cwd=cwd)
    for agent in agents:
        text = msgspec.json.encode(_plain(agent)).decode() if as_json else _for_people(agent)
        sys.stdout.buffer.write(text.encode() + b"\n")
    sys.stdout.flush()
    if not agents and not as_json:
        tell("there are no agents: put one into .claude/agents/NAME.md")
    return 0


def as_agent(wanted: str, job: Job, *, is_fork: bool, quiet: bool) -> Job:
    """Give the job as this agent does it, and say on stderr what is odd about its file."""
    agent = find(wanted, cwd=job.cwd or ".")
    for problem in () if quiet else agent.problems:
        tell(f"{agent.path}, line {problem.line}: {one_line(problem.message, width=WIDTH)}")
    return use(agent, job, is_fork=is_fork)


def _plain(agent: Agent) -> dict[str, Any]:
    return msgspec.structs.asdict(agent) | {"usable": agent.is_usable}


def _for_people(agent: Agent) -> str:
    lines = [f"{one_line(agent.name, width=64)}  {one_line(agent.description, width=WIDTH)}"]
    if agent.is_usable:
        lines.append(f"  may use: {_rights(agent)}")
        if agent.model or agent.max_turns:
            parts = [agent.model, agent.max_turns and f"at most {agent.max_turns} turns"]
            lines.append("  runs on: " + ", ".join(str(part) for part in parts if part))
    lines.append(f"  from: {one_line(agent.path, width=300)} ({agent.scope})")
    for problem in agent.problems:
        kind = "unusable" if problem.is_fatal else "note"
        message = one_line(problem.message, width=200)
        lines.append(f"  {kind}: {one_line(agent.path, width=300)}:{problem.line}: {message}")
    return "\n".join(lines)


def _rights(agent: Agent) -> str:
    rights = "every tool" if agent.tools is None else ", ".join(agent.tools) or "no tool"
    if agent.allow:
        rights += "; only " + ", ".join(agent.allow)
    if agent.deny:
        rights += "; never " + ", ".join(agent.deny)
    return rights + ("; changes nothing" if agent.is_read_only else "")
