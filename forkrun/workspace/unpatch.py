"""Read a patch back, as changes that can be committed like those of a view: git is not needed.

Takes what `patch` writes, and patches of git with whole blob ids (`git diff --full-index
--binary`) without renames. A file whose blob is not the one that the patch was made from has
been changed by somebody, which is a conflict; hunks are never fitted in at another place.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from typing import IO, BinaryIO

import msgspec

from forkrun.workspace.changes import node_of
from forkrun.workspace.dirs import MAX_PATH_BYTES, Tree
from forkrun.workspace.hunks import (
    MAX_LINE_BYTES,
    apply_hunks,
    bad_patch,
    inflate_literal,
    skip_hunk,
)
from forkrun.workspace.patch import blob_id
from forkrun.workspace.records import Change, Changes, Kind, Node
from forkrun.workspace.transfer import chunks

_ESCAPES = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}


class Section(msgspec.Struct, kw_only=True):
    """One file of a patch; `body` is where its hunks begin, `line` the number of its first line."""

    path: str
    line: int
    body: int = 0
    old_mode: int = 0
    new_mode: int = 0
    is_new: bool = False
    is_gone: bool = False
    is_binary: bool = False
    old_id: str = ""
    new_id: str = ""


class PatchSource:
    """The new contents of a patch's files, made when they are asked for."""

    def __init__(self, patch: BinaryIO, tree: Tree, sections: dict[str, Section]) -> None:
        self._patch = patch
        self._tree = tree
        self._sections = sections

    def open_file(self, path: str) -> int:
        """Return a descriptor of an unnamed file with the new content, to be closed."""
        section = self._sections[path]
        with tempfile.TemporaryFile() as made:
            self._make(section, made)
            size = made.tell()
            made.truncate(size)  # it may end in a hole
            made.seek(0)
            if section.new_id and blob_id(chunks(made.fileno()), size) != section.new_id:
                raise bad_patch(
                    section.line, f"the content of {path} is not what the patch promises"
                )
            return os.dup(made.fileno())

    def read_target(self, path: str) -> str:
        """Return where the new link points."""
        fd = self.open_file(path)
        with open(fd, "rb") as file:
            return os.fsdecode(file.read(MAX_PATH_BYTES + 1))

    def _make(self, section: Section, made: IO[bytes]) -> None:
        self._patch.seek(section.body)
        if section.is_binary:
            inflate_literal(self._patch, made, section_line=section.line)
            return
        with contextlib.ExitStack() as stack:
            old: IO[bytes] = stack.enter_context(tempfile.TemporaryFile())
            if not section.is_new:
                found = self._tree.lstat(section.path)
                if found is not None and stat.S_ISLNK(found.st_mode):
                    old.write(os.fsencode(self._tree.readlink(section.path)))
                    old.seek(0)
                else:
                    old = stack.enter_context(open(self._tree.open_file(section.path), "rb"))
            apply_hunks(self._patch, old, made, section_line=section.line)


def read_patch(patch: BinaryIO, tree: Tree, *, workspace: str) -> Changes:
    """Read a patch against a workspace. Raises InputError, naming the line."""
    sections, comments = _read_sections(patch)
    contents = {each.path: each for each in sections if not each.is_gone}
    source = PatchSource(patch, tree, contents)
    entries = [_change(each, source, tree, comments) for each in sections]
    entries += _modes(comments, tree, {each.path for each in entries})
    entries += _directories(comments, tree, entries)
    entries.sort(key=lambda each: (each.path, each.after is not None))
    return Changes(workspace=workspace, entries=tuple(entries), source=source, old=tree)


class _Comments:
    """What the comment lines at the top of a patch say, by path."""

    def __init__(self) -> None:
        self.modes: dict[str, int] = {}
        self.directories: dict[str, int] = {}
        self.gone: list[str] = []
        self.conflicts: dict[str, str] = {}

    def read(self, line: bytes, number: int) -> None:
        words = line.rstrip(b"\n").split(b" ", 3)
        if len(words) == 3 and words[1] == b"no-directory":
            self.gone.append(_path(words[2], number))
        elif len(words) == 4 and words[1] == b"directory":
            self.directories[_path(words[3], number)] = _octal(words[2], number)
        elif len(words) == 4 and words[1] == b"mode":
            self.modes[_path(words[3], number)] = _octal(words[2], number)
        elif len(words) == 4 and words[1] == b"conflict":
            self.conflicts[_path(words[3], number)] = words[2].decode("ascii", "replace")


