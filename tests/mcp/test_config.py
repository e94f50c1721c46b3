"""What `--mcp-config` takes, and what it says about what it does not."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support_cli import environment, run

import forkrun
from forkrun.errors import InputError, UsageError
from forkrun.mcp.config import check_servers, own_environment
from forkrun.mcp.reading import read_servers


def read(servers: dict, **environ: str) -> dict[str, forkrun.McpServer]:
    return read_servers([json.dumps({"mcpServers": servers})], environ=environ)[0]


@pytest.mark.parametrize(
    ("entry", "confined"),
    [
        ({"command": "a"}, True),
        ({"type": "stdio", "command": "a", "args": ["b"], "env": {}}, True),
        ({"command": "a", "env": {"X": "1"}}, False),
        ({"command": "a", "network": True}, False),
        ({"command": "a", "args": ["${HOME}/x"]}, False),
        ({"type": "http", "url": "https://example.org/mcp"}, False),
    ],
)
def test_what_is_given_something_is_outside(entry: dict, confined: bool) -> None:
    """A server with neither environment values nor network is inside the sandbox, all others not."""
    server = read({"small": entry}, HOME="/home/me")["small"]
    assert server.is_confined is confined
    if entry.get("args") == ["${HOME}/x"]:
        assert server.argv == ("a", "/home/me/x")


def test_variables_are_those_of_the_user() -> None:
    """`${NAME}` is the user's variable, `${NAME:-x}` has a default, and one that is not set is
    an error that names it."""
    entry = {"command": "a", "env": {"KEY": "${KEY}", "MODE": "${MODE:-fast}"}}
    assert read({"s": entry}, KEY="k")["s"].env == {"KEY": "k", "MODE": "fast"}
    with pytest.raises(InputError, match=r"server 's' uses a variable that is not set: KEY"):
        read({"s": entry})


def test_what_is_odd_is_said_and_the_rest_is_used() -> None:
    """Keys that hosts have and we do not are named; a server that is disabled is left out."""
    servers = {"a": {"command": "x", "alwaysAllow": []}, "b": {"command": "y", "disabled": True}}
    found, notices = read_servers([json.dumps({"mcpServers": servers})], environ={})
    assert set(found) == {"a"}
    assert any("alwaysAllow" in notice for notice in notices)
    assert any("'b' is disabled" in notice for notice in notices)


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("{}", InputError, "mcpServers"),
        ('{"mcpServers": []}', InputError, "object"),
        ('{"mcpServers": {"a": {"command": 1}}}', InputError, "server 'a' is not valid"),
        ('{"mcpServers": {"a": {}}}', UsageError, "either a command or a url"),
        ('{"mcpServers": {"a__b": {"command": "x"}}}', UsageError, "a name that rules"),
        ('{"mcpServers": {"a b": {"command": "x"}}}', UsageError, "a name that rules"),
        ('{"mcpServers": {"a_": {"command": "x"}}}', UsageError, "a name that rules"),
        ('{"mcpServers": {"a": {"url": "file:///etc"}}}', UsageError, "neither http"),
        ('{"mcpServers": {"a": {"command": "x\\u0000"}}}', UsageError, "NUL"),
        ("/no/such/file.json", UsageError, "cannot read"),
    ],
)
def test_mistakes_are_named(text: str, kind: type[Exception], words: str) -> None:
    """Each mistake is one error that says what and where."""
    with pytest.raises(kind, match=words):
        read_servers([text], environ={})


def test_a_later_file_goes_before_an_earlier(tmp_path: Path) -> None:
    """Files and texts add up; the same name means the last of them."""
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {"a": {"command": "x"}, "b": {"command": "y"}}}')
    later = '{"mcpServers": {"a": {"command": "z"}}}'
    found, _ = read_servers([str(path), later], environ={})
    assert {name: server.command for name, server in found.items()} == {"a": "z", "b": "y"}


def test_its_environment_is_made_of_what_it_needs() -> None:
    """Nothing of ours but what every program needs, and what the user has given."""
    environ = {"PATH": "/bin", "HOME": "/h", "ANTHROPIC_API_KEY": "k", "FORKRUN_MODEL": "m"}
    server = forkrun.McpServer(command="a", env={"X": "1"})
    found = own_environment(environ, server)
    assert found == {"PATH": "/bin", "HOME": "/h", "TERM": "dumb", "X": "1"}


def test_the_project_names_no_servers(workspace: Path) -> None:
    """A `.mcp.json` that lies in the workspace is not read."""
    entry = {"command": "touch", "args": [str(workspace.parent / "touched")], "network": True}
    (workspace / ".mcp.json").write_text(json.dumps({"mcpServers": {"evil": entry}}))
    done = run("spawn", "--prompt", "go", "--model", "offline", cwd=workspace, check=0)
    assert b"evil" not in done.stdout + done.stderr
    assert not (workspace.parent / "touched").exists()


def test_a_job_has_them_too(workspace: Path) -> None:
    """`exec` takes servers in its job, and refuses those that cannot be meant."""
    job = {"prompt": "go", "model": "offline", "mcp_servers": {"a b": {"command": "x"}}}
    done = run("exec", cwd=workspace, stdin=json.dumps(job).encode(), check=2)
    assert b"the MCP server 'a b'" in done.stderr


def test_without_the_sdk_it_says_what_to_install(tmp_path: Path) -> None:
    """A server outside of the sandbox needs the SDK; one inside does not."""
    code = (
        "import sys; sys.modules['mcp'] = None;"
        "from forkrun.mcp.config import McpServer, check_servers;"
        "check_servers({'a': McpServer(command='x')}); print('inside is fine', flush=True);"
        "check_servers({'a': McpServer(command='x', network=True)})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stdout == "inside is fine\n"
    assert "needs the package mcp" in done.stderr


def test_nothing_is_imported_for_what_is_not_used(tmp_path: Path) -> None:
    """A run without servers imports neither the SDK nor our part that needs it."""
    code = (
        "import sys, forkrun;"
        "forkrun.run_sync('Look', model='offline', cwd='.', workspace='temp');"
        "print(*sorted({'mcp', 'anyio', 'pydantic', 'forkrun.mcp.servers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment(tmp_path / "home"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "\n", done.stderr


def test_names_are_checked_in_python_too() -> None:
    """The same check holds for servers that a program gives."""
    with pytest.raises(UsageError, match="a name that rules"):
        check_servers({"": forkrun.McpServer(command="x")})


DOCUMENT = (Path(__file__).resolve().parent.parent.parent / "docs/mcp.md").read_text()


def test_the_document_shows_what_works() -> None:
    """Its configurations are read without a notice, and its commands have flags that there are."""
    from forkrun.cli.options import parse

    environ = {"TRACKER_TOKEN": "t", "SEARCH_TOKEN": "s"}
    found: dict[str, forkrun.McpServer] = {}
    for block in re.findall(r"```json\n(.*?)```", DOCUMENT, re.DOTALL):
        servers, notices = read_servers([block], environ=environ)
        assert not notices
        found |= servers
    inside = {name for name, server in found.items() if server.is_confined}
    assert inside == {"forkrun", "notes"}
    blocks = re.findall(r"```console\n(.*?)```", DOCUMENT, re.DOTALL)
    for line in "".join(blocks).splitlines():
        program, *arguments = shlex.split(line)
        assert program == "forkrun"
        parse(arguments)
