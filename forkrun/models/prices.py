"""What a reply cost, from the price list of the `genai-prices` package as it was installed.

The package is large (about 200 ms to import) and never updated over the network from here.
"""

from __future__ import annotations

from .base import Usage


def cost_usd(model: str, usage: Usage) -> float | None:
    """Give the price of one reply in US dollars, or None where the model has no known price.

    Prices rise with the length of a prompt for some models, so ask for each reply, not for a sum.
    Blocks while the list is loaded: call it on a thread.
    """
    try:
        from genai_prices import Usage as Counted
        from genai_prices import calc_price
    except ImportError:
        return None
    # There, `input_tokens` counts the whole prompt, cached or not; in the Messages API, the rest.
    counted = Counted(
        input_tokens=usage.input_tokens
        + usage.cache_read_input_tokens
        + usage.cache_creation_input_tokens,
        cache_read_tokens=usage.cache_read_input_tokens,
        cache_write_tokens=usage.cache_creation_input_tokens,
        output_tokens=usage.output_tokens,
    )
    try:
        return float(calc_price(counted, model, provider_id="anthropic").total_price)
    except LookupError:
        return None
