"""Run subagents from a trio program, over the asyncio bridge that trio-asyncio is.

    pip install trio trio-asyncio
    python examples/trio_host.py MODEL PROMPT

A cancel scope of trio that ends early ends the subagent's whole process tree, as ever.
"""

import sys

import trio
import trio_asyncio

import forkrun

TIME_S = 60


async def main(model: str, prompt: str) -> None:
    """Print each tool call as it happens, then the summary; give up after a minute."""
    async with trio_asyncio.open_loop():
        with trio.move_on_after(TIME_S) as limited:
            spawned = forkrun.spawn(prompt, model=model, tools=["read_file", "glob", "grep"])
            async with trio_asyncio.aio_as_trio(spawned) as run:
                async for event in trio_asyncio.aio_as_trio(run.events()):
                    if isinstance(event, forkrun.ToolCallEvent):
                        print(f"{event.t:.1f}s {event.tool}", file=sys.stderr)
                result = await trio_asyncio.aio_as_trio(run.result)()
            print(result.summary)
        if limited.cancelled_caught:
            sys.exit(f"gave up after {TIME_S} s")


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
