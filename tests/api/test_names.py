"""The public names: which there are, what is written about them, and what importing them costs."""

import ast
import asyncio
import contextlib
import doctest
import inspect
import io
import pkgutil
import subprocess
import sys
import typing
from pathlib import Path

import pytest
from support_api import program, replies

import forkrun
from forkrun.job import Job
from forkrun.options import JobOptions


def test_the_list_is_sorted_and_complete() -> None:
    """`__all__` is sorted, and is what `dir` shows."""
    assert forkrun.__all__ == sorted(forkrun.__all__)
    assert dir(forkrun) == forkrun.__all__


def test_a_type_checker_sees_the_same_names() -> None:
    """What is imported for type checkers, what resolves, and `__all__` are one list."""
    tree = ast.parse(Path(forkrun.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {a.name for n in block.body if isinstance(n, ast.ImportFrom) for a in n.names}
    assert seen == set(forkrun.__all__)
    for name in forkrun.__all__:
        assert getattr(forkrun, name).__name__.removeprefix("forkrun.") == name


def test_no_module_takes_the_place_of_a_name() -> None:
    """No submodule is called as a public name is, since importing it would replace that."""
    modules = {module.name for module in pkgutil.iter_modules(forkrun.__path__)}
    both = modules & set(forkrun.__all__)
    assert all(inspect.ismodule(getattr(forkrun, name)) for name in both)


def test_a_name_that_there_is_not() -> None:
    """Another name is an AttributeError, as in any module."""
    with pytest.raises(AttributeError, match="no attribute 'fork_run'"):
        _ = forkrun.fork_run


def test_the_options_are_the_fields_of_a_job() -> None:
    """Each field of `Job` is an option of `run`; the prompt, model and snapshot stand apart."""
    options = set(typing.get_type_hints(JobOptions))
    assert options == set(Job.__struct_fields__) - {"prompt", "model", "snapshot"}


@pytest.mark.parametrize("name", forkrun.__all__)
def test_every_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each public name is documented, with an example that gives what it says."""
    (tmp_path / "ws").mkdir()
    monkeypatch.chdir(tmp_path / "ws")
    monkeypatch.delenv("FORKRUN_MODEL", raising=False)
    for file, lines in SCRIPTS.items():
        replies(Path(file), *lines)
    Path(".claude/agents").mkdir(parents=True)
    Path(".claude/agents/reviewer.md").write_text(REVIEWER)
    text = inspect.getdoc(getattr(forkrun, name))
    assert text
    examples = doctest.DocTestParser().get_examples(text)
    assert examples, f"no example in the docstring of {name}"
    names = {"forkrun": forkrun, "asyncio": asyncio}
    exec("import json", names)
    with asyncio.Runner() as runner:
        for example in examples:
            said = played(example, names, runner)
            right = doctest.OutputChecker().check_output(example.want, said, FLAGS)
            assert right, f"{example.source}gave {said!r}, not {example.want!r}"


SCRIPTS = {
    "replies.jsonl": [{"text": "In pyproject.toml."}],
    "step.jsonl": [
        {"tool_use": [{"name": "bash", "input": {"command": "echo hello"}}]},
        {"text": "Done."},
    ],
    "sleep.jsonl": [{"tool_use": [{"name": "bash", "input": {"command": "sleep 60"}}]}],
}
REVIEWER = """---
name: reviewer
description: Reviews a change.
tools: Read, Grep
---
Look for mistakes.
"""
FLAGS = doctest.ELLIPSIS


def played(example: doctest.Example, names: dict, runner: asyncio.Runner) -> str:
    """Run one example, which may await, and give what it prints; an error as its last line."""
    code = compile(example.source, "<example>", "single", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            if code.co_flags & inspect.CO_COROUTINE:
                runner.run(eval(code, names))
            else:
                eval(code, names)
        except Exception as error:
            if example.exc_msg is None:
                raise
            kind = type(error)
            assert doctest.OutputChecker().check_output(
                example.exc_msg, f"{kind.__module__}.{kind.__qualname__}: {error}\n", FLAGS
            ), f"raised {error!r}, not {example.exc_msg}"
            return example.want
    return out.getvalue()


HEAVY = {
    *("anthropic", "agents", "claude_agent_sdk", "genai_prices", "httpx", "httpx2", "langchain"),
    *("mcp", "opentelemetry", "psutil", "pydantic", "pydantic_ai", "rich", "trio", "yaml"),
}


def test_importing_costs_nothing(tmp_path: Path) -> None:
    """`import forkrun` alone brings in no package of others, and none of our modules."""
    code = (
        "import sys; before = set(sys.modules); import forkrun;"
        "new = {m for m in set(sys.modules) - before if m.split('.')[0] not in sys.stdlib_module_names};"
        "print(*sorted(new))"
    )
    assert program(code, cwd=tmp_path).stdout.split() == ["forkrun", "forkrun_sandbox"]


def test_a_run_imports_no_extra(tmp_path: Path) -> None:
    """A run and a task with a scripted model import none of the packages that are only sometimes needed."""
    (tmp_path / "ws").mkdir()
    model = replies(tmp_path / "s", {"text": "x"})
    code = (
        "import sys, forkrun; forkrun.run_sync('go', model=sys.argv[1], cwd='ws');"
        "tool = forkrun.task_tool(forkrun.Runner(model=sys.argv[1]), cwd='ws');"
        "assert not tool.call_sync({'prompt': 'go'}).is_error;"
        f"print(*sorted({HEAVY!r} & set(sys.modules)))"
    )
    assert program(code, model, cwd=tmp_path).stdout == "\n"


WRONG = """
import forkrun
forkrun.run_sync("go", max_turn=3)
forkrun.run_sync("go", label=3)
forkrun.run_sync("go", workspace="cloud")
forkrun.run_sync("go", on_event=3)
forkrun.run_sync("go", limits=forkrun.Limits(max_turns=3), cwd=".", tools=["bash"])
"""


@pytest.mark.slow
def test_a_type_checker_sees_mistakes(tmp_path: Path) -> None:
    """An unknown option, a wrong type and a wrong word are each an error of `mypy --strict`."""
    pytest.importorskip("mypy")
    (tmp_path / "host.py").write_text(WRONG)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "host.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    wrong = {line.split(":")[1] for line in done.stdout.splitlines() if ": error:" in line}
    assert wrong == {"3", "4", "5", "6"}, done.stdout
