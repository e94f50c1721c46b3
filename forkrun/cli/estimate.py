"""`forkrun spawn --estimate`: what a fork would cost, said before it is made; nothing is called."""

from __future__ import annotations

import msgspec

from forkrun.cli.output import Output
from forkrun.errors import UsageError
from forkrun.job import Job
from forkrun.models.prices import cost_usd
from forkrun.opening import changed, check_fork
from forkrun.snapshot.estimate import Estimate, estimate
from forkrun.snapshot.freeze import Snapshot


def print_estimate(job: Job, snapshot: Snapshot | None, *, output_format: str) -> int:
    """Print the estimate for this fork as text or as one line of JSON; give the exit code."""
    if snapshot is None:
        raise UsageError(
            "--estimate is about a fork, and there is no snapshot",
            hint="name the parent's request with --snapshot FILE",
        )
    check_fork(job)
    model = job.model or str(snapshot.param("model") or "")
    found = estimate(
        changed(job, snapshot, model=model),
        turns=job.limits.max_turns,
        prices=cost_usd,
        dangling=job.dangling,
        model=model,
    )
    text = _in_words(found) if output_format == "text" else _as_json(found)
    Output().write(text)
    return 0


def _as_json(found: Estimate) -> bytes:
    head = {"type": "estimate", "schema": 1}
    return msgspec.json.encode(head | msgspec.structs.asdict(found)) + b"\n"


def _in_words(found: Estimate) -> bytes:
    rows = [
        ("model", found.model or "none in the snapshot"),
        ("prefix", f"about {found.prefix_tokens:,} tokens, read in each turn"),
        ("turns", f"at most {found.turns}"),
        ("read from the cache", _dollars(found.cached_usd)),
        ("written to it first", _dollars(found.rewritten_usd)),
        ("without a cache", _dollars(found.uncached_usd)),
    ]
    return "".join(f"{name:<20}  {value}\n" for name, value in rows).encode()


def _dollars(price: float | None) -> str:
    return "unknown: no price is known for this model" if price is None else f"${price:.4f}"
