"""The keyword options of `run`, `spawn` and `Runner`: the fields of `Job`, in Python's types."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec

from forkrun.errors import UsageError
from forkrun.job import Dangling, Job, Network, SandboxLevel, WorkspaceMode
from forkrun.limits import Limits
from forkrun.mcp.config import McpServer
from forkrun.policy import Policy
from forkrun.protocol import Rules

if TYPE_CHECKING:
    from forkrun.events import Emit
    from forkrun.gate import CanUseTool
    from forkrun.snapshot.freeze import Snapshot


class JobOptions(TypedDict, total=False):
    """What a run may be told beside its prompt and its model; see `Job` for what each means."""

    dangling: Dangling
    break_cache: bool
    label: str | None
    system: str | None
    append_system_prompt: str | None
    json_schema: Mapping[str, Any] | None
    tools: Sequence[str] | None
    allow: Sequence[str]
    deny: Sequence[str]
    parents: Sequence[Policy | Rules]
    workspace: WorkspaceMode
    commit_ignored: bool
    protect: Sequence[str]
    attempts: int
    check: str | None
    best: bool
    patch: str | os.PathLike[str] | None
    keep_patch_days: float
    cwd: str | os.PathLike[str] | None
    env: Mapping[str, str]
    network: Network
    sandbox: SandboxLevel
    root: str | os.PathLike[str] | None
    readable: Sequence[str | os.PathLike[str]]
    writable: Sequence[str | os.PathLike[str]]
    limits: Limits
    transcript: str | os.PathLike[str] | None
    mcp_servers: Mapping[str, McpServer | Mapping[str, Any]]


class RunOptions(JobOptions, total=False):
    """What else may be said of one run in Python: these are no data, and so no fields of `Job`.

    `snapshot` is the request to fork, without which the subagent starts afresh; it may stand in the
    job as JSON instead. `on_event` is called with each event, on the event loop; `can_use_tool` is
    asked before each call, beside the rules. `output_type` is a msgspec Struct, a dataclass or a
    pydantic model: `structured_output` of the result is then an instance of it, or None.
    """

    snapshot: Snapshot | None
    on_event: Emit | None
    can_use_tool: CanUseTool | None
    output_type: type | None


def job_from(prompt: str | Job, options: Mapping[str, Any]) -> Job:
    """Give the job that a prompt and options describe; a job itself takes no further options.

    Raises UsageError for an option that there is not, and for one of a type that cannot be meant.
    """
    if isinstance(prompt, Job):
        if options:
            raise UsageError(f"a Job takes no further options: {', '.join(sorted(options))}")
        return prompt
    if unknown := sorted(options.keys() - set(Job.__struct_fields__)):
        raise UsageError(f"there is no option {unknown[0]!r}", hint=_near(unknown[0]))
    given = {name: _plain(name, value) for name, value in options.items()}
    try:
        return msgspec.convert({**given, "prompt": prompt}, Job)
    except msgspec.ValidationError as error:
        raise UsageError(f"an option is not valid: {_in_words(error)}") from error


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if name in ("readable", "writable") and isinstance(value, list | tuple):
        return [os.fspath(path) for path in value]
    if name == "parents" and isinstance(value, Iterable):
        return [rules for parent in value for rules in _layers(parent)]
    return dict(value) if isinstance(value, Mapping) else value


def _layers(parent: Any) -> Sequence[Any]:
    return parent.layers if isinstance(parent, Policy) else [parent]


def _near(name: str) -> str:
    import difflib

    names = [*Job.__struct_fields__, *Limits.__struct_fields__]
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if not close:
        return "the options are " + ", ".join(f for f in Job.__struct_fields__ if f != "prompt")
    if close[0] in Limits.__struct_fields__:
        return f"did you mean limits=forkrun.Limits({close[0]}=…)?"
    return f"did you mean {close[0]}?"


def _in_words(error: msgspec.ValidationError) -> str:
    what, _, where = str(error).partition(" - at `$.")
    return f"{where.rstrip('`')}: {what[0].lower()}{what[1:]}" if where else what
