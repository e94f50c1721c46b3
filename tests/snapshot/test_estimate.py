"""What a fork will cost, and whether the cache was hit."""

import json

import pytest

from forkrun.models.base import Usage
from forkrun.snapshot.estimate import cache_verdict, estimate, prefix_tokens
from forkrun.snapshot.freeze import Snapshot

LONG = Snapshot.of(model="m", messages=[{"role": "user", "content": "word " * 8000}])


def prices(model: str, usage: Usage) -> float | None:
    if model != "m":
        return None
    return (
        usage.input_tokens * 10
        + usage.cache_read_input_tokens
        + usage.cache_creation_input_tokens * 12
    )


def test_the_estimate_multiplies_the_prefix_by_the_turns():
    """Each turn reads the prefix again: from the cache, or at full price."""
    found = estimate(LONG, turns=3, prices=prices)
    assert found.prefix_tokens == prefix_tokens(LONG) == pytest.approx(10_000, rel=0.01)
    assert found.cached_usd == found.prefix_tokens * 3
    assert found.uncached_usd == found.prefix_tokens * 30
    assert found.rewritten_usd == found.prefix_tokens * (12 + 1 + 1)


def test_every_turn_is_priced_by_itself():
    """A price that rises with the length of a prompt does not rise with the number of turns."""

    def tiered(model: str, usage: Usage) -> float:
        return usage.total_tokens * (1 if usage.total_tokens <= 11_000 else 100)

    found = estimate(LONG, turns=50, prices=tiered)
    assert found.uncached_usd == found.prefix_tokens * 50


def test_an_unknown_price_is_none():
    """No price is made up."""
    assert estimate(Snapshot.of(messages=[]), turns=3, prices=prices).cached_usd is None


def test_a_picture_counts_as_a_picture():
    """The bytes of its base64 are no text."""
    data = "iVBORw0KGgo" + "A" * 999_993
    source = {"type": "base64", "media_type": "image/png", "data": data[: len(data) // 4 * 4]}
    message = {"role": "user", "content": [{"type": "image", "source": source}]}
    found = prefix_tokens(Snapshot.from_json(json.dumps([message])))
    assert 1600 <= found < 1700


@pytest.mark.parametrize(
    ("usage", "verdict"),
    [
        (
            Usage(input_tokens=50, cache_read_input_tokens=9_800, cache_creation_input_tokens=150),
            "hit",
        ),
        (Usage(input_tokens=9, cache_read_input_tokens=5_500), "hit"),
        (Usage(input_tokens=50, cache_creation_input_tokens=9_800), "miss"),
        (
            Usage(input_tokens=50, cache_read_input_tokens=700, cache_creation_input_tokens=9_000),
            "miss",
        ),
        (Usage(input_tokens=9_900), "unknown"),
        (Usage(), "unknown"),
    ],
)
def test_the_verdict_follows_from_the_first_reply(usage, verdict):
    """Most of the prefix read is a hit; written anew, a miss; no report, unknown."""
    assert cache_verdict(usage, prefix_tokens=10_000) == verdict


def test_a_short_prefix_has_no_verdict():
    """What no provider caches can neither hit nor miss."""
    assert cache_verdict(Usage(input_tokens=100), prefix_tokens=90) == "none"
