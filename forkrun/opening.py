"""How the conversation of a run begins: with a prompt alone, or as the fork of a frozen request.

A fork begins with the very bytes of the parent's request, so nothing that stands in them (system
prompt, tools, model) may be changed by a flag, unless the caller gives the prompt cache up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from forkrun import prompts
from forkrun.aliases import Names
from forkrun.catalog import definitions
from forkrun.conversation import Conversation
from forkrun.errors import UsageError
from forkrun.job import Job, tools_of
from forkrun.nesting import task_definition
from forkrun.policy import Policy
from forkrun.result import Cache, RepairRecord

if TYPE_CHECKING:
    from forkrun.snapshot.freeze import Snapshot
    from forkrun.snapshot.siblings import Siblings
    from forkrun.structured.roads import Answering
    from forkrun.structured.shape import Shape

DEFAULT_MAX_TOKENS = 8_000
UNCACHED_MODELS = ("offline", "script:")


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation that waits for its first reply.

    `max_tokens`: output tokens of one reply. `names`: how the model may call our tools. `call_ids`:
    those of the parent's calls. `siblings`: the forks of the same snapshot, of which one goes
    first. `answering`: the form that the answer must have, and how it is asked for; `by_tool`: the
    same, for a model that turns out not to have the API's own structured output.
    """

    conversation: Conversation
    max_tokens: int
    names: Names
    call_ids: frozenset[str] = frozenset()
    cache: Cache = Cache()
    repair: RepairRecord | None = None
    siblings: Siblings | None = None
    answering: Answering | None = None
    by_tool: Callable[[], Opening] | None = None


async def open_conversation(
    job: Job,
    *,
    model: str,
    workspace: str,
    policy: Policy,
    snapshot: Snapshot | None,
    shape: Shape | None = None,
    offers_task: bool = False,
) -> Opening:
    """Begin the conversation of a job. Raises InputError for a snapshot that cannot be repaired.

    `offers_task`: the model may start runs by the tool `task`. To repair a large snapshot takes
    about a second, once: that is done in a thread.
    """
    answer = None
    if shape is not None:
        from forkrun.structured.roads import answering

        answer = answering(shape, model=model, is_fork=snapshot is not None)
    if snapshot is None:
        return _fresh(job, model=model, workspace=workspace, answer=answer, offers_task=offers_task)
    from forkrun.snapshot.siblings import siblings_of

    opening = await asyncio.to_thread(
        _forked,
        job,
        snapshot,
        model=model,
        workspace=workspace,
        policy=policy,
        answer=answer,
        offers_task=offers_task,
    )
    siblings = siblings_of(snapshot, dangling=job.dangling)
    return msgspec.structs.replace(opening, siblings=siblings)


def _joined(*parts: str | None) -> str | None:
    return "\n\n".join(filter(None, parts)) or None


def check_fork(job: Job) -> None:
    """Raise UsageError for what a fork must not change, with the reason."""
    changed = {
        "--system": job.system is not None,
        "--tools": job.tools is not None,
        "--model": job.model is not None and not job.model.startswith(UNCACHED_MODELS),
    }
    for flag, is_given in changed.items():
        if is_given and not job.break_cache:
            raise UsageError(
                f"{flag} would change the request that is forked, so its prompt cache would miss",
                hint="leave it out, restrict the fork with --allow, or add --break-cache",
            )


def _fresh(
    job: Job, *, model: str, workspace: str, answer: Answering | None, offers_task: bool
) -> Opening:
    max_tokens = job.limits.max_tokens or DEFAULT_MAX_TOKENS
    conversation = Conversation.fresh(
        model=model,
        max_tokens=max_tokens,
        system=prompts.system_prompt(
            workspace,
            replaced_by=job.system,
            appended=_joined(job.append_system_prompt, answer.asked if answer else None),
        ),
        tools=[
            *definitions(tools_of(job, is_fork=False)),
            *([task_definition()] if offers_task else ()),
            *(answer.tools if answer else ()),
        ],
        further=answer.params if answer else None,
        prompt=job.prompt,
    )
    by_tool = None
    if answer is not None and answer.by_tool is not None:
        by_tool = partial(
            _fresh,
            job,
            model=model,
            workspace=workspace,
            answer=answer.by_tool,
            offers_task=offers_task,
        )
    return Opening(
        conversation=conversation,
        max_tokens=max_tokens,
        names=Names.ours(),
        answering=answer,
        by_tool=by_tool,
    )


def _forked(
    job: Job,
    snapshot: Snapshot,
    *,
    model: str,
    workspace: str,
    policy: Policy,
    answer: Answering | None,
    offers_task: bool,
) -> Opening:
    from forkrun.snapshot.fork import fork

    start = fork(
        changed(job, snapshot, model=model),
        job.prompt,
        dangling=job.dangling,
        persona=job.append_system_prompt,
        restrictions=restrictions_in_words(policy),
        workspace=workspace,
        answer=answer.asked if answer else None,
    )
    max_tokens = job.limits.max_tokens or snapshot.param("max_tokens") or DEFAULT_MAX_TOKENS
    params = start.params | {"max_tokens": msgspec.Raw(msgspec.json.encode(max_tokens))}
    params.setdefault("model", msgspec.Raw(msgspec.json.encode(model)))
    start = msgspec.structs.replace(start, params=params)
    repair = start.repair
    return Opening(
        conversation=Conversation.fork(start),
        max_tokens=max_tokens,
        names=Names.of_parent(
            msgspec.json.decode(params.get("tools", b"[]")) or [],
            open_calls=_names_of_calls(repair.tool_use_ids, snapshot),
            may_start=offers_task,
        ),
        call_ids=start.call_ids,
        answering=answer,
        cache=Cache(verdict="unknown", prefix_sha256=start.prefix_sha256),
        repair=RepairRecord(
            strategy=repair.strategy, tool_use_ids=repair.tool_use_ids, notes=repair.notes
        ),
    )


def _names_of_calls(call_ids: tuple[str, ...], snapshot: Snapshot) -> list[str]:
    """Give the tools of these calls, which stand in one of the last messages."""
    from forkrun.snapshot.shape import parse_message

    return [
        str(block.value("name"))
        for message in snapshot.messages[-4:]
        for block in parse_message(message, 0).calls
        if block.id in call_ids
    ]


def changed(job: Job, snapshot: Snapshot, *, model: str) -> Snapshot:
    """Give the snapshot with what `--break-cache` lets a job change."""
    if not job.break_cache:
        return snapshot
    changes: dict[str, object] = {"model": model}
    if job.system is not None:
        changes["system"] = job.system
    if job.tools is not None:
        changes["tools"] = definitions(job.tools)
    encoded = {name: msgspec.json.encode(value) for name, value in changes.items()}
    return msgspec.structs.replace(
        snapshot, params=tuple((dict(snapshot.params) | encoded).items())
    )


def restrictions_in_words(policy: Policy) -> str | None:
    """Say for the model which calls its rules allow and forbid; None where there are no rules."""
    lines = []
    for rules in policy.layers:
        if rules.allow:
            lines.append("allowed: " + ", ".join(rules.allow))
        if rules.deny or rules.ask:
            lines.append("never: " + ", ".join((*rules.deny, *rules.ask)))
    return "\n".join(lines) or None
