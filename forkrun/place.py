"""Where a run works: its workspace, its private directories, its environments, its sandbox spec.

Everything that is made here is gone when the block is left.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Iterator, Mapping

import msgspec

from forkrun.environment import PASSED_ON, command_environment
from forkrun.handcuffs import open_writable
from forkrun.job import Job, workspace_path
from forkrun.limits import Limits
from forkrun.policy import Policy
from forkrun.starting import package_folders
from forkrun.state import made_state_folder
from forkrun.transaction import Transaction
from forkrun.workspace.copies import Progress
from forkrun.workspace.views import Form, private_directory
from forkrun_sandbox.gitdirs import git_directories
from forkrun_sandbox.spec import HOME, Spec
from forkrun_sandbox.spec import Limits as SandboxLimits
from forkrun_sandbox.toolchains import toolchains

LOOK_AGAIN_S = 5.0
WITH_A_VIEW = ("full", "bwrap")
# So that a full view says that it is full before a file in it says that it is too large.
FILE_SPARE_BYTES = 1024 * 1024


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a child works, and what it is told of it; every path is absolute and real."""

    workspace: str
    spec: Spec
    transaction: Transaction | None
    command_environ: dict[str, str]


@contextlib.contextmanager
def open_place(
    job: Job,
    *,
    tier: str,
    form: Form,
    run_id: str,
    policy: Policy,
    environ: Mapping[str, str],
    progress: Progress | None = None,
) -> Iterator[Place]:
    """Open the place of a job in a sandbox of this tier, with a private view of this form.

    `progress` is called with (bytes copied, bytes in all) where the workspace is copied.
    Raises UsageError when the workspace cannot be worked in.
    """
    workspace = workspace_path(job, environ)
    with contextlib.ExitStack() as stack:
        home, tmp = HOME, "/tmp"
        transaction = source = None
        if job.root is not None:
            environ = {**environ, "PATH": "", **dict.fromkeys(PASSED_ON, "")}  # its own toolchains
        readable = (*_toolchains(environ, workspace), *git_directories(workspace))
        if tier not in WITH_A_VIEW or job.workspace == "temp":
            private = stack.enter_context(
                private_directory(
                    made_state_folder(environ),
                    f"{run_id}.home",
                    reached_by=os.stat(workspace).st_uid,
                )
            )
            for name in ("home", "tmp", "work"):
                _make_own(f"{private}/{name}", owner=workspace)
            if tier not in WITH_A_VIEW:
                home, tmp = f"{private}/home", f"{private}/tmp"
        if job.workspace == "temp":
            readable, workspace = (*readable, workspace), f"{private}/work"
        elif job.has_view:
            if job.patch is not None:
                from forkrun.workspace.landing import check_landing

                check_landing(job.patch, workspace=workspace)
            transaction = stack.enter_context(
                Transaction(
                    workspace,
                    form=form,
                    run_id=run_id,
                    environ=environ,
                    disk_bytes=job.limits.disk_bytes,
                    is_shared=tier not in WITH_A_VIEW,
                    progress=progress,
                )
            )
            if form == "copy":
                transaction.open()
                source = transaction.view.copy
            if source is not None and tier not in WITH_A_VIEW:
                workspace, source = source, None
        named: tuple[str, ...] | None = None
        if job.workspace == "live":
            named = stack.enter_context(open_writable(policy, workspace))
        spec = Spec(
            tier=tier,
            workspace=workspace,
            workspace_mode="read" if named is not None else _mode(job, transaction),
            workspace_source=source,
            readable=(*readable, *package_folders()[-1:], *job.readable),
            writable=(*(named or ()), *job.writable),
            root=job.root,
            masked=masked(policy, workspace),
            network=job.network,
            home=home,
            scratch=tmp,
            best_effort=job.sandbox == "best-effort",
            limits=SandboxLimits(
                memory_bytes=job.limits.memory_bytes,
                processes=job.limits.processes,
                cpu_s=job.limits.cpu_s,
                file_bytes=_file_bytes(job.limits),
                disk_bytes=job.limits.disk_bytes,
                tmp_bytes=job.limits.tmp_bytes,
            ),
        )
        yield Place(
            workspace=workspace,
            spec=spec,
            transaction=transaction,
            command_environ=command_environment(environ, home=home, tmp=tmp, extra=job.env),
        )


def _toolchains(environ: Mapping[str, str], workspace: str) -> tuple[str, ...]:
    """Give the toolchains in use. They are looked for anew every few seconds, not for every run."""
    period = int(time.monotonic() / LOOK_AGAIN_S)
    return _toolchains_of(tuple(sorted(environ.items())), workspace, period)


@functools.lru_cache(maxsize=64)
def _toolchains_of(
    environ: tuple[tuple[str, str], ...], workspace: str, period: int
) -> tuple[str, ...]:
    return toolchains(dict(environ), workspace)


def _file_bytes(limits: Limits) -> int | None:
    """Bound the size of one file: nobody can make one larger than the disk, also not of holes."""
    return None if limits.disk_bytes is None else limits.disk_bytes + FILE_SPARE_BYTES


def _make_own(path: str, *, owner: str) -> None:
    """Make a private directory of whom a directory belongs to, as whom the child runs."""
    os.mkdir(path, 0o700)
    if os.geteuid() == 0:
        found = os.stat(owner)
        os.chown(path, found.st_uid, found.st_gid)


def _mode(job: Job, transaction: Transaction | None) -> str:
    if transaction is not None and transaction.form == "overlay":
        return "overlay"
    return "read" if job.workspace == "read-only" else "write"


def masked(policy: Policy, workspace: str) -> tuple[str, ...]:
    """Give the files and directories that deny rules withhold from reading, as they are now."""
    withheld = policy.unreadable()
    found = {path for path in withheld.literals if os.path.lexists(os.path.join(workspace, path))}
    if withheld.patterns:
        for folder, names, files in os.walk(workspace):
            relative = os.path.relpath(folder, workspace)
            for name in (*names, *files):
                path = name if relative == "." else f"{relative}/{name}"
                if withheld.covers(path):
                    found.add(path)
            names[:] = [n for n in names if os.path.normpath(f"{relative}/{n}") not in found]
    return tuple(os.path.join(workspace, path) for path in sorted(found))
