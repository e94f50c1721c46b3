"""Which credential there is, and which road it takes."""

import asyncio
import json
import subprocess
import sys

import pytest
from messages_server import MessagesServer
from support_models import KEY, ask, blocks

from forkrun.errors import ConfigurationError, UsageError
from forkrun.models import open_model
from forkrun.models.http_road import HttpModel
from forkrun.models.sdk_road import SdkModel


@pytest.fixture
def environ(tmp_path, monkeypatch):
    """An environment with a home and nothing of the machine's own configuration."""
    import os

    for name in list(os.environ):
        if name.startswith("ANTHROPIC_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return os.environ


def opened(environ, name="claude-test", **options):
    """Open a model, close it, and give it."""
    model = open_model(name, environ=environ, **options)
    asyncio.run(model.close())
    return model


def answer(environ, **options):
    async def play():
        model = open_model("claude-test", environ=environ, **options)
        try:
            return blocks(await ask(model))
        finally:
            await model.close()

    return asyncio.run(play())


def test_without_a_credential_the_message_names_what_needs_none(environ):
    """Nothing is sent; the hint names the two models without a key."""
    with pytest.raises(ConfigurationError) as caught:
        open_model("claude-test", environ=environ)
    assert "--model offline" in caught.value.hint
    assert "script:" in caught.value.hint


@pytest.mark.parametrize("name", ["", " ", "a b", "claude\n", " claude"])
def test_a_name_that_cannot_be_meant_is_a_usage_error(environ, name):
    """Before any question of credentials."""
    with pytest.raises(UsageError):
        open_model(name, environ=environ)


@pytest.mark.parametrize(
    ("settings", "road"),
    [
        ({"ANTHROPIC_API_KEY": KEY}, HttpModel),
        ({"ANTHROPIC_AUTH_TOKEN": KEY}, HttpModel),
        ({"ANTHROPIC_CUSTOM_HEADERS": f"X-Api-Key: {KEY}"}, HttpModel),
        ({"ANTHROPIC_BASE_URL": "http://127.0.0.1:11434"}, HttpModel),
        ({"ANTHROPIC_BASE_URL": "http://localhost:8080/"}, HttpModel),
        ({"ANTHROPIC_BASE_URL": "http://[::1]:8080"}, HttpModel),
        ({"ANTHROPIC_API_KEY": KEY, "HTTPS_PROXY": "http://127.0.0.1:1"}, SdkModel),
        (
            {"ANTHROPIC_API_KEY": KEY, "https_proxy": "http://127.0.0.1:1", "NO_PROXY": "*"},
            HttpModel,
        ),
        (
            {
                "ANTHROPIC_API_KEY": KEY,
                "ALL_PROXY": "http://127.0.0.1:1",
                "no_proxy": "a, api.anthropic.com",
            },
            HttpModel,
        ),
        ({"ANTHROPIC_API_KEY": KEY, "HTTP_PROXY": "http://127.0.0.1:1"}, HttpModel),
        ({"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": "https://me:pw@host"}, SdkModel),
    ],
)
def test_a_plain_credential_takes_the_plain_road(environ, monkeypatch, settings, road):
    """Only what is not plain needs the package: a proxy, a password in the address."""
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert type(opened(environ)) is road


@pytest.mark.parametrize(
    "url", ["nonsense", "ftp://host", "http://", "http://host:99999", "http://[::1"]
)
def test_an_address_that_is_none_is_named(environ, url):
    """The variable is named, not only the value."""
    with pytest.raises(ConfigurationError, match="ANTHROPIC_BASE_URL"):
        open_model("claude-test", environ=environ, base_url=url)


@pytest.mark.parametrize("key", [KEY + "\n", "a\rb", "é", " x"])
def test_a_key_that_no_header_can_hold_is_named_and_not_shown(environ, key):
    """A line break from a file is the usual case."""
    with pytest.raises(ConfigurationError, match="ANTHROPIC_API_KEY") as caught:
        open_model("claude-test", environ={**environ, "ANTHROPIC_API_KEY": key})
    assert key.strip() not in str(caught.value)


def test_the_plain_road_imports_no_package():
    """Neither the package nor its transport is imported for a plain key."""
    code = (
        "import sys, asyncio; from forkrun.models import open_model;"
        "open_model('m', environ={'ANTHROPIC_API_KEY': 'k'});"
        "print([m for m in ('anthropic', 'httpx2', 'anyio', 'pydantic', 'genai_prices') if m in sys.modules])"
    )
    paths = [path for path in sys.path if path]
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path[:0] = {paths!r}; {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_a_local_server_needs_no_key(environ):
    """On the loopback nothing is asked for and no credential is sent."""
    with MessagesServer([{"text": "local"}]) as server:
        assert answer(environ, base_url=server.url) == [{"type": "text", "text": "local"}]
        assert server.requests[0].header("authorization") is None


def test_an_address_may_have_a_path(environ):
    """What stands before /v1/messages is kept, a slash at its end or not."""
    with MessagesServer([{"text": "x", "repeat": None}]) as server:
        for path in ("/anthropic", "/anthropic/"):
            answer(environ, base_url=server.url + path)
        assert [request.path for request in server.requests] == ["/anthropic/v1/messages"] * 2


def test_a_proxy_of_the_environment_is_used(environ, monkeypatch):
    """The request goes to the proxy, with its credential."""
    with MessagesServer([{"text": "by proxy"}], key=KEY) as proxy:
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        assert answer(environ, base_url="http://claude.invalid")[0]["text"] == "by proxy"
        assert proxy.requests[0].path == "http://claude.invalid/v1/messages"


def test_a_profile_on_disk_is_a_credential(environ, monkeypatch, tmp_path):
    """The package reads it, with the address that it names."""
    with MessagesServer([{"text": "hello"}], key=KEY) as server:
        folder = tmp_path / ".config" / "anthropic"
        for name, value in (
            (
                "configs/dev.json",
                {"authentication": {"type": "user_oauth"}, "base_url": server.url},
            ),
            ("credentials/dev.json", {"access_token": KEY}),
        ):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(json.dumps(value))
            (folder / name).chmod(0o600)
        monkeypatch.setenv("ANTHROPIC_PROFILE", "dev")
        assert answer(environ)[0]["text"] == "hello"
        monkeypatch.delenv("ANTHROPIC_PROFILE")
        (folder / "active_config").write_text("dev")
        assert type(opened(environ)) is SdkModel
        assert type(opened(environ, base_url="http://127.0.0.1:9")) is HttpModel


def test_a_profile_that_is_not_valid_is_a_configuration_error(environ, monkeypatch):
    """The reason of the package is passed on."""
    monkeypatch.setenv("ANTHROPIC_PROFILE", "nobody")
    with pytest.raises(ConfigurationError, match="nobody"):
        open_model("claude-test", environ=environ)


def test_what_is_no_client_is_refused(environ):
    """A client is one of the package's classes, or behaves like one."""
    with pytest.raises(ConfigurationError, match="object"):
        open_model("claude-test", environ=environ, client=object())


def test_clients_of_other_platforms_rewrite_the_request():
    """A Foundry client puts its own address and credential on the request; the reply is the same."""
    import anthropic

    async def play():
        with MessagesServer([{"text": "x"}]) as server:
            async with anthropic.AsyncAnthropicFoundry(api_key=KEY, base_url=server.url) as client:
                model = open_model("claude-test", environ={}, client=client)
                return blocks(await ask(model)), server.requests[0]

    content, asked = asyncio.run(play())
    assert content == [{"type": "text", "text": "x"}]
    assert asked.json["stream"] is True
    assert KEY in [value.removeprefix("Bearer ") for _, value in asked.headers]
