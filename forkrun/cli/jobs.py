"""What the flags of a command mean as a job: files are read, names looked up, mistakes named."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from forkrun.errors import UsageError

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
