"""What a commit is about to do, on disk, so that a kill at any instant can be made good.

    STATE/journals/WORKSPACE-TOKEN/
        plan         every step, before anything is done in the workspace
        committing   from here on: finish        (the inodes of the new files)
        undoing      from here on: undo
        done         all steps are done; only what is old remains to be removed
        and contents of files whose own directory cannot be written

The holder of the workspace's lock owns its journals: one that is found is one whose holder died.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
from collections.abc import Iterator
from typing import Literal

import msgspec

from forkrun.workspace.dirs import Tree, open_tree, remove_tree
from forkrun.workspace.transfer import write_all

Mark = Literal["committing", "undoing", "done"]
_MAX_PLAN_BYTES = 1024 * 1024 * 1024


class Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One step of a commit, on one path of the workspace. Paths are bytes as the kernel has them.

    "remove" moves the old entry to `backup`; "make" makes a directory; "add" and "replace" put
    what is ready at `new` in place, "replace" with the old entry as `backup`; "mode" sets
    permission bits. `inode`, `size` and `mtime_ns` are those of the old entry. A `new` or `backup`
    that starts with "/" lies in the journal, and the file is then written in place.
    """

    act: Literal["remove", "make", "add", "replace", "mode"]
    path: bytes
    new: bytes = b""
    backup: bytes = b""
    is_directory: bool = False
    mode: int = 0
    old_mode: int = 0
    inode: int = 0
    size: int = 0
    mtime_ns: int = 0


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All steps of one commit, in their order."""

    workspace: bytes
    steps: tuple[Step, ...]


class Journal:
    """One journal on disk, open. `inodes` are those of the new files, by step."""

    def __init__(self, directory: str, plan: Plan) -> None:
        self.directory = directory
        self.plan = plan
        self.tree: Tree = open_tree(directory, is_ours=True)
        self.inodes: dict[int, int] = {}

    def mark(self, mark: Mark) -> None:
        """Write a mark that is there wholly or not at all."""
        _write(self.tree.fd, mark, msgspec.msgpack.encode(self.inodes))

    def has(self, mark: Mark) -> bool:
        """Whether a mark was written."""
        return self.tree.lstat(mark) is not None

    def read_inodes(self) -> None:
        """Read back what `mark("committing")` has written."""
        with open(self.tree.open_file("committing"), "rb") as file:
            self.inodes = msgspec.msgpack.decode(file.read(), type=dict[int, int])

    def remove(self) -> None:
        """Remove the journal: the commit is no longer open."""
        parent, name = os.path.split(self.directory)
        with open_tree(parent) as journals:
            # Under a name that no search finds: a journal half removed must not be taken for one.
            gone = f".{name}"
            os.rename(name, gone, src_dir_fd=journals.fd, dst_dir_fd=journals.fd)
            remove_tree(journals.fd, gone)


@contextlib.contextmanager
def new_journal(state_dir: str, plan: Plan, *, token: str) -> Iterator[Journal]:
    """Write the plan, and hand out the journal. The caller removes it when its work is done."""
    journals = os.path.join(state_dir, "journals")
    os.makedirs(journals, mode=0o700, exist_ok=True)
    name = f"{workspace_key(plan.workspace)}-{token}"
    directory = os.path.join(journals, name)
    os.mkdir(directory, 0o700)
    with open_tree(journals) as parent, open_tree(directory) as tree:
        _write(tree.fd, "plan", msgspec.msgpack.encode(plan))
        os.fsync(parent.fd)
    journal = Journal(directory, plan)
    try:
        yield journal
    finally:
        journal.tree.close()


@contextlib.contextmanager
def old_journals(state_dir: str, workspace: bytes) -> Iterator[list[Journal]]:
    """Open the journals of a workspace whose lock the caller holds; they are of dead holders."""
    with contextlib.ExitStack() as stack:
        yield [
            journal
            for directory in _find(state_dir, workspace)
            if (journal := _open(directory, stack)) is not None
        ]


def workspaces_of(state_dir: str) -> list[bytes]:
    """Name the workspaces that have journals."""
    found = set()
    for plan in glob.glob(os.path.join(glob.escape(state_dir), "journals", "*", "plan")):
        with contextlib.suppress(OSError):
            found.add(_read_plan(plan).workspace)
    return sorted(found)


def workspace_key(workspace: bytes) -> str:
    """Return a short name for a workspace, from its real path."""
    return hashlib.sha256(workspace).hexdigest()[:20]


def new_token() -> str:
    """Return a name that nobody else has."""
    return os.urandom(8).hex()


def _find(state_dir: str, workspace: bytes) -> list[str]:
    journals = os.path.join(state_dir, "journals")
    key = workspace_key(workspace)
    try:
        names = os.listdir(journals)
    except FileNotFoundError:
        return []
    with open_tree(journals) as tree:
        for name in names:
            if name.startswith(f".{key}-"):
                remove_tree(tree.fd, name)
    return [os.path.join(journals, name) for name in sorted(names) if name.startswith(f"{key}-")]


def _open(directory: str, stack: contextlib.ExitStack) -> Journal | None:
    try:
        plan = _read_plan(os.path.join(directory, "plan"))
    except FileNotFoundError:
        # Killed before the plan was whole: nothing was done.
        parent, name = os.path.split(directory)
        with open_tree(parent) as journals:
            remove_tree(journals.fd, name)
        return None
    journal = Journal(directory, plan)
    stack.callback(journal.tree.close)
    return journal


def _read_plan(path: str) -> Plan:
    with open(path, "rb") as file:
        return msgspec.msgpack.decode(file.read(_MAX_PLAN_BYTES), type=Plan)


def _write(directory: int, name: str, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    fd = os.open(f"{name}.new", flags, 0o600, dir_fd=directory)
    try:
        write_all(fd, content)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(f"{name}.new", name, src_dir_fd=directory, dst_dir_fd=directory)
    os.fsync(directory)
