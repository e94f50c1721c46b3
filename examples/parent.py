"""A parent agent on the plain SDK: it may hand subtasks to subagents, several at a time.

ANTHROPIC_API_KEY=… python examples/parent.py "Which of our modules lack tests?"
"""

import asyncio
import sys

import anthropic

import forkrun

MODEL = "claude-sonnet-5-5"


async def main(prompt: str) -> None:
    """Ask until the model has no more calls; its subagents may read this directory."""
    messages = [{"role": "user", "content": prompt}]
    async with anthropic.AsyncAnthropic() as client, forkrun.Runner(model=MODEL) as runner:
        task = forkrun.task_tool(runner, tools=["read_file", "glob", "grep"])
        while True:
            reply = await client.messages.create(
                model=MODEL, max_tokens=8_000, messages=messages, tools=[task.definition]
            )
            messages.append({"role": "assistant", "content": reply.content})
            if reply.stop_reason != "tool_use":
                break
            messages.append({"role": "user", "content": await task.answer(reply.content)})
    print("".join(block.text for block in reply.content if block.type == "text"))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
