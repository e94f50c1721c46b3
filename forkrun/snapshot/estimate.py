"""What a fork will cost before it is made, and whether the cache was hit after it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from forkrun.models.base import Usage
from forkrun.snapshot.freeze import Dangling, Snapshot
from forkrun.snapshot.images import media_of
from forkrun.snapshot.repair import repaired

Prices = Callable[[str, Usage], float | None]
"""Gives the price of a usage in US dollars, or None for a model without a known price."""

Verdict = Literal["hit", "miss", "unknown", "none"]

SMALLEST_CACHED_TOKENS = 512
"""No model caches a shorter prefix; some ask for up to 4,096 tokens (Messages API)."""
_CHARACTERS_A_TOKEN = 4
_MEDIA_TOKENS = 1600


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """What the inherited part of a fork costs when every allowed turn is taken.

    `prefix_tokens` is an estimate: four bytes a token, and 1,600 tokens for each image or document.
    The costs are those of reading the prefix once in each turn, in US dollars: `cached_usd` from
    the cache, as the parent left it; `rewritten_usd` from the cache where the first turn has to
    write it; `uncached_usd` without one. What the turns themselves add comes on top.
    None: the price of the model is not known.
    """

    model: str
    prefix_tokens: int
    turns: int
    cached_usd: float | None
    rewritten_usd: float | None
    uncached_usd: float | None


def estimate(
    snapshot: Snapshot,
    *,
    turns: int,
    prices: Prices,
    dangling: Dangling = "placeholder",
    model: str | None = None,
) -> Estimate:
    """Estimate a fork with at most this many turns, by `model` or the snapshot's own.

    Calls nothing and nobody. Each turn is priced by itself, since prices may rise with its length.
    """
    model = model or str(snapshot.param("model") or "")
    tokens = prefix_tokens(snapshot, dangling=dangling)
    read = prices(model, Usage(cache_read_input_tokens=tokens))
    written = prices(model, Usage(cache_creation_input_tokens=tokens))
    plain = prices(model, Usage(input_tokens=tokens))
    return Estimate(
        model=model,
        prefix_tokens=tokens,
        turns=turns,
        cached_usd=None if read is None else read * turns,
        rewritten_usd=None if read is None or written is None else written + read * (turns - 1),
        uncached_usd=None if plain is None else plain * turns,
    )


def prefix_tokens(snapshot: Snapshot, *, dangling: Dangling = "placeholder") -> int:
    """Estimate the tokens of tools, system and messages together; worked out once."""
    key = f"tokens of {dangling}"
    if key not in snapshot.worked_out:
        snapshot.worked_out[key] = _tokens(repaired(snapshot, dangling).snapshot)
    found: int = snapshot.worked_out[key]
    return found


def _tokens(ready: Snapshot) -> int:
    size = sum(len(value) for name, value in ready.params if name in {"tools", "system"})
    size += sum(len(message) for message in ready.messages)
    media = [block for message in ready.parsed() for block in media_of(message)]
    size -= sum(len(block.raw) for block in media)
    return size // _CHARACTERS_A_TOKEN + len(media) * _MEDIA_TOKENS


def cache_verdict(usage: Usage, *, prefix_tokens: int) -> Verdict:
    """Say from the usage of the first reply whether the prefix came out of the prompt cache.

    "none": too short for any cache. "unknown": the server reports no use of a cache at all, as
    local ones do. `prefix_tokens` is the estimate; half of it read counts as a hit, since it is
    rough and what follows the parent's last cache mark was never written.
    """
    read, written = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
    seen = usage.input_tokens + read + written
    if read and read * 2 >= min(prefix_tokens, seen):
        return "hit"
    if read or written:
        return "miss"
    return "none" if prefix_tokens < SMALLEST_CACHED_TOKENS else "unknown"
