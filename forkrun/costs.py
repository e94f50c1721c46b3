"""The price of a run, reply by reply; asked for off the event loop, since the list is large."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence

from forkrun.errors import ConfigurationError
from forkrun.models.base import Usage
from forkrun.models.prices import cost_usd

LOAD_AFTER_S = 0.2
UNPRICED = ("offline", "script:")


async def total_cost_usd(model: str, replies: Sequence[Usage]) -> float | None:
    """Give the price of these replies in US dollars; None where no price is known."""
    if not replies or model.startswith(UNPRICED):
        return None
    prices = await asyncio.to_thread(lambda: [cost_usd(model, usage) for usage in replies])
    known = [price for price in prices if price is not None]
    return sum(known) if len(known) == len(prices) else None


@contextlib.contextmanager
def loading_prices(model: str) -> Iterator[None]:
    """Have the price list loaded while the model is thinking, unless the block is left before."""
    if model.startswith(UNPRICED):
        yield
        return
    loop = asyncio.get_running_loop()
    soon = loop.call_later(LOAD_AFTER_S, loop.run_in_executor, None, cost_usd, model, Usage())
    try:
        yield
    finally:
        soon.cancel()


async def check_priced(model: str) -> None:
    """Raise ConfigurationError when a budget in dollars could not be kept for this model."""
    if await total_cost_usd(model, [Usage(input_tokens=1, output_tokens=1)]) is None:
        raise ConfigurationError(
            f"no price is known for this model, so a budget in dollars cannot be kept: {model}",
            hint="bound the run with --max-total-tokens instead",
        )
