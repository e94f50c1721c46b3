"""`forkrun spawn --estimate`: what a fork would cost, before anything is started or called."""

import json

import pytest
from messages_server import MessagesServer
from support_cli import environment, run

PARENT = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 100,
    "tools": [{"name": "bash", "input_schema": {"type": "object"}}],
    "messages": [{"role": "user", "content": "words " * 20_000}],
}


@pytest.fixture
def place(tmp_path):
    ws = tmp_path / "ws"
    ws.mkdir()
    (ws / "s.json").write_text(json.dumps(PARENT))
    return ws


def estimate(place, *arguments, env=None):
    flags = ("spawn", "--estimate", "--snapshot", "s.json", *arguments)
    return run(*flags, cwd=place, env=env, check=0).stdout.decode()


def test_it_says_tokens_turns_and_cost_as_text(place):
    """Prefix tokens, turns allowed, and the cost with and without the cache, for people."""
    said = estimate(place, "--max-turns", "7")
    assert "claude-sonnet-4-5" in said and "about 30,0" in said and "at most 7" in said
    assert said.count("$") == 3


@pytest.mark.parametrize("form", ["json", "stream-json"])
def test_it_says_the_same_as_one_line_of_json(place, form):
    """Numbers for machines: the cache makes it cheaper, a cold one less so."""
    found = json.loads(estimate(place, "--output-format", form, "--max-turns", "7"))
    assert (found["type"], found["turns"], found["model"]) == ("estimate", 7, "claude-sonnet-4-5")
    assert 30_000 <= found["prefix_tokens"] < 31_000
    assert 0 < found["cached_usd"] < found["rewritten_usd"] < found["uncached_usd"]
    assert found["uncached_usd"] == pytest.approx(7 * 3e-6 * found["prefix_tokens"])


def test_nothing_is_called_and_nothing_is_started(place):
    """No request, no private directory, no transcript: those are made when a run begins."""
    with MessagesServer([]) as server:
        home = place.parent / "home"
        env = environment(home, ANTHROPIC_BASE_URL=server.url, ANTHROPIC_API_KEY="k")
        estimate(place, "--prompt", "count", "--transcript", "t.jsonl", env=env)
        assert (server.requests, server.connections) == ([], 0)
    assert not (home / "state").exists()
    assert [path.name for path in place.iterdir()] == ["s.json"]


def test_a_price_that_is_not_known_is_said(place):
    """No price is made up: null, or a sentence."""
    flags = ("--model", "offline")
    assert "no price is known" in estimate(place, *flags)
    assert json.loads(estimate(place, *flags, "--output-format", "json"))["cached_usd"] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--estimate",), "no snapshot"),
        (("--estimate", "--snapshot", "s.json", "--system", "x"), "--break-cache"),
        (("--snapshot", "s.json"), "--prompt"),
    ],
)
def test_what_cannot_be_meant_is_refused(place, arguments, said):
    """Without a snapshot there is nothing to estimate; without --estimate a prompt is needed."""
    done = run("spawn", *arguments, cwd=place, check=2)
    assert said in done.stderr.decode() and not done.stdout


def test_what_breaks_the_cache_is_counted(place):
    """With --break-cache the estimate is about the request as it would be sent."""
    flags = ("--output-format", "json")
    plain = json.loads(estimate(place, *flags))
    changed = json.loads(
        estimate(
            place, *flags, "--break-cache", "--system", "word " * 1000, "--model", "claude-opus-4-1"
        )
    )
    assert changed["model"] == "claude-opus-4-1"
    assert changed["prefix_tokens"] > plain["prefix_tokens"] + 1000
