"""Forkrun as a subagent of deepagents: its own `task` tool starts a process of ours.

pip install deepagents langchain-anthropic
ANTHROPIC_API_KEY=… python examples/recipes/with_deepagents.py PROMPT
"""

import asyncio
import sys
from typing import Any

from deepagents import CompiledSubAgent, create_deep_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda

import forkrun

MODEL = "claude-sonnet-5-5"


def subagent_of(task: forkrun.TaskTool) -> CompiledSubAgent:
    """Give the subagent that `create_deep_agent` takes among its `subagents`."""

    async def run(state: dict[str, Any]) -> dict[str, Any]:
        answer = await task({"prompt": state["messages"][-1].text})
        return {"messages": [AIMessage(answer.text)]}

    return CompiledSubAgent(
        name="isolated",
        description="Works on a subtask in a process of its own, confined to this directory.",
        runnable=RunnableLambda(run),
    )


async def main(prompt: str) -> None:
    """Ask a deep agent that has our subagent, and print its answer."""
    async with forkrun.Runner(model=MODEL) as runner:
        task = forkrun.task_tool(runner, tools=["read_file", "grep"])
        agent = create_deep_agent(ChatAnthropic(model_name=MODEL), subagents=[subagent_of(task)])
        state = await agent.ainvoke({"messages": [{"role": "user", "content": prompt}]})
        print(state["messages"][-1].text)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
