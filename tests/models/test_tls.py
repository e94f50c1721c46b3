"""The plain road over TLS, with a certificate of a test's own."""

import asyncio
import select
import shutil
import ssl
import subprocess
import sys
import time

import pytest
from messages_server import MessagesServer
from support_models import ask, blocks, model_by, request

from forkrun.errors import ModelError, ModelUnavailable
from forkrun.models import begin_connecting, open_model

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A self-signed certificate for 127.0.0.1 and its key, in one file."""
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += [
        "-subj",
        "/CN=test",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-keyout",
        str(path),
        "-out",
        "-",
    ]
    made = subprocess.run(command, capture_output=True, check=True)
    with path.open("ab") as file:
        file.write(made.stdout)
    return path


@pytest.fixture
def tls(certificate):
    """How a server proves that it is 127.0.0.1."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def test_a_certificate_that_is_trusted_is_enough(certificate, tls, monkeypatch):
    """SSL_CERT_FILE says what is trusted; the connection is used again."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))

    async def play():
        with MessagesServer([{"text": "x", "repeat": None}], tls=tls) as server:
            async with model_by("plain", server.url) as model:
                assert blocks(await ask(model)) == [{"type": "text", "text": "x"}]
                await ask(model, request("y" * 1_000_000))
                return server.connections

    assert asyncio.run(play()) == 1


def test_a_connection_made_ahead_is_used_over_tls(certificate, tls, monkeypatch):
    """Its handshake is done before there is a request; tickets that come by then do no harm."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))

    async def play():
        with MessagesServer([{"text": "x"}], tls=tls) as server:
            environ = {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": server.url}
            with begin_connecting(None, environ=environ) as connections:
                early = connections._early
                assert await asyncio.to_thread(early._done.wait, 20)
                assert select.select([early._sock], [], [], 20)[0]  # the tickets have come
                model = open_model("m", environ=environ, connections=connections)
                assert blocks(await ask(model)) == [{"type": "text", "text": "x"}]
                await model.close()
            return server.connections

    assert asyncio.run(play()) == 1


def test_a_certificate_that_is_not_trusted_is_named(tls):
    """Nothing is sent to a server that cannot prove who it is, and trying again does not help."""

    async def play():
        with MessagesServer([{"text": "x"}], tls=tls) as server:
            async with model_by("plain", server.url) as model:
                with pytest.raises(ModelError, match="its certificate is not trusted") as caught:
                    await ask(model)
                assert not isinstance(caught.value, ModelUnavailable)
            assert not server.requests

    asyncio.run(play())


def test_cancelling_ends_a_call_over_tls(certificate, tls, monkeypatch):
    """The thread that reads is freed, and the model can be asked again."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))

    async def play():
        lines = [{"text": "x", "stall_after_events": 2}, {"text": "y"}]
        with MessagesServer(lines, tls=tls) as server:
            async with model_by("plain", server.url) as model:
                began = asyncio.Event()
                task = asyncio.create_task(model.reply(request(), lambda _: began.set()))
                await began.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert blocks(await ask(model)) == [{"type": "text", "text": "y"}]

    asyncio.run(play())


@pytest.mark.parametrize("hang", ["socket.getaddrinfo", "socket.socket.connect"])
def test_a_thread_that_hangs_does_not_keep_the_process_alive(hang):
    """A name server or an address that never answers holds up nobody who gave up waiting."""
    code = f"""
import asyncio, sys, time
sys.path[:0] = {[path for path in sys.path if path]!r}
import socket
{hang} = lambda *_, **__: time.sleep(60)
from forkrun.models import open_model
from support_models import request
async def play():
    model = open_model("m", environ={{"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}})
    try:
        async with asyncio.timeout(0.2):
            await model.reply(request(), print)
    except TimeoutError:
        await model.close()
        print("gave up")
asyncio.run(play())
"""
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.stdout == "gave up\n", done.stderr
    assert done.returncode == 0
    assert time.monotonic() - started < 10
