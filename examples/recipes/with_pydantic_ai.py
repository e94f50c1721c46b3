"""The task tool in pydantic-ai: a toolset.

pip install "pydantic-ai-slim[anthropic]"
ANTHROPIC_API_KEY=… python examples/recipes/with_pydantic_ai.py PROMPT
"""

import asyncio
import sys
from typing import Any

from pydantic_ai import Agent, ModelRetry, Tool
from pydantic_ai.toolsets import FunctionToolset

import forkrun

MODEL = "claude-sonnet-5-5"


def toolset_of(task: forkrun.TaskTool) -> FunctionToolset[None]:
    """Give the toolset that `Agent.toolsets` takes."""
    definition = task.definition

    async def run(**wanted: Any) -> str:
        answer = await task(wanted)
        if answer.is_error and answer.result is None:  # the model has called it wrongly
            raise ModelRetry(answer.text)
        return answer.text

    return FunctionToolset(
        [
            Tool.from_schema(
                run,
                name=definition["name"],
                description=definition["description"],
                json_schema=definition["input_schema"],
            )
        ]
    )


async def main(prompt: str) -> None:
    """Ask an agent that has our toolset, and print its answer."""
    async with forkrun.Runner(model=MODEL) as runner:
        task = forkrun.task_tool(runner, tools=["read_file", "grep"])
        agent = Agent(f"anthropic:{MODEL}", toolsets=[toolset_of(task)])
        print((await agent.run(prompt)).output)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
