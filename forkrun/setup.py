"""What a run works with beside its job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from forkrun.confinement import Confinement
from forkrun.hooks import Hooks
from forkrun.launcher import Launcher
from forkrun.models.base import Model

if TYPE_CHECKING:
    from forkrun.gate import CanUseTool
    from forkrun.snapshot.freeze import Snapshot
    from forkrun.structured.shape import Shape


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What a run works with beside its job; attempts and nested runs have most of it from theirs.

    `environ`: credentials and the search path. `snapshot`: the request that is forked. `shape`: the
    form that the answer must have. `tracer`: of OpenTelemetry.
    """

    model: Model
    environ: Mapping[str, str]
    confinement: Confinement
    launcher: Launcher
    snapshot: Snapshot | None = None
    can_use_tool: CanUseTool | None = None
    shape: Shape | None = None
    hooks: Hooks | None = None
    tracer: Any = None