def _read_sections(patch: BinaryIO) -> tuple[list[Section], _Comments]:
    sections: list[Section] = []
    comments = _Comments()
    number = 0
    while line := patch.readline(MAX_LINE_BYTES):
        number += 1
        if line.startswith(b"diff --git "):
            sections.append(Section(path=_git_path(line, number), line=number))
        elif line.startswith(b"# ") and not sections:
            comments.read(line, number)
        elif sections and not sections[-1].body and _read_header(line, sections[-1], number):
            sections[-1].body = patch.tell() - len(line)
        if line.startswith(b"@@ ") and sections:
            number += skip_hunk(patch, line, section_line=sections[-1].line)
    return sections, comments


def _read_header(line: bytes, section: Section, number: int) -> bool:
    """Take one line of a file's header; True where its contents begin."""
    text = line.rstrip(b"\n").decode("ascii", "replace")
    word, _, rest = text.partition(" ")
    if text.startswith(("new file mode ", "new mode ")):
        section.new_mode = _octal(text.rpartition(" ")[2].encode(), number)
        section.is_new = word == "new" and rest.startswith("file")
    elif text.startswith(("deleted file mode ", "old mode ")):
        section.old_mode = _octal(text.rpartition(" ")[2].encode(), number)
        section.is_gone = word == "deleted"
    elif word == "index":
        ids, _, mode = rest.partition(" ")
        section.old_id, _, section.new_id = ids.partition("..")
        if {len(section.old_id), len(section.new_id)} != {40}:
            raise bad_patch(number, "a shortened blob id (make such a patch with --full-index)")
        if mode:
            section.old_mode = section.new_mode = _octal(mode.encode(), number)
    elif text.startswith(("rename ", "copy ", "similarity ", "dissimilarity ")):
        raise bad_patch(number, "renames and copies are not supported (git diff --no-renames)")
    elif text.startswith("GIT binary patch"):
        section.is_binary = True
        return True
    return text.startswith("--- ")


def _change(section: Section, source: PatchSource, tree: Tree, comments: _Comments) -> Change:
    path = section.path
    now = tree.lstat(path)
    conflict = comments.conflicts.get(path)
    before = None if section.is_new else _node_now(tree, path, now)
    if not section.is_new and conflict is None:
        conflict = _compare(section, tree, now)
    after = None
    if not section.is_gone:
        mode = section.new_mode or section.old_mode or 0o100644
        exact = comments.modes.get(path, mode & 0o777)
        after = _new_node(section, mode=exact, git_mode=mode)
        if conflict is None and after.type == "symlink":
            target = source.read_target(path)
            after = msgspec.structs.replace(after, target=target, mode=0o777)
    return Change(
        path=path,
        kind=_kind(section, after),
        before=before,
        after=after,
        conflict=conflict,
    )


def _new_node(section: Section, *, mode: int, git_mode: int) -> Node:
    if stat.S_ISLNK(git_mode):
        return Node(type="symlink", mode=0o777)
    if not stat.S_ISREG(git_mode):
        raise bad_patch(section.line, f"a mode that is neither a file's nor a link's: {git_mode:o}")
    return Node(type="file", mode=mode)


def _kind(section: Section, after: Node | None) -> Kind:
    if after is None:
        return "deleted"
    if after.type == "symlink":
        return "symlink"
    if section.is_new:
        return "added"
    return "modified" if section.new_id else "mode"


def _node_now(tree: Tree, path: str, now: os.stat_result | None) -> Node:
    if now is None:
        return Node(type="file", mode=0)
    target = tree.readlink(path) if stat.S_ISLNK(now.st_mode) else ""
    return node_of(now, target=target, is_old=True)


