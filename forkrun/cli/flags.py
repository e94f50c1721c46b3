"""Flags that several commands share: what a run may do, its bounds, its attempts, its output."""

from __future__ import annotations

from typing import Any

from forkrun.cli import values


def add_rights(group: Any) -> None:
    """Add the flags of what a run may do and see."""
    group.add_argument(
        "--tools",
        type=values.names,
        metavar="A,B,C",
        help="bash, read_file, write_file, edit_file, glob, grep (default: all)",
    )
    for name, text in (("allow", "what a call must match"), ("deny", "what no call may match")):
        group.add_argument(
            f"--{name}",
            action="extend",
            nargs="+",
            default=[],
            metavar="RULE",
            help=f"{text}: bash(git log:*), edit_file(notes.md), read(src/**)",
        )
    group.add_argument(
        "--parent-policy", metavar="FILE", help="JSON with the allow and deny rules of the parent"
    )
    group.add_argument(
        "--hooks", metavar="FILE", help="JSON: commands that are asked before and after calls"
    )
    group.add_argument(
        "--workspace",
        choices=["commit", "discard", "live", "read-only", "temp"],
        default="commit",
        help="commit: a private view, committed when the run completes (default); discard: the "
        "same, thrown away; live: the directory itself; temp: an empty one, gone afterwards",
    )
    group.add_argument("--commit-ignored", action="store_true", help="commit what git ignores too")
    group.add_argument(
        "--protect",
        action="extend",
        nargs="+",
        default=[],
        metavar="PATH",
        help="commit it (deploy, *.key, ci/config) only where a rule names it, as .git and others",
    )
    group.add_argument(
        "--cwd", metavar="DIR", help="the workspace (default: the current directory)"
    )
    group.add_argument(
        "--root", metavar="DIR", help="a root file system to run in, instead of this machine's"
    )
    for name in ("readable", "writable"):
        group.add_argument(
            f"--{name}",
            action="extend",
            nargs="+",
            default=[],
            metavar="PATH",
            help=f"a path of this machine that is {name} inside",
        )
    group.add_argument(
        "--network",
        choices=["none", "loopback", "host"],
        default="loopback",
        help="loopback: its own, with nobody else on it (default)",
    )
    group.add_argument(
        "--sandbox",
        choices=["required", "lsm", "best-effort", "none"],
        default="required",
        help="how much confinement there must be (default: required)",
    )
    group.add_argument(
        "--mcp-config",
        action="extend",
        nargs="+",
        default=[],
        metavar="FILE|JSON",
        help='MCP servers whose tools the model gets: {"mcpServers": {NAME: {"command": …}}}',
    )
    group.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="a variable for commands; without a value, the one it has here",
    )


def add_attempts(group: Any) -> None:
    """Add the flags of a check before the commit, and of several attempts."""
    group.add_argument(
        "--check",
        metavar="COMMAND",
        help="commit only what this succeeds in; it runs in a sandbox, over the same changes",
    )
    group.add_argument(
        "--attempts",
        type=values.count,
        default=1,
        metavar="N",
        help="so many at once, from the same start; the first that passes the check is committed",
    )
    group.add_argument(
        "--best", action="store_true", help="wait for all attempts; commit the smallest change"
    )


def add_limits(group: Any) -> None:
    """Add the flags of the bounds of a run."""
    table: list[tuple[str, Any, str, str]] = [
        ("max-turns", values.count, "N", "replies of the model (default 30)"),
        ("max-tokens", values.count, "N", "output tokens of one reply (default 8000)"),
        ("max-total-tokens", values.count, "N", "all tokens of the run"),
        ("max-budget-usd", values.money, "X", "price of all tokens of the run"),
        ("cpu-time", values.count, "S", "CPU time of each process"),
        ("memory", values.size, "SIZE", "of the whole sandbox (default 4G)"),
        ("processes", values.count, "N", "of the whole sandbox (default 512)"),
        ("disk", values.size, "SIZE", "of a private view or workspace (default 4G)"),
        ("max-depth", values.natural, "N", "how deep runs may be nested, by task (default 0)"),
        ("max-runs", values.count, "N", "runs of the whole tree (default 32)"),
        ("timeout", values.duration, "S", "wall clock of the run (default 1800)"),
        ("idle-timeout", values.duration, "S", "silence of model and tools (default 300)"),
        ("tool-timeout", values.duration, "S", "wall clock of one command (default 120)"),
        ("corrections", values.natural, "N", "answers that miss --json-schema (default 3)"),
        ("retries", values.natural, "N", "further tries of a model call that failed (default 5)"),
    ]
    for name, kind, metavar, text in table:
        group.add_argument(f"--{name}", type=kind, metavar=metavar, help=text)


def add_output(group: Any) -> None:
    """Add the flags of what is printed and written."""
    group.add_argument("--output-format", choices=["text", "json", "stream-json"], default="text")
    group.add_argument("--label", metavar="TEXT", help="a name that stands in the result")
    group.add_argument("--transcript", metavar="FILE", help="write every reply and result there")
    group.add_argument("--patch", metavar="FILE", help="write the changes there, for git apply")
    group.add_argument(
        "--keep-patch",
        type=float,
        default=7.0,
        metavar="DAYS",
        help="how long the patch of a run that did not commit is kept (default 7)",
    )
    group.add_argument("-q", "--quiet", action="store_true", help="nothing on stderr but errors")
    group.add_argument("-v", "--verbose", action="store_true", help="more on stderr")
