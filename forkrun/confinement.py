"""Which tier of confinement a run gets on this machine.

A run begins with the best tier at once, since a probe would cost more than the run itself. Only
when the child is refused is the machine examined; what was found is remembered by the `Runner`.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, NamedTuple

from forkrun.errors import SandboxError
from forkrun.workspace.views import Form

if TYPE_CHECKING:
    from forkrun_sandbox.probe import Choice

OVERLAY_LAYER = "overlay"


class Refused(SandboxError):
    """A child could not be confined; `layer` is the one that was refused."""

    def __init__(self, message: str, *, layer: str) -> None:
        super().__init__(message)
        self.layer = layer


class Plan(NamedTuple):
    """How a child is to be confined, and what is known to be missing."""

    tier: str
    form: Form
    missing: tuple[tuple[str, str], ...] = ()


class Confinement:
    """Remembers for each level what works here."""

    def __init__(self) -> None:
        self._plans: dict[str, Plan] = {}

    def plan(self, level: str) -> Plan:
        """Give the plan to begin with. Raises SandboxError where it is known that none will do."""
        if level == "none":
            return Plan(tier="none", form="copy")
        if level not in self._plans and sys.platform != "linux":
            self._plans[level] = _plan(_choose(level))
        return self._plans.get(level) or Plan(tier="full", form="overlay")

    async def after(self, refused: Refused, plan: Plan, *, level: str) -> Plan:
        """Give the plan to try next. Raises SandboxError when there is none."""
        if refused.layer == OVERLAY_LAYER and plan.form == "overlay":
            # A property of this workspace (an overlay itself, a mount beneath it), not of the host.
            return plan._replace(form="copy")
        choice = await asyncio.to_thread(_choose, level)
        if choice.tier == plan.tier:
            raise refused
        self._plans[level] = _plan(choice)
        return self._plans[level]


def _choose(level: str) -> Choice:
    from forkrun_sandbox.probe import choose

    return choose(level)


def _plan(choice: Choice) -> Plan:
    missing = tuple((each.layer, each.reason) for each in choice.missing)
    if choice.tier is None:
        lines = "".join(f"\n  {layer}: {reason}" for layer, reason in missing)
        raise SandboxError(
            f"the confinement asked for cannot be had here{lines}",
            hint="see `forkrun doctor`, or allow less with --sandbox lsm | best-effort | none",
        )
    form: Form = "overlay" if choice.tier == "full" else "copy"
    return Plan(tier=choice.tier, form=form, missing=missing)
