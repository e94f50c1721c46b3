"""The task tool in LangChain: a structured tool of an agent.

pip install langchain langchain-anthropic
ANTHROPIC_API_KEY=… python examples/recipes/with_langchain.py PROMPT
"""

import asyncio
import sys
from typing import Any

from langchain.agents import create_agent
from langchain.tools import ToolException
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import StructuredTool

import forkrun

MODEL = "claude-sonnet-5-5"


def tool_of(task: forkrun.TaskTool) -> StructuredTool:
    """Give the tool that `create_agent` takes."""
    definition = task.definition

    async def run(**wanted: Any) -> str:
        answer = await task(wanted)
        if answer.is_error:
            raise ToolException(answer.text)
        return answer.text

    return StructuredTool.from_function(
        coroutine=run,
        name=definition["name"],
        description=definition["description"],
        args_schema=definition["input_schema"],
        handle_tool_error=True,
    )


async def main(prompt: str) -> None:
    """Ask an agent that has our tool, and print its answer."""
    async with forkrun.Runner(model=MODEL) as runner:
        task = forkrun.task_tool(runner, tools=["read_file", "grep"])
        agent = create_agent(ChatAnthropic(model_name=MODEL), tools=[tool_of(task)])
        state = await agent.ainvoke({"messages": [{"role": "user", "content": prompt}]})
        print(state["messages"][-1].text)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
