"""The answer to the first message of a run: a child that was told Start is Ready, confined.

Whoever gets no Ready has no run: nothing is asked of a model before.
"""

from __future__ import annotations

import msgspec

from forkrun.calls import FAULT_CHARS
from forkrun.confinement import Plan, Refused
from forkrun.errors import ChannelError
from forkrun.protocol import Fault, Ready
from forkrun.result import MissingLayer, SandboxRecord
from forkrun.supervisor import Worker
from forkrun.text import one_line
from forkrun.transaction import Transaction
from forkrun_sandbox.spec import Report

LAYER_CHARS = 100


async def ready(worker: Worker, *, plan: Plan, transaction: Transaction | None) -> SandboxRecord:
    """Wait until the child is in its sandbox; say what is in force there, and what is not.

    `transaction` gets the directory that the child's writes land in. Raises Refused where the
    sandbox cannot be had, ChannelError for anything else that is not Ready.
    """
    message = await worker.receive()
    if isinstance(message, Ready):
        if transaction and (upper := worker.receive_upper()) is not None:
            transaction.take_upper(upper)
        bounded = worker.confined()
        return _in_force(message.report, plan, bounded=bounded, unbounded=worker.unbounded())
    if isinstance(message, Fault) and message.kind == "sandbox":
        raise Refused(
            one_line(message.message, width=FAULT_CHARS),
            layer=one_line(message.layer, width=LAYER_CHARS),
        )
    raise ChannelError(
        f"the child is not ready: {one_line(str(message)[:FAULT_CHARS], width=FAULT_CHARS)}"
    )


def _in_force(
    report: Report,
    plan: Plan,
    *,
    bounded: tuple[str, ...],
    unbounded: tuple[tuple[str, str], ...],
) -> SandboxRecord:
    """Put together what is in force and what is not, from all who know a part of it.

    `unbounded` is what no control group bounds; the child may have another way to.
    """
    record = msgspec.convert({"tier": report.tier}, SandboxRecord)
    missing = dict(plan.missing) | {each.layer: each.reason for each in report.missing}
    for layer, reason in unbounded:
        missing[layer] = f"{missing[layer]}; {reason}" if layer in missing else reason
    enforced = tuple(dict.fromkeys((*report.enforced, *bounded)))
    return msgspec.structs.replace(
        record,
        enforced=enforced,
        missing=tuple(
            MissingLayer(layer=layer, reason=reason)
            for layer, reason in missing.items()
            if layer not in enforced
        ),
    )
