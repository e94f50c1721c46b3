"""Finds agent files: those of the project, nearest first, then the user's own."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from forkrun.agents.definition import Agent, Problem, Scope
from forkrun.errors import InputError, UsageError

FOLDER = os.path.join(".claude", "agents")
MAX_FILES = 1_000
MAX_FILE_BYTES = 1024 * 1024


def load(
    *, cwd: str | os.PathLike[str] = ".", environ: Mapping[str, str] | None = None
) -> list[Agent]:
    """Give every agent that a run in this directory may be, those that count first.

    One whose name a nearer file has already is given too, with a problem that says so, and so is a
    file that cannot be used. `environ` is where HOME and CLAUDE_CONFIG_DIR are read from, None
    for `os.environ`.
    """
    found: list[Agent] = []
    by_name: dict[str, str] = {}
    for folder, scope in _folders(
        os.path.realpath(cwd), os.environ if environ is None else environ
    ):
        for path in _files(folder):
            agent = read_file(path, scope=scope)
            if agent.name in by_name:
                message = f"not used, since {agent.name} is defined by {by_name[agent.name]}"
                agent = _with_problem(agent, message)
            elif agent.is_usable:
                by_name[agent.name] = path
            found.append(agent)
    return found


def find(
    wanted: str, *, cwd: str | os.PathLike[str] = ".", environ: Mapping[str, str] | None = None
) -> Agent:
    """Give the agent of this name, or of this file where it is a path.

    Raises UsageError where there is none, InputError where it cannot be used, with file and line.
    """
    if wanted.endswith(".md") or "/" in wanted:
        if not os.path.isfile(wanted):
            raise UsageError(f"there is no agent file {wanted}")
        project = _project(os.path.realpath(cwd))
        is_inside = os.path.realpath(wanted).startswith(project + os.sep)
        agent = read_file(wanted, scope="project" if is_inside else "user")
    else:
        agents = load(cwd=cwd, environ=environ)
        named = [agent for agent in agents if agent.name == wanted]
        if not named:
            names = ", ".join(sorted({agent.name for agent in agents if agent.is_usable}))
            hint = f"the agents are {names}" if names else f"put one into {FOLDER}/{wanted}.md"
            raise UsageError(f"there is no agent {wanted!r}", hint=hint)
        agent = next((agent for agent in named if agent.is_usable), named[0])
    for problem in agent.problems:
        if problem.is_fatal:
            raise InputError(f"{agent.path}, line {problem.line}: {problem.message}")
    return agent


def read_file(path: str | os.PathLike[str], *, scope: Scope = "user") -> Agent:
    """Read one file; whatever is wrong with it, and that it cannot be read, is in `problems`."""
    name = os.fspath(path)
    try:
        text = _content(name).decode()
    except UnicodeDecodeError as error:
        return _unreadable(name, f"not UTF-8, at byte {error.start}", scope=scope)
    except OSError as error:
        return _unreadable(name, f"cannot be read: {error.strerror}", scope=scope)
    if len(text) > MAX_FILE_BYTES:
        return _unreadable(name, f"larger than {MAX_FILE_BYTES} bytes", scope=scope)
    return Agent.parse(text, path=name, scope=scope)


def _content(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "not a regular file")
        return file.read(MAX_FILE_BYTES + 1)


def _unreadable(path: str, why: str, *, scope: Scope) -> Agent:
    stem = os.path.basename(path).removesuffix(".md")
    problem = Problem(line=1, message=why, is_fatal=True)
    return Agent(name=stem, description="", system="", path=path, scope=scope, problems=(problem,))


def _with_problem(agent: Agent, message: str) -> Agent:
    problem = Problem(line=1, message=message, is_fatal=True)
    return msgspec.structs.replace(agent, problems=(problem, *agent.problems))


def _folders(cwd: str, environ: Mapping[str, str]) -> Iterator[tuple[str, Scope]]:
    own = environ.get("CLAUDE_CONFIG_DIR") or os.path.join(environ.get("HOME") or "/", ".claude")
    users = os.path.realpath(os.path.join(own, "agents"))
    project, here = _project(cwd), cwd
    while True:
        folder = os.path.join(here, FOLDER)
        if os.path.realpath(folder) != users:
            yield folder, "project"
        if here == project:
            break
        here = os.path.dirname(here)
    yield users, "user"


def _project(cwd: str) -> str:
    """Give the directory that holds the repository which `cwd` lies in, or `cwd` itself."""
    here = cwd
    while not os.path.exists(os.path.join(here, ".git")):
        if (above := os.path.dirname(here)) == here:
            return cwd
        here = above
    return here


def _files(folder: str) -> Sequence[str]:
    found: list[str] = []
    for here, folders, names in os.walk(folder):
        folders.sort()
        found += (os.path.join(here, name) for name in sorted(names) if name.endswith(".md"))
        if len(found) >= MAX_FILES:
            break
    return found[:MAX_FILES]
