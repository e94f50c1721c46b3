"""Keep the patch of a run that did not commit, and apply it later under the same conflict rules.

STATE/patches/RUN_ID.patch
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import BinaryIO, cast

import msgspec

from forkrun.errors import InputError, WorkspaceError
from forkrun.workspace.commit import Committed, commit_changes
from forkrun.workspace.dirs import open_tree
from forkrun.workspace.landing import landing, replacing
from forkrun.workspace.patch import FIRST_LINE, FileStat, write_patch
from forkrun.workspace.records import Changes

_MAX_RESULT_BYTES = 64 * 1024 * 1024


def keep_patch(
    changes: Changes, *, state_dir: str, run_id: str
) -> tuple[str, tuple[FileStat, ...]]:
    """Write the patch of a run where `sweep_patches` will find it: (its path, what changed)."""
    directory = os.path.join(state_dir, "patches")
    os.makedirs(directory, mode=0o700, exist_ok=True)
    path = os.path.join(directory, f"{run_id}.patch")
    return path, save_patch(changes, path=path)


def save_patch(changes: Changes, *, path: str) -> tuple[FileStat, ...]:
    """Write the patch of changes to a file, wholly or not at all.

    Must come before the commit, which replaces the old contents. A path that is no regular file
    (/dev/stdout, a FIFO) is written to and stays what it is. No link in the workspace is followed.
    """
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            landing(path, workspace=changes.workspace)
            with open(path, "wb") as out:
                return write_patch(changes, out)
        with replacing(path, workspace=changes.workspace) as out:
            return write_patch(changes, out)
    except OSError as error:
        raise WorkspaceError(f"the patch cannot be written: {error}") from error


def apply_patch(
    patch_or_result: str, *, workspace: str, state_dir: str, lock_timeout_s: float = 60.0
) -> Committed:
    """Commit a kept patch, named by its own path or by that of a run's result in JSON.

    A file that is not as it was when the patch was made is a conflict, and nothing is changed.
    Raises InputError where there is no patch to be used.
    """
    from forkrun.workspace.unpatch import read_patch

    workspace = os.path.realpath(workspace)
    path = find_patch(patch_or_result)
    with _open_patch(path) as patch, open_tree(workspace) as tree:
        changes = read_patch(patch, tree, workspace=workspace)
        patch.seek(0)
        if not changes.entries and not patch.read(len(FIRST_LINE)) == FIRST_LINE:
            raise InputError(f"there is no patch in it: {path}")
        return commit_changes(changes, state_dir=state_dir, lock_timeout_s=lock_timeout_s)


def find_patch(patch_or_result: str) -> str:
    """Return the path of a patch, given itself or the JSON of a result that names it."""
    try:
        with open(patch_or_result, "rb") as file:
            content = file.read(_MAX_RESULT_BYTES)
    except OSError as error:
        raise InputError(f"cannot be read: {patch_or_result}: {error.strerror}") from error
    if not content.lstrip().startswith(b"{"):
        return patch_or_result
    # The last line of `stream-json` is the result; with `json` it is the only one.
    last = content.strip().rpartition(b"\n")[2]
    try:
        patch = msgspec.json.decode(last, type=_Result).patch
    except (msgspec.DecodeError, ValueError) as error:
        raise InputError(f"not a result: {patch_or_result}: {error}") from None
    if patch is None:
        raise InputError(f"the result names no patch: {patch_or_result}")
    return patch


@contextlib.contextmanager
def _open_patch(path: str) -> Iterator[BinaryIO]:
    try:
        with open(path, "rb") as patch:
            yield cast(BinaryIO, patch)
    except OSError as error:
        raise InputError(f"the patch cannot be used: {path}: {error}") from error


class _Result(msgspec.Struct):
    """What of a run's result matters here; other fields are skipped."""

    patch: str | None = None
