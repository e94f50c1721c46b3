"""Where a run works: its workspace, its private directories, its environments, its sandbox spec.

Everything that is made here is gone when the block is left.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping

import msgspec

from forkrun.environment import command_environment, worker_environment
from forkrun.job import Job, workspace_path
from forkrun.supervisor import package_folders
from forkrun_sandbox.spec import HOME, Spec
from forkrun_sandbox.spec import Limits as SandboxLimits

WITH_A_VIEW = ("full", "bwrap")


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What a child is told of where it works; every path is absolute and real."""

    workspace: str
    spec: Spec
    worker_environ: dict[str, str]
    command_environ: dict[str, str]


@contextlib.contextmanager
def open_place(job: Job, *, tier: str, environ: Mapping[str, str]) -> Iterator[Place]:
    """Open the place of a job in a sandbox of this tier.

    Raises UsageError when the workspace cannot be worked in.
    """
    workspace = workspace_path(job, environ)
    readable = (workspace,) if job.workspace == "temp" else ()
    with contextlib.ExitStack() as stack:
        home, tmp = HOME, "/tmp"  # noqa: S108 - the sandbox's own
        if tier not in WITH_A_VIEW or job.workspace == "temp":
            private = stack.enter_context(_private_directory())
            if tier not in WITH_A_VIEW:
                home, tmp = f"{private}/home", f"{private}/tmp"
            if job.workspace == "temp":
                workspace = f"{private}/work"
        spec = Spec(
            tier=tier,
            workspace=workspace,
            workspace_mode="write",
            readable=(*readable, *package_folders()[-1:], *job.readable),
            writable=job.writable,
            network=job.network,
            home=home,
            scratch=tmp,
            limits=SandboxLimits(
                memory_bytes=job.limits.memory_bytes,
                processes=job.limits.processes,
                disk_bytes=job.limits.disk_bytes,
                tmp_bytes=job.limits.tmp_bytes,
            ),
        )
        yield Place(
            workspace=workspace,
            spec=spec,
            worker_environ=worker_environment(environ),
            command_environ=command_environment(environ, home=home, tmp=tmp, extra=job.env),
        )


@contextlib.contextmanager
def _private_directory() -> Iterator[str]:
    path = os.path.realpath(tempfile.mkdtemp(prefix="forkrun-"))
    try:
        for name in ("home", "tmp", "work"):
            os.mkdir(os.path.join(path, name), 0o700)
        yield path
    finally:
        _remove(path)


def _remove(path: str) -> None:
    """Remove a tree that a child wrote: a directory without rights is given them first."""
    for folder, _, _, fd in os.fwalk(path, follow_symlinks=False, onerror=None):
        if folder != path:
            os.chmod(fd, 0o700)
    shutil.rmtree(path)
