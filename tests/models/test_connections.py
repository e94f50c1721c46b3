"""Connections that are made ahead of time, and the addresses that they are made to."""

import asyncio
import contextlib
import select
import socket
import threading

import pytest
from messages_server import MessagesServer
from support_cli import environment, run
from support_models import KEY, ask, blocks

from forkrun.errors import ModelUnavailable
from forkrun.models import anthropic, begin_connecting, open_model

HANG_S = 20


@pytest.fixture
def listener():
    """A server of nothing: it accepts."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.settimeout(HANG_S)
        yield sock


def environ_of(url: str) -> dict[str, str]:
    return {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": url}


def url_of(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


async def asked(environ, connections):
    model = open_model("claude-test", environ=environ, connections=connections)
    try:
        return blocks(await ask(model))[0]["text"]
    finally:
        await model.close()


def test_a_connection_made_ahead_carries_the_first_request():
    """The server is connected to once, and the next request uses the same connection."""
    with MessagesServer([{"text": "a"}, {"text": "b"}]) as server:
        environ = environ_of(server.url)

        async def play():
            with begin_connecting("claude-test", environ=environ) as connections:
                model = open_model("claude-test", environ=environ, connections=connections)
                said = [blocks(await ask(model))[0]["text"] for _ in range(2)]
                await model.close()
                return said

        assert asyncio.run(play()) == ["a", "b"]
        assert server.connections == 1


def test_not_a_byte_is_sent_before_a_request(listener):
    """The connection is there, and silent; the first byte on it is the request's."""
    environ = environ_of(url_of(listener))

    async def play():
        with begin_connecting(None, environ=environ) as connections:
            accepted, _ = await asyncio.to_thread(listener.accept)
            with accepted:
                assert await asyncio.to_thread(connections._early._done.wait, HANG_S)
                assert select.select([accepted], [], [], 0)[0] == []
                asking = asyncio.create_task(asked(environ, connections))
                assert (await asyncio.to_thread(accepted.recv, 5)) == b"POST "
                asking.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await asking

    asyncio.run(play())


def test_a_connection_that_nobody_asked_for_is_closed(listener):
    """Leaving the block ends it; nothing was sent on it."""
    with begin_connecting(None, environ=environ_of(url_of(listener))):
        accepted, _ = listener.accept()
    with accepted:
        accepted.settimeout(HANG_S)
        assert accepted.recv(1) == b""


def test_a_connection_in_the_making_is_given_up():
    """Nobody waits for a server that never answers the handshake, and no thread is left."""
    before = set(threading.enumerate())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(HANG_S)
        url = url_of(listener).replace("http:", "https:")
        with begin_connecting(None, environ=environ_of(url)):
            accepted, _ = listener.accept()
            assert accepted.recv(1)  # the handshake has begun
            [connecting] = set(threading.enumerate()) - before
        with accepted:
            connecting.join(HANG_S)
            assert not connecting.is_alive()


def test_what_fails_ahead_is_said_when_it_is_asked_for(listener):
    """Who asks connects anew, and is told why that fails too; where it works, nothing is said."""
    url = url_of(listener)
    listener.close()

    async def fails():
        with begin_connecting(None, environ=environ_of(url)) as connections:
            await asked(environ_of(url), connections)

    with pytest.raises(ModelUnavailable, match=r"no answer from 127\.0\.0\.1"):
        asyncio.run(fails())

    async def works():
        with begin_connecting(None, environ=environ_of(url)) as connections:
            connections._early._done.wait(HANG_S)
            with MessagesServer([{"text": "late"}], port=int(url.rpartition(":")[2])):
                return await asked(environ_of(url), connections)

    assert asyncio.run(works()) == "late"


def test_a_connection_that_the_server_gave_up_is_not_used():
    """A server may close what is silent for long: the request goes over a new one."""

    async def play():
        with MessagesServer([]) as first:
            environ = environ_of(first.url)
            connections = begin_connecting(None, environ=environ)
            connections._early._done.wait(HANG_S)
        with connections, MessagesServer([{"text": "x"}], port=int(first.url.rpartition(":")[2])):
            return await asked(environ, connections)

    assert asyncio.run(play()) == "x"


def test_connections_to_another_server_are_left_alone(listener):
    """A model uses those to its own server only."""
    with (
        MessagesServer([{"text": "x"}]) as server,
        begin_connecting(None, environ=environ_of(url_of(listener))) as connections,
    ):
        assert asyncio.run(asked(environ_of(server.url), connections)) == "x"


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("offline", {}),
        ("script:x.jsonl", {}),
        (None, {"ANTHROPIC_API_KEY": ""}),
        (None, {"ANTHROPIC_API_KEY": "a\nb"}),
        (None, {"ANTHROPIC_BASE_URL": "nonsense"}),
        (None, {"HTTPS_PROXY": "http://127.0.0.1:1"}),
    ],
)
def test_nothing_is_connected_where_the_plain_road_is_not_taken(name, settings, tmp_path):
    """Another model, another road, or none at all; what is wrong is said by who opens the model."""
    environ = {"ANTHROPIC_API_KEY": KEY, "HOME": str(tmp_path)} | settings
    assert begin_connecting(name, environ=environ) is None


@pytest.mark.parametrize(
    "url",
    [
        "https://api.anthropic.com",
        "http://127.0.0.1:11434",
        "http://localhost:8080/",
        "https://Gateway.Example:8443/a/b_c~d.e/",
        "http://host:1",
        "http://host:65535/v",
    ],
)
def test_a_plain_address_is_read_as_the_library_reads_it(url):
    """The short way gives what urllib gives."""
    plain = anthropic._read_plain(url)
    assert plain is not None
    assert plain == anthropic._read_unusual(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1]:8080",
        "https://me:pw@host",
        "https://host?x=1",
        "https://host/a b",
        "https://host/é",
        "http://host:",
        "http://host:0",
        "http://host:65536",
        "http://host:٣",
        "HTTP://host",
        "http://",
        "http:///path",
        "//host",
        "",
    ],
)
def test_any_other_address_is_left_to_the_library(url):
    """Also what is none."""
    assert anthropic._read_plain(url) is None


def test_the_command_line_connects_once(tmp_path):
    """Ahead of its run, whose request then goes over that connection; one that is refused before
    sends nothing."""
    workspace = tmp_path / "ws"
    workspace.mkdir()
    with MessagesServer([{"text": "done"}]) as server:
        env = environment(tmp_path, **environ_of(server.url))
        flags = ("spawn", "--model", "claude-test", "--prompt", "go")
        run(*flags, "--deny", "nonsense(", cwd=workspace, env=env, check=65)
        assert server.requests == []
        before = server.connections
        run(*flags, cwd=workspace, env=env, check=0)
        assert len(server.messages) == 1
        assert server.connections == before + 1
