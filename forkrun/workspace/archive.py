"""Write changes as an archive, to be unpacked over another view of the same workspace."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator

from forkrun.errors import WorkspaceError
from forkrun.workspace.records import Change, Changes

NAMES_OF_GONE = ".gone"


def write_archive(changes: Changes, *, path: str) -> None:
    """Write a tar archive (pax): first the names of what is gone, each ended by NUL, then the rest.

    Everybody may read it. Raises WorkspaceError.
    """
    try:
        with (
            open(path, "xb") as file,
            tarfile.open(
                fileobj=file,
                mode="w",
                format=tarfile.PAX_FORMAT,
                encoding="utf-8",
                errors="surrogateescape",
            ) as archive,
        ):
            _write(changes, archive)
        os.chmod(path, 0o644)
    except OSError as error:
        raise WorkspaceError(f"the changes cannot be written for the check: {error}") from error


def _write(changes: Changes, archive: tarfile.TarFile) -> None:
    names = b"".join(os.fsencode(path) + b"\0" for path in _topmost_gone(changes))
    first = tarfile.TarInfo(NAMES_OF_GONE)
    first.size = len(names)
    archive.addfile(first, io.BytesIO(names))
    for each in changes.entries:
        if each.after is not None:
            _add(archive, each, changes)


def _topmost_gone(changes: Changes) -> Iterator[str]:
    gone = {each.path for each in changes.entries if each.after is None}
    return (path for path in sorted(gone) if path.rpartition("/")[0] not in gone)


def _add(archive: tarfile.TarFile, change: Change, changes: Changes) -> None:
    assert change.after is not None
    entry = tarfile.TarInfo(change.path)
    entry.mode = change.after.mode & 0o777
    if change.after.type == "directory":
        entry.type = tarfile.DIRTYPE
        archive.addfile(entry)
    elif change.after.type == "symlink":
        entry.type = tarfile.SYMTYPE
        entry.linkname = change.after.target
        archive.addfile(entry)
    else:
        with open(changes.source.open_file(change.path), "rb") as file:
            found = os.fstat(file.fileno())
            entry.size, entry.mtime = found.st_size, int(found.st_mtime)
            archive.addfile(entry, file)
