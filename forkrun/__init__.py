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
    from forkrun.api import run, run_sync
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
    from forkrun.gate import Allow, Deny
    from forkrun.job import Job
    from forkrun.limits import Limits
    from forkrun.policy import Policy
    from forkrun.result import Result
    from forkrun.run import Run
    from forkrun.runner import Runner

__all__ = [
    "Allow",
    "ChannelError",
    "ConfigurationError",
    "ContextExceeded",
    "Deny",
    "ForkrunError",
    "InputError",
    "Job",
    "Limits",
    "ModelError",
    "ModelUnavailable",
    "Policy",
    "Result",
    "Run",
    "Runner",
    "SandboxError",
    "UsageError",
    "run",
    "run_sync",
]

_HOMES = {
    "Job": "forkrun.job",
    "Limits": "forkrun.limits",
    "Result": "forkrun.result",
    "Policy": "forkrun.policy",
    "Allow": "forkrun.gate",
    "Deny": "forkrun.gate",
    "Run": "forkrun.run",
    "Runner": "forkrun.runner",
    "run": "forkrun.api",
    "run_sync": "forkrun.api",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'forkrun' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "forkrun.errors")), name)


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
