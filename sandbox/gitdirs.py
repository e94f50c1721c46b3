"""Which git directories outside of a workspace belong to it.

What is shown must be the git directory of this very workspace, whatever the files in and around it
say. So no link is followed, a place that a file names must name the workspace in turn, and what git
keeps at a fixed place is looked for there. Alternates are not followed at all: a line in a file
would make the objects of any repository of the user readable. Who borrows objects from another
repository (`git clone --shared` or `--reference`) shows that one by name.
"""

from __future__ import annotations

import os
import stat

from .hearsay import is_inside, path_in, settings


def git_directories(workspace: str) -> tuple[str, ...]:
    """Give the git directories of `workspace`, a real path, that lie outside of it.

    For a subdirectory of a repository that is its `.git`; for a worktree or a submodule what its
    `.git` file names, if that place names it in turn.
    """
    home = os.path.expanduser("~")
    directory = workspace
    while directory not in ("/", home):
        entry = os.path.join(directory, ".git")
        try:
            mode = os.lstat(entry).st_mode
        except OSError:
            directory = os.path.dirname(directory)
            continue
        if stat.S_ISREG(mode):
            return _linked(entry, workspace)
        is_shown = stat.S_ISDIR(mode) and directory != workspace and _is_git_directory(entry)
        return (entry,) if is_shown else ()
    return ()


def _linked(entry: str, workspace: str) -> tuple[str, ...]:
    """Follow a `.git` file: gitrepository-layout(5)."""
    kind, _, named = path_in(entry).partition(": ")
    target = os.path.realpath(os.path.join(os.path.dirname(entry), named))
    if kind != "gitdir" or is_inside(target, workspace) or not _points_back(target, entry):
        return ()
    shared = target
    if common := path_in(os.path.join(target, "commondir")):
        # A worktree's lies in `worktrees` of the repository that it belongs to, and nowhere else.
        worktrees, shared = os.path.dirname(target), os.path.dirname(os.path.dirname(target))
        named_place = os.path.realpath(os.path.join(target, common))
        if os.path.basename(worktrees) != "worktrees" or named_place != shared:
            return ()
    return (shared,) if _is_git_directory(shared) else ()


def _points_back(target: str, entry: str) -> bool:
    """Say whether a git directory belongs to this `.git` file: a worktree's, or a submodule's."""
    back = path_in(os.path.join(target, "gitdir"))
    if back:
        return os.path.realpath(os.path.join(target, back)) == entry
    for key, value in settings(os.path.join(target, "config")):
        if key == "worktree":
            tree = os.path.realpath(os.path.join(target, value.strip('"')))
            return tree == os.path.dirname(entry)
    return False


def _is_git_directory(path: str) -> bool:
    return os.path.isfile(os.path.join(path, "HEAD")) and all(
        os.path.isdir(os.path.join(path, name)) for name in ("objects", "refs")
    )
