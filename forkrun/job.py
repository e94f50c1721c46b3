"""One job: what to do and what is allowed, as plain data. `forkrun exec` reads it as JSON."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from forkrun.catalog import INPUTS
from forkrun.environment import fits
from forkrun.errors import UsageError
from forkrun.limits import Limits
from forkrun.mcp.config import McpServer, check_servers
from forkrun.policy import Policy
from forkrun.protocol import Rules

WorkspaceMode = Literal["commit", "discard", "live", "read-only", "temp"]
Network = Literal["none", "loopback", "host"]
SandboxLevel = Literal["required", "lsm", "best-effort", "none"]


Dangling = Literal["placeholder", "cut"]

NO_SNAPSHOT = msgspec.Raw(b"null")  # msgspec decodes nothing into a union with Raw but null


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run of a subagent.

    `snapshot`: the parent's request, as the JSON of the parameters of `messages.create`; with it
    the run is a fork. `dangling`: how open calls at its end are closed. `break_cache`: let `model`,
    `system` and `tools` change what is forked.

    `model`: a Claude model id, "script:FILE" or "offline". `system` replaces our system prompt,
    `append_system_prompt` follows it. `json_schema`: what the final answer must match, as plain
    data; its value then stands in the result. `tools`: names, None for all of ours. `allow` and
    `deny`: permission rules such as `bash(git log:*)`; `parents`: the rules of the parents, each of
    which must allow too.

    `cwd`: the workspace, None for the current directory. `workspace`: "commit" (work in a private
    view, whose changes are committed when the run completes), "discard" (the same, and they are
    not), "live" (work in the directory itself), "read-only", or "temp" (an empty directory, gone
    afterwards). `commit_ignored`: commit what git ignores too. `protect`: further paths that only a
    rule that names them commits ("deploy", "*.key"). `patch`: write the changes to this file.
    `keep_patch_days`: how long the patch of a run that did not commit is kept.

    `check`: a command that must succeed in what the run leaves before that is committed; it runs in
    a sandbox of its own over the same changes. `attempts`: so many runs from the same start, in
    parallel, of which one that passes the check is committed: the first, or with `best` the one
    with the smallest change. Limits hold for each attempt.

    `network`: "none", "loopback" (its own, with nobody else on it) or "host". `sandbox`: how much
    confinement there must be. `root`: a root file system to run in. `readable` and `writable`:
    further paths of the host. `env`: further variables for commands. `mcp_servers`: by name, MCP
    servers whose tools the model gets. `transcript`: a file that gets every reply and result.

    >>> job = forkrun.Job(prompt="Look around", workspace="temp", tools=("glob", "grep"))
    >>> forkrun.run_sync(job, model="script:replies.jsonl").stop_reason
    'completed'
    """

    prompt: str
    snapshot: msgspec.Raw = NO_SNAPSHOT
    dangling: Dangling = "placeholder"
    break_cache: bool = False
    model: str | None = None
    label: str | None = None
    system: str | None = None
    append_system_prompt: str | None = None
    json_schema: dict[str, Any] | None = None
    tools: tuple[str, ...] | None = None
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    parents: tuple[Rules, ...] = ()
    workspace: WorkspaceMode = "commit"
    commit_ignored: bool = False
    protect: tuple[str, ...] = ()
    attempts: int = 1
    check: str | None = None
    best: bool = False
    patch: str | None = None
    keep_patch_days: float = 7.0
    cwd: str | None = None
    env: dict[str, str] = {}
    network: Network = "loopback"
    sandbox: SandboxLevel = "required"
    root: str | None = None
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    limits: Limits = Limits()
    mcp_servers: dict[str, McpServer] = {}
    transcript: str | None = None

    def __post_init__(self) -> None:
        """Take a subclass of str for what it says: frameworks have some, and msgspec takes none."""
        for name in ("prompt", "model", "label", "system", "append_system_prompt"):
            words = getattr(self, name)
            if isinstance(words, str) and type(words) is not str:
                msgspec.structs.force_setattr(self, name, str.__str__(words))

    @property
    def forks(self) -> bytes | None:
        """The JSON of the snapshot, where one stands in the job."""
        snapshot = self.snapshot or NO_SNAPSHOT  # None, in Python, is none as well
        return None if snapshot == NO_SNAPSHOT else bytes(snapshot)

    @property
    def commits(self) -> bool:
        """Whether a completed run changes the workspace by a commit."""
        return self.workspace == "commit"

    @property
    def has_view(self) -> bool:
        """Whether the child works in a private view of the workspace."""
        return self.workspace in ("commit", "discard")


