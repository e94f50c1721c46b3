"""What a directory holds, for tests that say that nothing has changed."""

import os
from pathlib import Path


def tree(folder: Path) -> dict[str, object]:
    """What a directory holds, byte for byte: contents, targets of links, modes."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        held: object = None
        if path.is_symlink():
            held = os.readlink(path)
        elif path.is_file():
            held = path.read_bytes()
        found[str(path.relative_to(folder))] = (status.st_mode, held)
    return found
