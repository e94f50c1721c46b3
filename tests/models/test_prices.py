"""What a reply costs."""

import pytest

from forkrun.models.base import Usage
from forkrun.models.prices import cost_usd

MILLION = 1_000_000


@pytest.mark.parametrize(
    ("usage", "dollars"),
    [
        (Usage(input_tokens=MILLION), 1.0),
        (Usage(output_tokens=MILLION), 5.0),
        (Usage(cache_read_input_tokens=MILLION), 0.1),
        (Usage(cache_creation_input_tokens=MILLION), 1.25),
        (Usage(input_tokens=MILLION, cache_read_input_tokens=MILLION), 1.1),
        (Usage(), 0.0),
    ],
)
def test_each_kind_of_token_has_its_price(usage, dollars):
    """Input, output, cache reads and cache writes, counted apart as the Messages API does."""
    assert cost_usd("claude-haiku-4-5", usage) == pytest.approx(dollars)


def test_a_model_without_a_known_price_costs_nobody_knows_what():
    """None is not nothing."""
    assert cost_usd("no-such-model-of-anybody", Usage(input_tokens=1)) is None
