"""The task tool in openai-agents: a function tool.

pip install openai-agents
OPENAI_API_KEY=… ANTHROPIC_API_KEY=… python examples/recipes/with_openai_agents.py PROMPT
"""

import asyncio
import json
import os
import sys
from typing import Any

from agents import Agent, FunctionTool, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
from openai import AsyncOpenAI

import forkrun


def tool_of(task: forkrun.TaskTool) -> FunctionTool:
    """Give the tool that `Agent.tools` takes."""
    definition = task.definition

    async def invoke(_: Any, arguments: str) -> str:
        answer = await task(json.loads(arguments))
        return f"Error: {answer.text}" if answer.is_error else answer.text

    return FunctionTool(
        name=definition["name"],
        description=definition["description"],
        params_json_schema=definition["input_schema"],
        on_invoke_tool=invoke,
        strict_json_schema=False,
    )


async def main(prompt: str) -> None:
    """Ask an agent that has our tool, and print its answer."""
    set_tracing_disabled(True)
    async with AsyncOpenAI() as client, forkrun.Runner(model="claude-sonnet-5-5") as runner:
        agent = Agent(
            name="parent",
            instructions="Hand reading to subagents.",
            model=OpenAIChatCompletionsModel(
                model=os.environ.get("OPENAI_MODEL", "gpt-5"), openai_client=client
            ),
            tools=[tool_of(forkrun.task_tool(runner, tools=["read_file", "grep"]))],
        )
        print((await Runner.run(agent, prompt)).final_output)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
