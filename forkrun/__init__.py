"""Run a subagent in its own confined process: a prompt goes in, one summary comes out.

    result = await forkrun.run("Which testing framework does this project use?", cwd="path/to/repo")
    print(result.summary)

Public names resolve when they are first asked for, so that importing the package costs nothing.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forkrun import agents
    from forkrun.agents.definition import Agent
    from forkrun.api import run, run_sync, spawn
    from forkrun.errors import (
        ChannelError,
        ConfigurationError,
        ContextExceeded,
        ForkrunError,
        InputError,
        ModelError,
        ModelUnavailable,
        SandboxError,
        UsageError,
    )
    from forkrun.events import (
        CheckEvent,
        ConfirmedEvent,
        CopyEvent,
        DeniedEvent,
        Event,
        HookEvent,
        LimitEvent,
        MissedEvent,
        RecoveredEvent,
        ResultEvent,
        RetryEvent,
        SettledEvent,
        StartedEvent,
        TextEvent,
        ToolCallEvent,
        ToolResultEvent,
        TurnEvent,
    )
    from forkrun.gate import Allow, Deny
    from forkrun.hook_answers import HookOutcome
    from forkrun.hooks import HookInput, Hooks
    from forkrun.job import Job
    from forkrun.limits import Limits
    from forkrun.mcp.config import McpServer
    from forkrun.models.base import Model, Reply, Request, Usage
    from forkrun.policy import Policy
    from forkrun.result import Result
    from forkrun.runner import Runner
    from forkrun.running import Run
    from forkrun.snapshot.freeze import Snapshot
    from forkrun.task import TaskAnswer, TaskTool, task_tool

__all__ = [
    "Agent",
    "Allow",
    "ChannelError",
    "CheckEvent",
    "ConfigurationError",
    "ConfirmedEvent",
    "ContextExceeded",
    "CopyEvent",
    "DeniedEvent",
    "Deny",
    "Event",
    "ForkrunError",
    "HookEvent",
    "HookInput",
    "HookOutcome",
    "Hooks",
    "InputError",
    "Job",
    "LimitEvent",
    "Limits",
    "McpServer",
    "MissedEvent",
    "Model",
    "ModelError",
    "ModelUnavailable",
    "Policy",
    "RecoveredEvent",
    "Reply",
    "Request",
    "Result",
    "ResultEvent",
    "RetryEvent",
    "Run",
    "Runner",
    "SandboxError",
    "SettledEvent",
    "Snapshot",
    "StartedEvent",
    "TaskAnswer",
    "TaskTool",
    "TextEvent",
    "ToolCallEvent",
    "ToolResultEvent",
    "TurnEvent",
    "Usage",
    "UsageError",
    "agents",
    "run",
    "run_sync",
    "spawn",
    "task_tool",
]

_HOMES = {
    "forkrun.agents.definition": ("Agent",),
    "forkrun.task": ("TaskAnswer", "TaskTool", "task_tool"),
    "forkrun.api": (
        "run",
        "run_sync",
        "spawn",
    ),
    "forkrun.errors": (
        "ChannelError",
        "ConfigurationError",
        "ContextExceeded",
        "ForkrunError",
        "InputError",
        "ModelError",
        "ModelUnavailable",
        "SandboxError",
        "UsageError",
    ),
    "forkrun.events": (
        "CheckEvent",
        "ConfirmedEvent",
        "CopyEvent",
        "DeniedEvent",
        "Event",
        "HookEvent",
        "LimitEvent",
        "MissedEvent",
        "RecoveredEvent",
        "ResultEvent",
        "RetryEvent",
        "SettledEvent",
        "StartedEvent",
        "TextEvent",
        "ToolCallEvent",
        "ToolResultEvent",
        "TurnEvent",
    ),
    "forkrun.gate": (
        "Allow",
        "Deny",
    ),
    "forkrun.hook_answers": ("HookOutcome",),
    "forkrun.hooks": ("HookInput", "Hooks"),
    "forkrun.job": ("Job",),
    "forkrun.limits": ("Limits",),
    "forkrun.mcp.config": ("McpServer",),
    "forkrun.models.base": (
        "Model",
        "Reply",
        "Request",
        "Usage",
    ),
    "forkrun.policy": ("Policy",),
    "forkrun.result": ("Result",),
    "forkrun.running": ("Run",),
    "forkrun.runner": ("Runner",),
    "forkrun.snapshot.freeze": ("Snapshot",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            found = globals()[name] = getattr(import_module(home), name)
            return found
    if name == "agents":
        return import_module("forkrun.agents")
    raise AttributeError(f"module 'forkrun' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


def _name_the_sandbox() -> None:
    """Where the checkout itself is on the path, give its folder `sandbox` its import name."""
    try:
        import forkrun_sandbox  # noqa: F401
    except ModuleNotFoundError:
        folder = os.path.join(
            os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "sandbox"
        )
        package = type(sys)("forkrun_sandbox")
        package.__path__ = [folder]
        sys.modules["forkrun_sandbox"] = package


_name_the_sandbox()
