"""The command line: `forkrun spawn`, `forkrun exec`, `forkrun doctor`.

stdout is the answer and nothing else; everything for people goes to stderr. A user's mistake is one
line with a hint, and its exit code; never a traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from forkrun.errors import ForkrunError

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and give its exit code."""
    from forkrun.cli.options import parse

    try:
        options = parse(sys.argv[1:] if argv is None else argv)
        return int(options.command(options))
    except ForkrunError as error:
        complain(error)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED


def complain(error: ForkrunError) -> None:
    """Say on stderr what is wrong, and what to do about it."""
    tell(f"error: {error}")
    if error.hint:
        tell(f"hint: {error.hint}", prefix="")


def tell(text: str, *, prefix: str = "forkrun: ") -> None:
    """Write a line for people, to stderr; a stderr that is gone is nobody's loss."""
    try:
        os.write(2, (prefix + text + "\n").encode(errors="replace"))
    except OSError:
        return
