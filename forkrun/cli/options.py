"""The commands and their flags, read from the command line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, NoReturn

from forkrun.cli import flags, values, without
from forkrun.errors import UsageError


class _Formatter(argparse.HelpFormatter):
    """Formats help for the width of the terminal, found without `shutil`, which imports much."""

    def __init__(self, prog: str) -> None:
        try:
            columns = int(os.environ.get("COLUMNS") or os.get_terminal_size().columns)
        except (OSError, ValueError):
            columns = 0
        super().__init__(prog, width=(columns or 80) - 2)


class _Parser(argparse.ArgumentParser):
    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=_Formatter, **options)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"see {self.prog} --help")


def parse(argv: Sequence[str]) -> Any:
    """Read the command line; the result has the attribute `command`, which takes it and runs.

    Raises UsageError.
    """
    parser = _Parser(
        prog="forkrun",
        description="Run a subagent in its own process: a prompt goes in, one summary comes out.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", prog="forkrun", parser_class=_Parser
    )
    # Where a command is named, its flags alone are made: that of the largest takes 3 ms.
    for name in [argv[0]] if argv and argv[0] in COMMANDS else COMMANDS:
        command = COMMANDS[name]
        of_command = commands.add_parser(
            name, allow_abbrev=False, help=command.help, description=command.description
        )
        of_command.set_defaults(command=command.run)
        command.add_flags(of_command)
    options = parser.parse_args(argv)
    if not hasattr(options, "command"):
        raise UsageError("no command was given", hint="try: forkrun spawn --prompt TEXT")
    return options


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"forkrun {version('forkrun-agent')}")
        except PackageNotFoundError:
            print("forkrun (a source tree that is not installed)")
        parser.exit()


def _add_spawn(parser: Any) -> None:
    what = parser.add_argument_group("what to do").add_mutually_exclusive_group()
    what.add_argument("--prompt", metavar="TEXT", help="the task; - reads it from stdin")
    what.add_argument("--prompt-file", metavar="FILE", help="a file that holds the task")
    context = parser.add_argument_group("context")
    context.add_argument(
        "--snapshot",
        metavar="FILE",
        help="fork: the parent's request, JSON of the parameters of messages.create; - is stdin",
    )
    context.add_argument(
        "--dangling",
        choices=["placeholder", "cut"],
        default="placeholder",
        help="how a tool call that is open at the end of the snapshot is closed",
    )
    context.add_argument(
        "--break-cache",
        action="store_true",
        help="let --model, --system and --tools change what is forked",
    )
    context.add_argument(
        "--agent",
        metavar="NAME|FILE",
        help="be this agent (see forkrun agents); other flags go before what its file says",
    )
    context.add_argument(
        "--estimate",
        action="store_true",
        help="print what the snapshot would cost in this fork, and run nothing",
    )
    context.add_argument("--system", metavar="TEXT", help="replaces our system prompt")
    context.add_argument(
        "--json-schema",
        metavar="FILE|TEXT",
        help="what the final answer must match: JSON of this schema, and nothing else",
    )
    context.add_argument("--append-system-prompt", metavar="TEXT", help="follows the system prompt")
    model = parser.add_argument_group("model")
    model.add_argument(
        "--model",
        metavar="NAME",
        help="a Claude model id, script:FILE, or offline (default: $FORKRUN_MODEL)",
    )
    flags.add_rights(parser.add_argument_group("rights"))
    flags.add_attempts(parser.add_argument_group("attempts"))
    flags.add_limits(parser.add_argument_group("limits"))
    flags.add_output(parser.add_argument_group("output"))


def _add_nothing(parser: Any) -> None:
    """Add no flags."""


def _add_doctor(parser: Any) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def _add_agents(parser: Any) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--cwd", metavar="DIR", help="the workspace (default: here)")


def _add_mcp(parser: Any) -> None:
    parser.add_argument("--model", metavar="NAME", help="as for spawn (default: $FORKRUN_MODEL)")
    parser.add_argument(
        "--agent",
        metavar="NAME|FILE",
        help="every task is for this agent (default: the host chooses; see forkrun agents)",
    )
    parser.add_argument("--system", metavar="TEXT", help="replaces our system prompt")
    parser.add_argument("--append-system-prompt", metavar="TEXT", help="follows the system prompt")
    parser.add_argument(
        "--at-once", type=values.count, default=8, metavar="N", help="runs at a time (default 8)"
    )
    flags.add_rights(parser.add_argument_group("rights"))
    flags.add_limits(parser.add_argument_group("limits"))


def _add_apply(parser: Any) -> None:
    parser.add_argument(
        "patch", metavar="RESULT|PATCH", help="a patch, or the JSON of the result that names it"
    )
    _add_workspace(parser, "apply to")


def _add_recover(parser: Any) -> None:
    _add_workspace(parser, "recover")


def _add_workspace(parser: Any, verb: str) -> None:
    parser.add_argument(
        "--cwd", metavar="DIR", help=f"the workspace to {verb} (default: the current directory)"
    )


def _run_spawn(options: Any) -> int:
    from forkrun.cli.jobs import hooks_of, job_of, snapshot_of

    if options.estimate:
        from forkrun.cli.estimate import print_estimate

        return print_estimate(
            job_of(options), snapshot_of(options), output_format=options.output_format
        )
    with _connecting(options) as connections:
        if connections is not None and not connections.server.tls:
            with without("ssl"):  # 5 ms; what else needs it imports it for itself
                import asyncio  # noqa: F401
        from forkrun.cli.spawn import spawn

        return spawn(
            job_of(options),
            snapshot=snapshot_of(options),
            hooks=hooks_of(options),
            output_format=options.output_format,
            verbosity=-1 if options.quiet else int(options.verbose),
            early=options.early,
            connections=connections,
        )


def _connecting(options: Any) -> AbstractContextManager[Any]:
    """Begin to connect to the server that is most likely asked, while the rest is imported."""
    from forkrun.models import begin_connecting

    name = options.model or os.environ.get("FORKRUN_MODEL")
    return begin_connecting(name, environ=os.environ) or nullcontext()


def _run_exec(options: Any) -> int:
    from forkrun.cli.spawn import execute

    return execute(sys.stdin.buffer.read(), early=options.early)


def _run_apply(options: Any) -> int:
    from forkrun.cli.files import apply

    return apply(options.patch, cwd=options.cwd or os.getcwd())


def _run_recover(options: Any) -> int:
    from forkrun.cli.files import recover

    return recover(options.cwd or os.getcwd())


def _run_doctor(options: Any) -> int:
    from forkrun.cli import doctor

    return doctor.main(json_output=options.json)


def _run_agents(options: Any) -> int:
    from forkrun.cli.agents import list_agents

    return list_agents(cwd=options.cwd or ".", as_json=options.json)


def _run_mcp(options: Any) -> int:
    from forkrun.cli.jobs import job_of
    from forkrun.cli.mcp import main

    # What a server has no flag for is as it is without the flag.
    for name, value in vars(parse(["spawn", "--prompt", "(the host gives it)"])).items():
        if not hasattr(options, name):
            setattr(options, name, value)
    return main(job_of(options), is_one_agent=options.agent is not None, at_once=options.at_once)


class _Command(NamedTuple):
    """A command: what adds its flags, what runs it (its exit code comes back), what help says."""

    add_flags: Callable[[Any], None]
    run: Callable[[Any], int]
    help: str
    description: str


COMMANDS = {
    "spawn": _Command(
        _add_spawn,
        _run_spawn,
        "run one subagent and print its summary",
        "Run one subagent in its own process and print its summary on stdout.",
    ),
    "exec": _Command(
        _add_nothing,
        _run_exec,
        "run one job, given as JSON on stdin; the result is JSON on stdout",
        "Run one job: JSON on stdin, one result as JSON on stdout. For machines.",
    ),
    "apply": _Command(
        _add_apply,
        _run_apply,
        "commit the patch of a run that did not commit",
        "Commit a patch, all of it or, where somebody has changed the same files, nothing "
        "(exit code 73).",
    ),
    "recover": _Command(
        _add_recover,
        _run_recover,
        "finish or undo commits that were killed",
        "Finish or undo commits that were killed in a workspace, and say which. The next run "
        "there does the same.",
    ),
    "doctor": _Command(
        _add_doctor,
        _run_doctor,
        "say what this machine can enforce",
        "Try every layer of the confinement on this machine and say what works. Exit code 0 where "
        "`--sandbox required` would work, else 125.",
    ),
    "agents": _Command(
        _add_agents,
        _run_agents,
        "list the agent definitions, what they may do and what is wrong with them",
        "List the agents of .claude/agents here and above, and the user's own.",
    ),
    "mcp": _Command(
        _add_mcp,
        _run_mcp,
        "be an MCP server on stdio with one tool, task",
        "Be an MCP server on stdin and stdout, whose one tool, task, runs a subagent in its own "
        "process. The flags hold for every run.",
    ),
}
