"""The task tool in claude-agent-sdk: an MCP server inside of the program.

pip install claude-agent-sdk
ANTHROPIC_API_KEY=… python examples/recipes/with_claude_agent_sdk.py PROMPT
"""

import asyncio
import sys
from typing import Any

from claude_agent_sdk import (
    AssistantMessage,
    ClaudeAgentOptions,
    TextBlock,
    create_sdk_mcp_server,
    query,
    tool,
)

import forkrun

MODEL = "claude-sonnet-5-5"


def server_of(task: forkrun.TaskTool) -> Any:
    """Give the server that `ClaudeAgentOptions.mcp_servers` takes."""
    definition = task.definition

    @tool(definition["name"], definition["description"], definition["input_schema"])
    async def run(wanted: dict[str, Any]) -> dict[str, Any]:
        answer = await task(wanted)
        return {"content": [{"type": "text", "text": answer.text}], "is_error": answer.is_error}

    return create_sdk_mcp_server("forkrun", tools=[run])


async def main(prompt: str) -> None:
    """Ask Claude Code, whose only tool is ours, and print what it says."""
    async with forkrun.Runner(model=MODEL) as runner:
        options = ClaudeAgentOptions(
            model=MODEL,
            mcp_servers={"forkrun": server_of(forkrun.task_tool(runner, tools=["read_file"]))},
            tools=[],
            allowed_tools=["mcp__forkrun__task"],
        )
        async for message in query(prompt=prompt, options=options):
            if isinstance(message, AssistantMessage):
                for block in message.content:
                    if isinstance(block, TextBlock):
                        print(block.text)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