def job_from(prompt: str | Job, options: Mapping[str, Any]) -> Job:
    """Give the job that a prompt and options describe; a job itself takes no further options.

    Raises UsageError for an option that there is not, and for one of a type that cannot be meant.
    """
    if isinstance(prompt, Job):
        if options:
            raise UsageError(f"a Job takes no further options: {', '.join(sorted(options))}")
        return prompt
    if unknown := sorted(options.keys() - set(Job.__struct_fields__)):
        raise UsageError(f"there is no option {unknown[0]!r}", hint=_near(unknown[0]))
    given = {name: _plain(name, value) for name, value in options.items()}
    try:
        return msgspec.convert({**given, "prompt": prompt}, Job)
    except msgspec.ValidationError as error:
        raise UsageError(f"an option is not valid: {_in_words(error)}") from error


def check(job: Job) -> None:
    """Raise UsageError for a job that cannot be meant."""
    if not job.prompt.strip():
        raise UsageError("the prompt is empty", hint="say what the subagent should do")
    for tool in job.tools or ():
        if tool not in INPUTS:
            raise UsageError(f"unknown tool: {tool}", hint=f"the tools are {', '.join(INPUTS)}")
    check_servers(job.mcp_servers)
    if job.root is not None and not os.path.isdir(job.root):
        raise UsageError(f"the root is not a directory: {job.root}")
    for name in job.env:
        if not name or "=" in name or "\0" in name + job.env[name]:
            raise UsageError(f"not a name of an environment variable: {name!r}")
        if not fits(name, job.env[name]):
            raise UsageError(f"the variable is too long to start a program with: {name}")
    _check_transaction(job)
    for field, value in msgspec.structs.asdict(job.limits).items():
        if value is not None and value <= (0 if field not in _MAY_BE_ZERO else -1):
            raise UsageError(f"{field} must be more than zero: {value}")


def _check_transaction(job: Job) -> None:
    if job.attempts < 1:
        raise UsageError(f"attempts must be more than zero: {job.attempts}")
    if (job.attempts > 1 or job.best) and job.check is None:
        raise UsageError("several attempts need a check", hint="add --check COMMAND")
    if job.check is not None and not job.check.strip():
        raise UsageError("the check is empty", hint="give a command that succeeds or fails")
    if job.check is not None and not job.has_view:
        raise UsageError(
            f"a check needs a private view, which --workspace {job.workspace} does not give",
            hint="use --workspace commit or discard",
        )
    for path in job.protect:
        if not path.strip("/") or path.startswith("/"):
            raise UsageError(f"protect takes paths in the workspace: {path!r}")


_MAY_BE_ZERO = ("retries", "grace_s", "corrections", "max_depth")


def tools_of(job: Job, *, is_fork: bool) -> tuple[str, ...]:
    """Give the names of our tools that a child has. Those of a fork are the parent's to call, by
    whatever names, and the rules' to forbid."""
    return tuple(INPUTS) if is_fork or job.tools is None else job.tools


def workspace_path(job: Job, environ: Mapping[str, str]) -> str:
    """Give the real path of the directory to work in.

    Raises UsageError when it is none, cannot be read, or is so large a part of the machine (`/`,
    the home directory, or what contains it) that nobody can mean it.
    """
    given = job.cwd if job.cwd is not None else os.getcwd()
    path = os.path.realpath(given)
    if not os.path.isdir(path):
        reason = "is not a directory" if os.path.exists(path) else "does not exist"
        raise UsageError(f"the workspace {reason}: {given}")
    if path != path.encode(errors="replace").decode():
        raise UsageError(f"the path of the workspace is not UTF-8: {path!r}")
    if not os.access(path, os.R_OK | os.X_OK):
        raise UsageError(f"the workspace cannot be read: {given}")
    if job.workspace != "temp":
        _refuse_whole_machine(path, home=os.path.realpath(environ.get("HOME") or "/"))
    return path


def _refuse_whole_machine(path: str, *, home: str) -> None:
    if path == home or home.startswith(path.rstrip("/") + "/"):
        raise UsageError(
            f"refused as workspace, since it is or contains the home directory: {path}",
            hint="choose a directory of the project with --cwd, or --workspace temp",
        )


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if name in ("readable", "writable") and isinstance(value, list | tuple):
        return [os.fspath(path) for path in value]
    if name == "parents" and isinstance(value, Iterable):
        return [rules for parent in value for rules in _layers(parent)]
    return dict(value) if isinstance(value, Mapping) else value


def _layers(parent: Any) -> Sequence[Any]:
    return parent.layers if isinstance(parent, Policy) else [parent]


def _near(name: str) -> str:
    import difflib

    names = [*Job.__struct_fields__, *Limits.__struct_fields__]
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if not close:
        return "the options are " + ", ".join(f for f in Job.__struct_fields__ if f != "prompt")
    if close[0] in Limits.__struct_fields__:
        return f"did you mean limits=forkrun.Limits({close[0]}=…)?"
    return f"did you mean {close[0]}?"


def _in_words(error: msgspec.ValidationError) -> str:
    what, _, where = str(error).partition(" - at `$.")
    return f"{where.rstrip('`')}: {what[0].lower()}{what[1:]}" if where else what
