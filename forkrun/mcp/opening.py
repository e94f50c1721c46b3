"""Opens the MCP servers of a run; a run without any imports nothing for them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from forkrun.job import Job

if TYPE_CHECKING:
    from forkrun.mcp.servers import Servers


def open_servers(
    job: Job, *, environ: Mapping[str, str]
) -> contextlib.AbstractAsyncContextManager[Servers | None]:
    """Give the servers of a job, or None where it has none."""
    if not job.mcp_servers:
        return contextlib.nullcontext()
    from forkrun.mcp.servers import Servers

    return Servers(job.mcp_servers, environ=environ)
