"""The tool `bash`: a fresh shell for each call.

An exit code other than 0, a signal and the time limit make the result an error; the text says
which of them it was. Nothing is ever called a success: a pipeline's code is that of its last part.
"""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Mapping

from forkrun.catalog import BashInput
from forkrun.protocol import ToolLimits
from forkrun.tools.command import Ended, run_command
from forkrun.tools.environment import command_environment
from forkrun.tools.failures import ToolError
from forkrun.tools.output import Kept
from forkrun.tools.paths import Workspace

_MOST_COMMAND_BYTES = 128 * 1024 - 1  # MAX_ARG_STRLEN, execve(2)
_RAW_PER_CHARACTER = 8  # what is cleaned away takes room while it is kept


def bash(
    call: BashInput,
    workspace: Workspace,
    *,
    env: Mapping[str, str],
    limits: ToolLimits,
    heard: Callable[[], None],
) -> tuple[str, bool]:
    """Run the command; return the text of the result, and whether it is an error."""
    check_command(call.command)
    timeout_s = _timeout_s(call.timeout, limits)
    environment = command_environment(env, workspace=workspace.root)
    shell = find_program("bash", environment)
    if shell is None:
        raise ToolError("there is no bash on PATH")
    kept = Kept(limit=limits.result_chars * _RAW_PER_CHARACTER)
    ended = run_command(
        [shell, "-c", call.command],
        kept,
        directory=workspace.descriptor,
        env=environment,
        timeout_s=timeout_s,
        heard=heard,
    )
    printed = kept.text(limit=limits.result_chars).rstrip("\n")
    text = "\n".join([printed] * bool(printed) + _notes(ended))
    return text or "(no output)", ended.timed_out or ended.code != 0 or bool(ended.alive)


def check_command(command: str) -> None:
    """Raise ToolError for a command that no shell can be given."""
    if "\0" in command:
        raise ToolError("command contains a NUL character; nothing was run")
    if not command.strip():
        raise ToolError("command is empty")
    try:
        size = len(command.encode())
    except UnicodeEncodeError:
        raise ToolError("command is not valid text; nothing was run") from None
    if size > _MOST_COMMAND_BYTES:
        raise ToolError(
            f"command is {size} bytes long, and at most {_MOST_COMMAND_BYTES} can be run: "
            "write a file with write_file and run that"
        )


def find_program(name: str, env: Mapping[str, str]) -> str | None:
    """Find a program in the absolute directories of PATH, as the commands themselves would."""
    for directory in env.get("PATH", os.defpath).split(":"):
        path = f"{directory}/{name}"
        if directory.startswith("/") and os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    return None


def _timeout_s(asked: float | None, limits: ToolLimits) -> float:
    if asked is None:
        return min(limits.tool_timeout_s, limits.max_tool_timeout_s)
    if not (math.isfinite(asked) and asked > 0):
        raise ToolError(f"timeout must be a number of seconds above 0: {asked}")
    return min(asked, limits.max_tool_timeout_s)


def _notes(ended: Ended) -> list[str]:
    notes = []
    if ended.timed_out:
        notes.append(
            f"[timed out after {ended.duration_s:.1f} s: the command and all that it started "
            "were killed; what a program had not flushed is lost]"
        )
    elif ended.code < 0:
        notes.append(f"[ended by signal {-ended.code} ({_signal_name(-ended.code)})]")
    elif ended.code:
        notes.append(f"[exit code {ended.code}]")
    if ended.left and not ended.timed_out:
        notes.append(f"[background processes were ended with the call: {', '.join(ended.left)}]")
    if ended.alive:
        notes.append(f"[could not be ended: {', '.join(ended.alive)}]")
    return notes


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "real time"