def _compare(section: Section, tree: Tree, now: os.stat_result | None) -> str | None:
    """Say what somebody did to a file that the patch wants to find as it was."""
    if now is None:
        return "deleted"
    wanted = stat.S_IFMT(section.old_mode) or stat.S_IFREG
    if stat.S_IFMT(now.st_mode) != wanted:
        return "changed"
    if not section.old_id:
        return None
    if stat.S_ISLNK(now.st_mode):
        raw = os.fsencode(tree.readlink(section.path))
        found = blob_id([raw], len(raw))
    else:
        fd = tree.open_file(section.path)
        try:
            found = blob_id(chunks(fd), now.st_size)
        finally:
            os.close(fd)
    return None if found == section.old_id else "changed"


def _modes(comments: _Comments, tree: Tree, known: set[str]) -> Iterator[Change]:
    """Make changes of the modes that git has no words for."""
    for path, mode in comments.modes.items():
        if path in known:
            continue
        now = tree.lstat(path)
        before = _node_now(tree, path, now)
        after = Node(type=before.type, mode=mode, size=before.size)
        conflict = "deleted" if now is None else comments.conflicts.get(path)
        yield Change(path=path, kind="mode", before=before, after=after, conflict=conflict)


def _directories(comments: _Comments, tree: Tree, entries: list[Change]) -> Iterator[Change]:
    """Make changes of the directories that the patch names, and of those its files need."""
    wanted = dict(comments.directories)
    for each in entries:
        if each.after is not None:
            parts = each.path.split("/")
            for length in range(1, len(parts)):
                wanted.setdefault("/".join(parts[:length]), 0o755)
    gone = set(comments.gone)
    for path, mode in wanted.items():
        now = tree.lstat(path)
        after = Node(type="directory", mode=mode)
        if now is None or path in {each.path for each in entries if each.after is None}:
            yield Change(path=path, kind="added", after=after)
        elif not stat.S_ISDIR(now.st_mode):
            yield Change(path=path, kind="added", after=after, conflict="created")
    for path in gone:
        now = tree.lstat(path)
        if now is not None and stat.S_ISDIR(now.st_mode):
            yield Change(path=path, kind="deleted", before=node_of(now, is_old=True))


def _git_path(line: bytes, number: int) -> str:
    """Read the path of "diff --git a/PATH b/PATH"; both are the same without renames."""
    rest = line[11:].rstrip(b"\n")
    first = rest[: (len(rest) - 1) // 2]
    second = rest[len(first) + 1 :]
    one, other = _unquote(first, number), _unquote(second, number)
    if not one.startswith("a/") or not other.startswith("b/") or one[2:] != other[2:]:
        raise bad_patch(number, "two different names (git diff --no-renames)")
    return _checked(one[2:], number)


def _path(raw: bytes, number: int) -> str:
    return _checked(_unquote(raw, number), number)


def _checked(path: str, number: int) -> str:
    parts = path.split("/")
    if any(part in ("", ".", "..") or part.casefold() == ".git" for part in parts):
        raise bad_patch(number, f"a path that no patch may have: {path!r}")
    if "\0" in path or len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise bad_patch(number, "a path that no file can have")
    return path


def _unquote(raw: bytes, number: int) -> str:
    text = raw.decode("latin-1")
    if not text.startswith('"'):
        return os.fsdecode(raw)
    if len(text) < 2 or not text.endswith('"'):
        raise bad_patch(number, "a name whose quotes do not close")

    def plain(match: re.Match[str]) -> str:
        escape = match[1]
        return chr(_ESCAPES[escape]) if escape in _ESCAPES else chr(int(escape, 8) & 0xFF)

    found = re.sub(r'\\([0-7]{3}|[abtnvfr"\\])', plain, text[1:-1])
    return os.fsdecode(found.encode("latin-1"))


def _octal(raw: bytes, number: int) -> int:
    try:
        return int(raw, 8)
    except ValueError:
        raise bad_patch(number, f"a mode that is no octal number: {raw!r}") from None
