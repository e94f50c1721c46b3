"""The flags of every command, and what they mean as a job."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from forkrun.cli import values
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
    known = {
        "spawn": _spawn,
        "exec": _exec,
        "apply": _apply,
        "recover": _recover,
        "doctor": _doctor,
        "agents": _agents,
        "mcp": _mcp,
    }
    for add in [known[argv[0]]] if argv and argv[0] in known else known.values():
        add(commands)
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


def _spawn(commands: Any) -> None:
    parser = commands.add_parser(
        "spawn",
        allow_abbrev=False,
        help="run one subagent and print its summary",
        description="Run one subagent in its own process and print its summary on stdout.",
    )
    parser.set_defaults(command=_run_spawn)
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
    _rights(parser.add_argument_group("rights"))
    _attempts(parser.add_argument_group("attempts"))
    _limits(parser.add_argument_group("limits"))
    _output(parser.add_argument_group("output"))


def _rights(group: Any) -> None:
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


def _attempts(group: Any) -> None:
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


def _limits(group: Any) -> None:
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


def _output(group: Any) -> None:
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


def _exec(commands: Any) -> None:
    parser = commands.add_parser(
        "exec",
        allow_abbrev=False,
        help="run one job, given as JSON on stdin; the result is JSON on stdout",
        description="Run one job: JSON on stdin, one result as JSON on stdout. For machines.",
    )
    parser.set_defaults(command=_run_exec)


def _doctor(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor",
        allow_abbrev=False,
        help="say what this machine can enforce",
        description="Try every layer of the confinement on this machine and say what works. "
        "Exit code 0 where `--sandbox required` would work, else 125.",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.set_defaults(command=_run_doctor)


def _run_doctor(options: Any) -> int:
    from forkrun.cli import doctor

    return doctor.main(json_output=options.json)


def _agents(commands: Any) -> None:
    parser = commands.add_parser(
        "agents",
        allow_abbrev=False,
        help="list the agent definitions, what they may do and what is wrong with them",
        description="List the agents of .claude/agents here and above, and the user's own.",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--cwd", metavar="DIR", help="the workspace (default: here)")
    parser.set_defaults(command=_run_agents)


def _run_agents(options: Any) -> int:
    from forkrun.cli.agents import list_agents

    return list_agents(cwd=options.cwd or ".", as_json=options.json)


def _mcp(commands: Any) -> None:
    parser = commands.add_parser(
        "mcp",
        allow_abbrev=False,
        help="be an MCP server on stdio with one tool, task",
        description="Be an MCP server on stdin and stdout, whose one tool, task, runs a subagent "
        "in its own process. The flags hold for every run.",
    )
    parser.set_defaults(command=_run_mcp)
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
    _rights(parser.add_argument_group("rights"))
    _limits(parser.add_argument_group("limits"))


def _run_mcp(options: Any) -> int:
    from forkrun.cli.mcp import main

    # What a server has no flag for is as it is without the flag.
    for name, value in vars(parse(["spawn", "--prompt", "(the host gives it)"])).items():
        if not hasattr(options, name):
            setattr(options, name, value)
    return main(job_of(options), is_one_agent=options.agent is not None, at_once=options.at_once)


def _apply(commands: Any) -> None:
    parser = commands.add_parser(
        "apply",
        allow_abbrev=False,
        help="commit the patch of a run that did not commit",
        description="Commit a patch, all of it or, where somebody has changed the same files, "
        "nothing (exit code 73).",
    )
    parser.set_defaults(command=_run_apply)
    parser.add_argument(
        "patch", metavar="RESULT|PATCH", help="a patch, or the JSON of the result that names it"
    )
    _workspace(parser, "apply to")


def _recover(commands: Any) -> None:
    parser = commands.add_parser(
        "recover",
        allow_abbrev=False,
        help="finish or undo commits that were killed",
        description="Finish or undo commits that were killed in a workspace, and say which. "
        "The next run there does the same.",
    )
    parser.set_defaults(command=_run_recover)
    _workspace(parser, "recover")


def _workspace(parser: Any, verb: str) -> None:
    parser.add_argument(
        "--cwd", metavar="DIR", help=f"the workspace to {verb} (default: the current directory)"
    )


def _run_apply(options: Any) -> int:
    from forkrun.cli.files import apply

    return apply(options.patch, cwd=options.cwd or os.getcwd())


def _run_recover(options: Any) -> int:
    from forkrun.cli.files import recover

    return recover(options.cwd or os.getcwd())


def _run_spawn(options: Any) -> int:
    if options.estimate:
        from forkrun.cli.estimate import print_estimate

        return print_estimate(
            job_of(options), snapshot_of(options), output_format=options.output_format
        )
    from forkrun.cli.spawn import spawn

    return spawn(
        job_of(options),
        snapshot=snapshot_of(options),
        hooks=hooks_of(options),
        output_format=options.output_format,
        verbosity=_verbosity(options),
        early=options.early,
    )


def _verbosity(options: Any) -> int:
    return -1 if options.quiet else int(options.verbose)


def _run_exec(options: Any) -> int:
    from forkrun.cli.spawn import execute

    return execute(sys.stdin.buffer.read(), early=options.early)


_LIMITS = {
    "max_turns": "max_turns",
    "max_tokens": "max_tokens",
    "max_total_tokens": "max_total_tokens",
    "max_budget_usd": "max_budget_usd",
    "max_depth": "max_depth",
    "max_runs": "max_runs",
    "corrections": "corrections",
    "retries": "retries",
    "cpu_time": "cpu_s",
    "memory": "memory_bytes",
    "processes": "processes",
    "disk": "disk_bytes",
    "timeout": "timeout_s",
    "idle_timeout": "idle_timeout_s",
    "tool_timeout": "tool_timeout_s",
}


def job_of(options: Any) -> Any:
    """Give the job that the flags of `spawn` describe. Raises UsageError."""
    from forkrun.job import Job
    from forkrun.limits import Limits

    given = {field: getattr(options, flag) for flag, field in _LIMITS.items()}
    job = Job(
        prompt=_prompt(options),
        dangling=options.dangling,
        break_cache=options.break_cache,
        model=options.model,
        label=options.label,
        system=options.system,
        append_system_prompt=options.append_system_prompt,
        json_schema=_schema(options.json_schema),
        tools=options.tools,
        allow=tuple(options.allow),
        deny=tuple(options.deny),
        parents=_parent_rules(options.parent_policy),
        workspace=options.workspace,
        commit_ignored=options.commit_ignored,
        protect=tuple(options.protect),
        attempts=options.attempts,
        check=options.check,
        best=options.best,
        patch=options.patch,
        keep_patch_days=options.keep_patch,
        cwd=options.cwd,
        root=options.root and os.path.realpath(options.root),
        network=options.network,
        sandbox=options.sandbox,
        readable=tuple(map(os.path.abspath, options.readable)),
        writable=tuple(map(os.path.abspath, options.writable)),
        env=dict(_variable(text) for text in options.env),
        limits=Limits(**{field: value for field, value in given.items() if value is not None}),
        transcript=options.transcript,
        mcp_servers=_mcp_servers(options.mcp_config),
    )
    if options.agent is None:
        return job
    from forkrun.cli.agents import as_agent

    return as_agent(options.agent, job, is_fork=options.snapshot is not None, quiet=options.quiet)


def _mcp_servers(given: Sequence[str]) -> dict[str, Any]:
    if not given:
        return {}
    from forkrun.cli import tell
    from forkrun.mcp.reading import read_servers

    servers, notices = read_servers(given, environ=os.environ)
    for notice in notices:
        tell(notice)
    return servers


def _prompt(options: Any) -> str:
    if options.prompt is None and options.prompt_file is None:
        if options.estimate:
            return ""
        raise UsageError(
            "one of --prompt and --prompt-file is required", hint="see forkrun spawn --help"
        )
    if options.prompt not in (None, "-"):
        return str(options.prompt)
    source = options.prompt_file or "-"
    try:
        content = sys.stdin.buffer.read() if source == "-" else _read(source, "the prompt")
        return content.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"the prompt is not UTF-8, at byte {error.start}: {source}") from error


def snapshot_of(options: Any) -> Any:
    """Give the snapshot that `--snapshot` names, or None. Raises UsageError and InputError."""
    if options.snapshot is None:
        return None
    if options.snapshot == "-":
        if options.prompt == "-" or options.prompt_file == "-":
            raise UsageError(
                "the prompt and the snapshot cannot both be read from stdin",
                hint="put one of them into a file",
            )
        text, source = sys.stdin.buffer.read(), "snapshot on stdin"
    else:
        text, source = _read(options.snapshot, "the snapshot"), options.snapshot
    from forkrun.snapshot.freeze import Snapshot

    return Snapshot.from_json(text, source=source)


def _schema(given: str | None) -> Any:
    if given is None:
        return None
    from forkrun.structured.shape import decode_schema

    if given.lstrip().startswith("{"):
        return decode_schema(given.encode(), source="--json-schema")
    return decode_schema(_read(given, "the JSON schema"), source=given)


def hooks_of(options: Any) -> Any:
    """Give the hooks that `--hooks` names, or None. Raises ConfigurationError."""
    if options.hooks is None:
        return None
    from forkrun.hooks import Hooks

    return Hooks.from_file(options.hooks)


def _parent_rules(path: str | None) -> tuple[Any, ...]:
    if path is None:
        return ()
    from forkrun.policy.policy import decode_rules

    return (decode_rules(_read(path, "the parent's policy"), source=path),)


def _read(path: str, what: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise UsageError(f"cannot read {what} ({error.strerror}): {path}") from error


def _variable(text: str) -> tuple[str, str]:
    name, has_value, value = text.partition("=")
    if has_value:
        return name, value
    if name not in os.environ:
        raise UsageError(f"--env names a variable that is not set here: {name}")
    return name, os.environ[name]
