"""`forkrun mcp`: the flags of a server, and its life."""

from __future__ import annotations

import asyncio
import logging
import os

from forkrun.agents import load
from forkrun.job import Job, check, workspace_path
from forkrun.mcp.config import check_installed
from forkrun.mcp.server import serve


def main(job: Job, *, is_one_agent: bool, at_once: int) -> int:
    """Serve a host on stdin and stdout until it is gone, and give 0.

    Where the job is one agent's already, the host chooses no other.
    """
    check_installed()
    check(job)
    workspace_path(job, os.environ)
    # The SDK's own complaints, about a host that is gone for one, are not for people.
    logging.getLogger("mcp").addHandler(logging.NullHandler())
    agents = [] if is_one_agent else load(cwd=job.cwd or ".")
    asyncio.run(serve(job, environ=os.environ, agents=agents, at_once=at_once))
    return 0
