"""What parent and child say to each other: structs, and no behaviour.

    child                               parent (broker)
      ◀── Start ───────────────────────────  what to confine, which tools, which limits
      ──▶ Ready ───────────────────────────  the confinement that is really in force
      ──▶ Listed ──────────────────────────  where it has MCP servers: what they offer
      ──▶ Ask ─────────────────────────────  one model reply, please
      ◀── Turn(calls) ─────────────────────  the calls of that reply that may run
      ──▶ Started, Alive …, Ran ───────────  one by one
      ──▶ Ask … ◀── Turn … ────────────────
      ◀── Finish(summary) ─────────────────  the run is over
      ──▶ Done ────────────────────────────  the summary stands on the child's stdout

The child never sees the conversation: it holds no more than the calls that are open. Whatever it
sends is checked against the broker's ledger and never believed.
"""

from __future__ import annotations

import msgspec

from forkrun_sandbox.spec import Report, Shape, Spec

MAX_FRAME_BYTES = 16 * 1024 * 1024


class Message(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"
):
    """The root of everything that crosses the channel."""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One call that the model made. `input` is the JSON of an object, as the model wrote it."""

    id: str
    name: str
    input: bytes


class Image(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A picture that a tool returns: `media_type` as in "image/png", `content` its bytes."""

    media_type: str
    content: bytes


class ToolResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What came of one call. `denied` says that a rule forbade it; `text` then holds the reason."""

    id: str
    text: str
    is_error: bool = False
    denied: bool = False
    images: tuple[Image, ...] = ()


class ToolLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds on a single tool call. `tool_timeout_s` is the default wall clock of a command,
    `max_tool_timeout_s` the most that a call may ask for, `result_chars` the size of a result."""

    tool_timeout_s: float = 120.0
    max_tool_timeout_s: float = 600.0
    result_chars: int = 30_000


class Rules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One layer of permission rules, as the user wrote them. What `ask` names is denied too, with a
    reason of its own: nobody can be asked."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()


class ServerProgram(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An MCP server that the child starts inside its sandbox: its name and its command line."""

    name: str
    argv: tuple[str, ...]


class ServerTool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool of an MCP server: `name` as the model may call it, `schema` the JSON of an object."""

    name: str
    description: str
    schema: bytes


class ServerTools(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one MCP server offers, or why it cannot be used. `left_out`: names that do not fit."""

    server: str
    tools: tuple[ServerTool, ...] = ()
    left_out: tuple[str, ...] = ()
    error: str | None = None


class Start(Message, tag="start"):
    """The first frame: everything that the child is told.

    `env` is the environment of the commands that it runs; `rules` the layers of permission rules,
    each of which must allow a call (the run's own and those of its parents). `servers` are the MCP
    servers that it starts.
    """

    run_id: str
    workspace: str
    tools: tuple[str, ...]
    limits: ToolLimits
    rules: tuple[Rules, ...]
    env: dict[str, str]
    sandbox: Spec
    servers: tuple[ServerProgram, ...] = ()


class Ready(Message, tag="ready"):
    """The child is confined, and this is how."""

    report: Report


class Listed(Message, tag="listed"):
    """What the MCP servers of the child offer, one entry for each that it was told to start."""

    servers: tuple[ServerTools, ...]


class Ask(Message, tag="ask"):
    """One model reply, please: every call of the last turn has its result."""


class Turn(Message, tag="turn"):
    """The calls of one reply that are to be run, in the order in which they were made."""

    number: int
    calls: tuple[ToolCall, ...]


class Started(Message, tag="started"):
    """A call begins to run."""

    id: str


class Alive(Message, tag="alive"):
    """A call that runs has shown a sign of life (at most one a second)."""

    id: str


class Ran(Message, tag="ran"):
    """A call has ended."""

    result: ToolResult
    duration_s: float


class Finish(Message, tag="finish"):
    """The run is over: write this summary to stdout and end."""

    summary: str


class Done(Message, tag="done"):
    """The last frame: the summary is written and flushed."""


class Fault(Message, tag="fault"):
    """The child cannot go on. `kind` is "sandbox" (then `layer` is the one that was refused) or
    "internal"."""

    kind: str
    message: str
    layer: str = ""


class Fork(Message, tag="fork"):
    """To a zygote: fork a worker, with the four descriptors that come along: its ends of the
    channel and of the socket for its upper directory, its stdout and its stderr. With a `shape`, it
    will be told to enter a sandbox of that; where the zygote may, the fork is then PID 1 of a
    process namespace and begins at once, and the worker is its child."""

    number: int
    shape: Shape | None = None


class Forked(Message, tag="forked"):
    """From a zygote: the worker of that number lives; or why it could not be forked."""

    number: int
    pid: int
    refusal: str | None = None


class Reap(Message, tag="reap"):
    """To a zygote: a worker has ended; reap it."""

    number: int
    pid: int


class Reaped(Message, tag="reaped"):
    """From a zygote: how that worker ended (wait status), and what it used: getrusage(2)."""

    number: int
    wait_status: int
    cpu_s: float
    max_rss: int


ToZygote = Fork | Reap
FromZygote = Forked | Reaped

ToChild = Start | Turn | Finish
ToParent = Ready | Listed | Ask | Started | Alive | Ran | Done | Fault
