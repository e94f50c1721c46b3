"""Agent definitions: Markdown files that say what a subagent is for and what it may do.

    .claude/agents/**/*.md          in the workspace and the directories above it, up to the project
    ~/.claude/agents/**/*.md        the user's own ($CLAUDE_CONFIG_DIR in place of ~/.claude)

The nearest file of a name counts. A mistake in a file is a `Problem` with its line and keeps no
other file from being used. `use` makes a job of one: what stands in a file of the project can only
narrow what the user allows.

>>> found = forkrun.agents.load(cwd=".", environ={"HOME": "/nowhere"})
>>> [agent.name for agent in found if agent.is_usable]
['reviewer']
>>> print(forkrun.agents.describe(found))
- reviewer: Reviews a change. (tools: read_file, grep)
>>> job = forkrun.agents.use(found[0], forkrun.Job(prompt="Review the last commit"))
>>> job.tools
('read_file', 'grep')
"""

from forkrun.agents.definition import Agent, Problem
from forkrun.agents.finding import find, load, read_file
from forkrun.agents.using import describe, use

__all__ = ["Agent", "Problem", "describe", "find", "load", "read_file", "use"]
