"""`forkrun mcp`: the flags of a server, and its life."""

from __future__ import annotations

import asyncio
import logging
import os

from forkrun.agents import load
from forkrun.cli import tell
from forkrun.job import Job, check, workspace_path
from forkrun.mcp.config import check_installed
from forkrun.mcp.server import serve
from forkrun.policy import Policy


def main(job: Job, *, is_one_agent: bool, at_once: int) -> int:
    """Serve a host on stdin and stdout until it is gone, and give 0.

    Where the job is one agent's already, the host chooses no other.
    """
    check_installed()
    # What would fail every call is said now.
    check(job)
    workspace_path(job, os.environ)
    policy = Policy.parse(allow=job.allow, deny=job.deny, parents=job.parents)
    for warning in policy.warnings:
        tell(warning)
    # The SDK's own complaints, about a host that is gone for one, are not for people.
    logging.getLogger("mcp").addHandler(logging.NullHandler())
    agents = [] if is_one_agent else load(cwd=job.cwd or ".")
    try:
        asyncio.run(serve(job, environ=os.environ, agents=agents, at_once=at_once))
    except* BrokenPipeError:
        pass  # the host is gone, as at the end of stdin
    return 0
