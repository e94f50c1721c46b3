"""Run a subagent in its own confined process."""
