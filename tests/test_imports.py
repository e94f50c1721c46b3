"""Which modules each entry point may import: the time to start is a feature, held by these tables.

Each test starts the entry point as users do, and has the interpreter name what it imported
(`-X importtime`). A module that is new and needed is added to its table; one that is only sometimes
needed is imported inside the function that needs it.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from messages_server import MessagesServer
from support_cli import environment, script

import forkrun_sandbox
from forkrun.starting import package_folders

NOT_FOUND_US = 20

HEAVY = frozenset(
    [
        "anthropic",
        "anyio",
        "click",
        "difflib",
        "fastapi",
        "fractions",
        "genai_prices",
        "httpx",
        "httpx2",
        "importlib.metadata",
        "importlib.resources",
        "multiprocessing",
        "pathspec",
        "pdb",
        "psutil",
        "pydantic",
        "pygments",
        "pytest",
        "rich",
        "secrets",
        "sqlite3",
        "tempfile",
        "tree_sitter",
        "tree_sitter_bash",
        "typing_extensions",
        "tomllib",
        "unittest",
        "xml",
        "yaml",
        "zipfile",
    ]
)
"""What nothing may import before a first request."""

NOT_TO_ASK = HEAVY | frozenset(["dataclasses", "email", "http", "json", "ssl", "urllib.parse"])
"""What nothing may import before a request has gone to a server that speaks plain HTTP."""

NEVER_IN_A_WORKER = NOT_TO_ASK | frozenset(
    [
        "argparse",
        "asyncio",
        "concurrent.futures",
        "inspect",
        "logging",
        "random",
        "shutil",
        "urllib",
        "urllib.request",
    ]
) - {"pathspec", "tree_sitter"}

LATE = frozenset(
    [
        "forkrun.agents",
        "forkrun.models.answers",
        "forkrun.models.offline",
        "forkrun.models.script",
        "forkrun.models.sdk_road",
        "forkrun.models.stream",
        "forkrun.options",
        "forkrun.policy.bash",
        "forkrun.policy.programs",
        "forkrun.policy.shell",
        "forkrun.policy.tree",
        "forkrun.snapshot.fork",
        "forkrun.snapshot.freeze",
        "forkrun.snapshot.repair",
        "forkrun.workspace.changes",
        "forkrun.workspace.commit",
        "forkrun.workspace.keep",
        "forkrun.workspace.patch",
        "forkrun.workspace.selection",
        "forkrun.workspace.unpatch",
        "forkrun_sandbox.enter",
        "forkrun_sandbox.probe",
        "forkrun_sandbox.trial",
        "forkrun_sandbox.view",
    ]
)
"""Ours, but needed only after the first request of a plain run, or not at all in it."""


def imported(argv: list[str], *, cwd: Path, env: dict[str, str]) -> list[str]:
    """Run a command whose interpreter tells what it imports; give that, in its order."""
    done = subprocess.run(
        argv,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = re.findall(r"^import time: +\d+ \| +(\d+) \| +(\S+)$", done.stderr, flags=re.M)
    assert done.returncode == 0, done.stderr[-4000:]
    # A module that is not found is told of too, with the time of looking for it.
    return [name for took_us, name in lines if int(took_us) > NOT_FOUND_US]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-X", "importtime", "-m", "forkrun", *arguments]


def roots(modules: list[str], banned: frozenset[str]) -> set[str]:
    """Give those of the modules that a table bans: by their own name, or that of a parent."""
    return {m for m in modules if any(m == b or m.startswith(f"{b}.") for b in banned)}


def ours(modules: list[str]) -> set[str]:
    return {m for m in modules if m.split(".")[0] in ("forkrun", "forkrun_sandbox")}


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "ws").mkdir()
    return environment(tmp_path)


@pytest.mark.parametrize("flags", [("--version",), ("--help",), ("spawn", "--help")])
def test_help_and_version_import_next_to_nothing(flags, tmp_path, home) -> None:
    """They need neither msgspec nor asyncio, and start no worker."""
    modules = imported(command(*flags), cwd=tmp_path / "ws", env=home)
    assert ours(modules) <= {
        "forkrun",
        "forkrun_sandbox",
        "forkrun.cli",
        "forkrun.cli.flags",
        "forkrun.cli.options",
        "forkrun.cli.values",
        "forkrun.errors",
    }
    assert not roots(modules, frozenset({"msgspec", "asyncio", "ssl", "subprocess", "anthropic"}))


def test_a_run_with_a_script_imports_no_http(tmp_path, home) -> None:
    """What speaks to a server is imported for a server."""
    model = script(tmp_path / "s.jsonl", {"text": "done"})
    argv = command("spawn", "--prompt", "go", "--model", model, "-q")
    modules = imported(argv, cwd=tmp_path / "ws", env=home)
    assert not roots(modules, HEAVY | {"http", "email", "urllib.request"})
    assert not roots(modules, frozenset({"forkrun.models.http_road", "forkrun.models.offline"}))


def test_what_a_plain_request_imports(tmp_path, home) -> None:
    """Up to its first request `forkrun spawn` imports nothing heavy, and nothing of ours that is
    for later; the package of the provider not at all."""
    # The first thing that is imported after the request has been sent.
    after = "http"
    with MessagesServer([{"text": "done"}]) as server:
        env = home | {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": "sk-test"}
        argv = command("spawn", "--prompt", "go", "--model", "claude-test", "-q")
        modules = imported(argv, cwd=tmp_path / "ws", env=env)
    assert after in modules
    before = modules[: modules.index(after)]
    assert "forkrun.models.http_road" in before
    assert not roots(before, NOT_TO_ASK)
    assert not roots(before, LATE)
    assert not roots(modules, frozenset({"anthropic", "rich", "anyio"}))


WORKER = """
import sys
sandbox = type(sys)("forkrun_sandbox")
sandbox.__path__ = [sys.argv[1]]
sys.modules["forkrun_sandbox"] = sandbox
sys.path[:0] = sys.argv[2:]
sys.modules["typing_extensions"] = None
import msgspec
del sys.modules["typing_extensions"]
import forkrun.worker
forkrun.worker.prepare()
forkrun.worker.prepare_tools()
"""


def test_a_worker_imports_little(tmp_path, home) -> None:
    """Until it is confined a worker imports nothing of the parent's side and nothing heavy."""
    argv = [sys.executable, "-I", "-S", "-X", "importtime", "-c", WORKER, *package_folders()]
    modules = imported(argv, cwd=tmp_path, env=home)
    assert not roots(modules, NEVER_IN_A_WORKER)
    assert len(modules) < 130, sorted(modules)


def test_the_tables_name_modules_that_there_are() -> None:
    """A module that was renamed or removed is so in the tables too."""
    folders = {"forkrun": Path(package_folders()[1], "forkrun")}
    folders["forkrun_sandbox"] = Path(forkrun_sandbox.__path__[0])
    for name in LATE:
        package, *parts = name.split(".")
        path = folders[package].joinpath(*parts)
        assert path.is_dir() or path.with_suffix(".py").is_file(), name
