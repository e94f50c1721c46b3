"""Agent definitions: Markdown files that say what a subagent is for and what it may do.

    .claude/agents/**/*.md          in the workspace and the directories above it, up to the project
    ~/.claude/agents/**/*.md        the user's own ($CLAUDE_CONFIG_DIR in place of ~/.claude)

The nearest file of a name counts. A mistake in a file is a `Problem` with its line and keeps no
other file from being used. `use` makes a job of one: what stands in a file of the project can only
narrow what the user allows.
"""

from forkrun.agents.definition import Agent, Problem
from forkrun.agents.finding import find, load, read_file
from forkrun.agents.using import describe, use

__all__ = ["Agent", "Problem", "describe", "find", "load", "read_file", "use"]
