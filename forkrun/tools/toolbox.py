"""The tools of one run: takes a call, checks it, lets the rules judge it, runs it.

Whatever a model, a file or a command can cause becomes a result that the model can read; `run`
does not raise for it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import msgspec

from forkrun.catalog import (
    FORMS,
    BashInput,
    EditFileInput,
    EditsCall,
    GlobInput,
    GrepCall,
    ReadCall,
    ToolInput,
    WriteFileInput,
)
from forkrun.errors import ForkrunError
from forkrun.protocol import (
    Image,
    ServerProgram,
    ServerTools,
    ToolCall,
    ToolLimits,
    ToolResult,
)
from forkrun.tools import kernel
from forkrun.tools.failures import ToolError
from forkrun.tools.output import cut, sendable
from forkrun.tools.paths import Workspace

if TYPE_CHECKING:
    from forkrun.tools.mcp import Servers

Judge = Callable[[str, str], str | None]
"""Takes the name of a tool and the resolved path, relative to the workspace with "/" (for bash the
command); returns None to allow it, or the reason why not."""

ALIVE_EVERY_S = 1.0
_NOT_VALID = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_Input = TypeVar("_Input", bound=ToolInput)


def allow_everything(tool: str, subject: str) -> None:
    """Be the judge that allows every call."""


EnvironmentFor = Callable[[str], Mapping[str, str]]
"""Takes a command; gives the variables that the rules add to its environment."""


def no_environment(command: str) -> Mapping[str, str]:
    """Add no variable to any command."""
    return {}


def show_nobody(call_id: str) -> None:
    """Take a sign of life and do nothing with it."""


class Toolbox:
    """The tools of one run; a context manager that holds the workspace open.

    While it is open, this process adopts the orphans of the commands that it runs. Not for use
    from several threads.
    """

    def __init__(
        self,
        workspace: str,
        *,
        tools: tuple[str, ...],
        env: Mapping[str, str],
        limits: ToolLimits,
        judge: Judge = allow_everything,
        environment_for: EnvironmentFor = no_environment,
        alive: Callable[[str], None] = show_nobody,
    ) -> None:
        self._tools = tools
        self._env = env
        self._limits = limits
        self._judge = judge
        self._environment_for = environment_for
        self._alive = alive
        self._last_alive = 0.0
        self._seen: dict[str, bytes] = {}
        self._servers: Servers | None = None
        self._workspace = Workspace(workspace)
        self._adopted = kernel.adopt_orphans(wanted=True)

    def __enter__(self) -> Toolbox:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._servers is not None:
            self._servers.__exit__(kind, error, trace)
        kernel.adopt_orphans(wanted=self._adopted)
        self._workspace.__exit__(kind, error, trace)

    def open_servers(self, programs: tuple[ServerProgram, ...]) -> tuple[ServerTools, ...]:
        """Start MCP servers and give what each offers; they end with the toolbox."""
        from forkrun.tools.environment import command_environment
        from forkrun.tools.mcp import Servers

        env = command_environment(self._env, workspace=self._workspace.root)
        self._servers = Servers(directory=self._workspace.descriptor, env=env)
        return self._servers.start(programs)

    def run(self, call: ToolCall) -> ToolResult:
        """Run one call and give its result; the text is never empty."""
        images: tuple[Image, ...] = ()
        is_error = True
        denied = False
        try:
            text, is_error, images = self._run(call)
        except ToolError as error:
            text, denied = error.text, error.denied
        except OSError as error:
            text = _explain(error, call)
        except ForkrunError:  # from the caller's own functions, which are not the model's affair
            raise
        except Exception as error:  # noqa: BLE001  a fault of ours must not end the run
            text = f"{call.name} failed for a reason of its own ({type(error).__name__})"
        text = sendable(text) or "(empty)"
        return ToolResult(id=call.id, text=text, is_error=is_error, denied=denied, images=images)

    def _run(self, call: ToolCall) -> tuple[str, bool, tuple[Image, ...]]:
        if self._servers is not None and self._servers.holds(call.name):
            return self._served(call, self._servers)
        if call.name not in self._tools or call.name not in FORMS:
            available = ", ".join(self._tools) or "none"
            raise ToolError(f"there is no tool {call.name!r}; available: {available}")
        wanted = read_input(call.input, _form(call), tool=call.name)
        images: tuple[Image, ...] = ()
        is_error = False
        match wanted:
            case BashInput():
                text, is_error = self._bash(wanted, call.id)
            case ReadCall():
                text, images = self._read(wanted)
            case WriteFileInput():
                text = self._write(wanted)
            case EditFileInput() | EditsCall():
                text = self._edit(wanted)
            case GlobInput():
                text = self._glob(wanted)
            case GrepCall():
                text = self._grep(wanted)
            case _:
                raise ToolError(f"{call.name} cannot be run here")
        return text, is_error, images

    def _served(self, call: ToolCall, servers: Servers) -> tuple[str, bool, tuple[Image, ...]]:
        self._ask(call.name, "")
        said = servers.call(
            call.name,
            call.input,
            timeout_s=self._limits.tool_timeout_s,
            heard=lambda: self._heard(call.id),
        )
        return cut(said.text, limit=self._limits.result_chars), said.is_error, said.images

    def _bash(self, call: BashInput, call_id: str) -> tuple[str, bool]:
        from forkrun.tools.bash import bash, check_command

        check_command(call.command)
        self._ask("bash", call.command)
        return bash(
            call,
            self._workspace,
            env={**self._env, **self._environment_for(call.command)},
            limits=self._limits,
            heard=lambda: self._heard(call_id),
        )

    def _read(self, call: ReadCall) -> tuple[str, tuple[Image, ...]]:
        from forkrun.tools.reading import read_file

        if call.levels and (listing := self._view(call.file_path, levels=call.levels)):
            return listing, ()
        path = self._judged("read_file", call.file_path)
        return read_file(
            call, self._workspace, path, seen=self._seen, limit=self._limits.result_chars
        )

    def _view(self, path: str, *, levels: int) -> str | None:
        from forkrun.tools.viewing import is_directory, view_directory

        resolved = self._workspace.resolve(path)
        if not is_directory(self._workspace, resolved):
            return None
        sight = self._sight("read_file", path)
        text = view_directory(self._workspace, resolved, levels=levels, readable=sight.shows)
        return sight.close(cut(text, limit=self._limits.result_chars))

    def _write(self, call: WriteFileInput) -> str:
        from forkrun.tools.writing import write_file

        path = self._judged("write_file", call.file_path)
        return write_file(call, self._workspace, path, seen=self._seen)

    def _edit(self, call: EditFileInput | EditsCall) -> str:
        from forkrun.tools.writing import edit_file

        path = self._judged("edit_file", call.file_path)
        return edit_file(call, self._workspace, path, seen=self._seen)

    def _glob(self, call: GlobInput) -> str:
        from forkrun.tools.listing import glob

        sight = self._sight("glob", call.path)
        text = glob(call, self._workspace, readable=sight.shows)
        return sight.close(cut(text, limit=self._limits.result_chars))

    def _grep(self, call: GrepCall) -> str:
        from forkrun.tools.searching import grep

        sight = self._sight("grep", call.path)
        text = grep(
            call,
            self._workspace,
            readable=sight.shows,
            env=self._env,
            limits=self._limits,
        )
        return sight.close(text)

    def _judged(self, tool: str, path: str) -> str:
        resolved = self._workspace.resolve(path)
        self._ask(tool, resolved)
        return resolved

    def _ask(self, tool: str, subject: str) -> None:
        reason = self._judge(tool, subject)
        if reason is not None:
            raise ToolError(reason, denied=True)

    def _sight(self, tool: str, path: str | None) -> _Sight:
        start = self._workspace.resolve(path or ".")
        return _Sight(self._judge, tool=tool, reason=self._judge(tool, start))

    def _heard(self, call_id: str) -> None:
        now = time.monotonic()
        if now - self._last_alive >= ALIVE_EVERY_S:
            self._last_alive = now
            self._alive(call_id)


class _Sight:
    """What a search may show: files that the tool itself and `read_file` are allowed to see."""

    def __init__(self, judge: Judge, *, tool: str, reason: str | None) -> None:
        self._judge = judge
        self._tool = tool
        self._reason = reason
        self._shown = 0
        self._hidden = 0

    def shows(self, path: str) -> bool:
        reason = self._judge(self._tool, path) or self._judge("read_file", path)
        if reason is None:
            self._shown += 1
        else:
            self._hidden += 1
            self._reason = self._reason or reason
        return reason is None

    def close(self, text: str) -> str:
        """Add what was left out; where nothing may be shown, that is a denial."""
        if self._reason is not None and not self._shown:
            raise ToolError(self._reason, denied=True)
        if self._hidden:
            text += f"\n[{self._hidden} files left out by the rules: {self._reason}]"
        return text


class _Keys(msgspec.Struct):
    edits: msgspec.Raw = msgspec.Raw()


def _form(call: ToolCall) -> type[ToolInput]:
    """Give the form that the input of a call has."""
    if call.name == "edit_file":
        with contextlib.suppress(*_NOT_VALID):
            if msgspec.json.decode(call.input, type=_Keys).edits:
                return EditsCall
    return FORMS[call.name]


def read_input(raw: bytes, kind: type[_Input], *, tool: str) -> _Input:
    """Decode the input of a call; raise ToolError that names the key where it does not fit.

    Keys that are null count as left out, and `path` as `file_path`, since models write both.
    """
    try:
        return msgspec.json.decode(raw, type=kind)
    except _NOT_VALID as error:
        refusal = ToolError(f"input of {tool} is not valid: {error}; nothing was run")
    try:
        loose = msgspec.json.decode(raw, type=dict[str, object])
    except _NOT_VALID:
        raise refusal from None
    loose = {key: value for key, value in loose.items() if value is not None}
    if "file_path" in kind.__struct_fields__ and "path" in loose:
        loose.setdefault("file_path", loose["path"])
    try:
        return msgspec.convert(loose, type=kind)
    except msgspec.ValidationError as error:
        raise ToolError(f"input of {tool} is not valid: {error}; nothing was run") from None


def _explain(error: OSError, call: ToolCall) -> str:
    reason = os.strerror(error.errno) if error.errno else "it could not be done"
    name = error.filename
    subject = f"{name}: " if isinstance(name, str) and not name.startswith("/") else ""
    return f"{call.name}: {subject}{reason}"
