"""What the tests of the models have in common: requests, and one model by each road."""

import contextlib
import functools
import gc
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from forkrun.models import open_model
from forkrun.models.base import Model, Reply, Request

KEY = "sk-test-0123456789"
ROADS = ("plain", "sdk", "sdk-sync", "sdk-dict")


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def request(*messages: Any, number: int = 0, betas: tuple[str, ...] = (), **params: Any) -> Request:
    """A request with these messages (a text is a user message) and parameters."""
    whole = [
        {"role": "user", "content": m} if isinstance(m, str) else m for m in messages or ("hi",)
    ]
    return Request(
        params={
            name: raw(value)
            for name, value in ({"model": "claude-test", "max_tokens": 100} | params).items()
        },
        messages=[msgspec.json.encode(message) for message in whole],
        betas=betas,
        number=number,
    )


@contextlib.asynccontextmanager
async def model_by(road: str, url: str, *, key: str = KEY) -> AsyncIterator[Model]:
    """Open a model at this address by one of the ROADS; close all that was opened."""
    async with contextlib.AsyncExitStack() as stack:
        if road == "plain":
            environ = {"ANTHROPIC_API_KEY": key, "ANTHROPIC_BASE_URL": url}
            model = open_model("claude-test", environ=environ)
        else:
            client = _client(road, url, key)
            stack.push_async_callback(_close, client)
            stack.callback(_spare_the_collector)
            model = open_model("claude-test", environ={}, client=client)
        stack.push_async_callback(model.close)
        yield model


async def ask(
    model: Model, asked: Request | None = None, *, heard: list[str] | None = None
) -> Reply:
    """Ask for one reply; the pieces of its text go to `heard`."""
    pieces = heard if heard is not None else []
    return await model.reply(asked or request(), lambda text: pieces.append(text) if text else None)


def blocks(reply: Reply) -> list[Any]:
    return [msgspec.json.decode(block) for block in reply.content]


@functools.cache
def _spare_the_collector() -> None:
    """Take the many objects of the package out of every later collection (once, when it is warm)."""
    gc.collect()
    gc.freeze()


def _client(road: str, url: str, key: str) -> Any:
    import anthropic

    if road == "sdk-sync":
        return anthropic.Anthropic(api_key=key, base_url=url)
    if road == "sdk-dict":

        async def pass_on(asked: Any, call_next: Any) -> Any:
            return await call_next(asked)

        return anthropic.AsyncAnthropic(api_key=key, base_url=url, middleware=[pass_on])
    return anthropic.AsyncAnthropic(api_key=key, base_url=url)


async def _close(client: Any) -> None:
    closing = client.close()
    if closing is not None:
        await closing
