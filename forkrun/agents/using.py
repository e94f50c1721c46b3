"""Makes a job of an agent, and tells a parent which agents it can choose from."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from forkrun.agents.definition import Agent
from forkrun.catalog import INPUTS
from forkrun.inert import inert
from forkrun.job import Job
from forkrun.limits import Limits
from forkrun.protocol import Rules
from forkrun.text import clip

MAX_DESCRIPTION_BYTES = 1_500


def use(agent: Agent, job: Job, *, is_fork: bool = False) -> Job:
    """Give the job as this agent does it. What the job itself says goes before the agent.

    An agent of the project only narrows: its tools and its turns count as far as the job has them,
    and its rules stand beside those of the job. An agent of the user's own names tools and turns
    where the job does not. In a fork nothing may change what is forked, so tools become rules, and
    the agent's text goes into the directive.
    """
    tools = agent.tools
    if job.tools is not None:
        narrows = agent.scope == "project" and tools is not None
        tools = tuple(t for t in job.tools if t in (agent.tools or ())) if narrows else job.tools
    rules = Rules(allow=agent.allow, deny=agent.deny)
    if is_fork and not job.break_cache:
        rules = msgspec.structs.replace(rules, deny=(*rules.deny, *_missing(tools)))
        tools = job.tools
    has_rules = bool(rules.allow or rules.deny)
    return msgspec.structs.replace(
        job,
        label=job.label or agent.name,
        model=job.model or (None if is_fork and not job.break_cache else agent.model),
        append_system_prompt=_persona(agent, job),
        tools=tools,
        workspace="read-only" if agent.is_read_only and job.workspace != "temp" else job.workspace,
        parents=(*job.parents, rules) if has_rules else job.parents,
        limits=_limits(agent, job.limits),
    )


def describe(agents: Iterable[Agent]) -> str:
    """Say for a parent's model which agents there are and what each is for, one paragraph each.

    The words are those of the files, bounded and made inert.
    """
    return "\n".join(_described(agent) for agent in agents if agent.is_usable)


def _described(agent: Agent) -> str:
    words = " ".join(inert(agent.description).split()) or "(its file does not say what it is for)"
    words = clip(words, MAX_DESCRIPTION_BYTES, note=" […]")
    tools = "all" if agent.tools is None else ", ".join(agent.tools) or "none"
    return f"- {agent.name}: {words} (tools: {tools})"


def _persona(agent: Agent, job: Job) -> str | None:
    if job.system is not None:
        return job.append_system_prompt
    return "\n\n".join(text for text in (agent.system, job.append_system_prompt) if text) or None


def _missing(tools: tuple[str, ...] | None) -> tuple[str, ...]:
    return tuple(tool for tool in INPUTS if tools is not None and tool not in tools)


def _limits(agent: Agent, limits: Limits) -> Limits:
    if agent.max_turns is None:
        return limits
    is_given = limits.max_turns != Limits().max_turns
    turns = limits.max_turns if is_given else agent.max_turns
    if agent.scope == "project":
        turns = min(agent.max_turns, limits.max_turns)
    return msgspec.structs.replace(limits, max_turns=turns)
