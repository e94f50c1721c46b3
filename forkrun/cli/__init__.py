"""The command line: `forkrun spawn`, `forkrun exec`, `forkrun doctor`.

stdout is the answer and nothing else; everything for people goes to stderr. A user's mistake is one
line with a hint, and its exit code; never a traceback.

A command that runs one subagent starts its worker before anything else, which then imports what it
needs while this process reads flags and imports what *it* needs: there are two cores.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Iterator, Sequence

from forkrun.errors import ForkrunError

INTERRUPTED = 130
RUN_ONE = ("spawn", "exec")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and give its exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    _open_missing_streams()
    gc.disable()  # until everything is imported: collecting what stays takes a tenth of the time
    try:
        with contextlib.ExitStack() as stack:
            early = None
            if arguments[:1] and arguments[0] in RUN_ONE and not _asks_for_help(arguments):
                from forkrun.environment import worker_environment
                from forkrun.starting import Early

                early = stack.enter_context(Early(worker_environment(os.environ)))
                # From Python 3.11 on the standard library has what msgspec looks for: 3 ms.
                with without("typing_extensions"):
                    import msgspec  # noqa: F401
            from forkrun.cli.options import parse

            options = parse(arguments)
            options.early = early
            return int(options.command(options))
    except ForkrunError as error:
        complain(error)
        return error.exit_code
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        complain(ForkrunError(f"{error.strerror or type(error).__name__}{place}"))
        return ForkrunError.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED


def _open_missing_streams() -> None:
    """Where a standard stream is closed, have nothing else take its number."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


@contextlib.contextmanager
def without(module: str) -> Iterator[None]:
    """Have what is imported in this block do without a module that it can do without."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]


def _asks_for_help(arguments: Sequence[str]) -> bool:
    return "-h" in arguments or "--help" in arguments


def complain(error: ForkrunError) -> None:
    """Say on stderr what is wrong, and what to do about it."""
    tell(f"error: {error}")
    if error.hint:
        tell(f"hint: {error.hint}", prefix="")


def tell(text: str, *, prefix: str = "forkrun: ") -> None:
    """Write a line for people, to stderr; a stderr that is gone is nobody's loss."""
    from forkrun.text import printable

    try:
        os.write(2, (prefix + printable(text) + "\n").encode(errors="replace"))
    except OSError:
        return
