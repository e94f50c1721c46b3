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
from forkrun_sandbox.spec import Spec


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What a child is told of where it works; every path is absolute and real."""

    workspace: str
    spec: Spec
    worker_environ: dict[str, str]
    command_environ: dict[str, str]


@contextlib.contextmanager
def open_place(job: Job, *, environ: Mapping[str, str]) -> Iterator[Place]:
    """Open the place of a job. Raises UsageError when its workspace cannot be worked in."""
    workspace = workspace_path(job, environ)
    with _private_directory() as private:
        for name in ("home", "tmp", "work"):
            os.mkdir(os.path.join(private, name), 0o700)
        if job.workspace == "temp":
            workspace = os.path.join(private, "work")
        yield Place(
            workspace=workspace,
            spec=Spec(tier="none", workspace=workspace),
            worker_environ=worker_environment(environ),
            command_environ=command_environment(
                environ,
                home=os.path.join(private, "home"),
                tmp=os.path.join(private, "tmp"),
                extra=job.env,
            ),
        )


@contextlib.contextmanager
def _private_directory() -> Iterator[str]:
    path = os.path.realpath(tempfile.mkdtemp(prefix="forkrun-"))
    try:
        yield path
    finally:
        _remove(path)


def _remove(path: str) -> None:
    """Remove a tree that a child wrote: a directory without rights is given them first."""
    for folder, _, _, fd in os.fwalk(path, follow_symlinks=False, onerror=None):
        if folder != path:
            os.chmod(fd, 0o700)
    shutil.rmtree(path)
