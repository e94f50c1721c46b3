"""The keyword options of `run`, `spawn` and `Runner`: the fields of `Job`, in Python's types.

For editors and type checkers: no run needs this module.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from forkrun.job import Dangling, Network, SandboxLevel, WorkspaceMode
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
