"""Public peers: installed by name into a folder of their own, and how each sends one request.

Installed with pip and npm as they are configured on this machine; nothing of it stays in the
repository. What cannot be installed, or sends nothing, is named in the table with the reason.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

from _bench.measure import Row
from _bench.programs import PROMPT, PYTHON, Program

INSTALL_S = 900


@dataclass(frozen=True, kw_only=True)
class Peer:
    """How a peer is installed (`kind` is "pip" or "npm") and started."""

    kind: str
    package: str
    program: Callable[[str, str, str], Program]


def programs(
    options: argparse.Namespace, *, folder: str, url: str
) -> tuple[dict[str, Program], list[Row]]:
    """Install the peers that were asked for; give their programs, and rows for those that fail."""
    if not options.peers:
        return {}, []
    wanted = list(PEERS) if options.peers == "all" else options.peers.split(",")
    found: dict[str, Program] = {}
    missing: list[Row] = []
    for name in wanted:
        peer = PEERS.get(name.strip())
        if peer is None:
            missing.append(Row(name=name, note=f"no such peer; there are {', '.join(PEERS)}"))
            continue
        print(f"installing {peer.package} …", file=sys.stderr, flush=True)
        place = os.path.join(options.peers_folder, peer.package.strip("@").replace("/", "-"))
        try:
            _INSTALL[peer.kind](peer.package, place)
        except (OSError, subprocess.SubprocessError) as error:
            missing.append(Row(name=name, note=f"not installed: {_last_words(error)}"))
        else:
            own = os.path.join(folder, name.replace(" ", "-"))
            os.makedirs(own, exist_ok=True)
            found[name] = peer.program(place, own, url)
    return found, missing


def _last_words(error: Exception) -> str:
    output = getattr(error, "stderr", None) or b""
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else str(error)


def _with_pip(package: str, place: str) -> None:
    if os.path.exists(os.path.join(place, "installed")):
        return
    shutil.rmtree(place, ignore_errors=True)
    _do([PYTHON, "-m", "venv", place])
    _do([os.path.join(place, "bin", "python"), "-m", "pip", "install", "-q", *package.split()])
    open(os.path.join(place, "installed"), "w").close()


def _with_npm(package: str, place: str) -> None:
    if os.path.exists(os.path.join(place, "installed")):
        return
    shutil.rmtree(place, ignore_errors=True)
    os.makedirs(place)
    _do(["npm", "install", "--no-audit", "--no-fund", "--prefix", place, package])
    open(os.path.join(place, "installed"), "w").close()


def _do(argv: list[str]) -> None:
    subprocess.run(argv, check=True, capture_output=True, timeout=INSTALL_S)


_INSTALL = {"pip": _with_pip, "npm": _with_npm}


def _claude(place: str, own: str, url: str) -> Program:
    return Program(
        argv=[os.path.join(place, "node_modules", ".bin", "claude"), "-p", PROMPT],
        env={"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"},
        cwd=own,
    )


def _codex(place: str, own: str, url: str) -> Program:
    with open(os.path.join(own, "config.toml"), "w", encoding="utf-8") as file:
        file.write(
            'model = "gpt-bench"\nmodel_provider = "bench"\n'
            '[model_providers.bench]\nname = "bench"\nwire_api = "responses"\n'
            f'base_url = "{url}/v1"\nenv_key = "OPENAI_API_KEY"\n'
        )
    binary = os.path.join(place, "node_modules", ".bin", "codex")
    return Program(
        argv=[binary, "exec", "--skip-git-repo-check", PROMPT], env={"CODEX_HOME": own}, cwd=own
    )


def _script(code: str, **env: str) -> Callable[[str, str, str], Program]:
    def program(place: str, own: str, url: str) -> Program:
        python = os.path.join(place, "bin", "python")
        return Program(argv=[python, "-c", code], env=env, cwd=own)

    return program


_CLAUDE_AGENT_SDK = """
import asyncio
from claude_agent_sdk import query
async def main():
    async for message in query(prompt="Say done."):
        pass
asyncio.run(main())
"""

_OPENAI_AGENTS = """
from agents import Agent, Runner
print(Runner.run_sync(Agent(name="bench", instructions="Be brief."), "Say done.").final_output)
"""

_PYDANTIC_AI = """
from pydantic_ai import Agent
print(Agent("anthropic:claude-sonnet-4-5").run_sync("Say done.").output)
"""

_DEEPAGENTS = """
from deepagents import create_deep_agent
agent = create_deep_agent(model="anthropic:claude-sonnet-4-5")
agent.invoke({"messages": [{"role": "user", "content": "Say done."}]})
"""

_SMOLAGENTS = """
import os
from smolagents import OpenAIServerModel, ToolCallingAgent
model = OpenAIServerModel(
    model_id="gpt-bench", api_base=os.environ["OPENAI_BASE_URL"], api_key="sk-bench")
ToolCallingAgent(tools=[], model=model, max_steps=1).run("Say done.")
"""

_MINI = """
import os
from minisweagent.models.litellm_model import LitellmModel
from minisweagent.environments.local import LocalEnvironment
from minisweagent.agents.default import DefaultAgent
import minisweagent, pathlib, yaml
folder = pathlib.Path(minisweagent.__file__).parent / "config"
config = next(p for p in (folder / "default.yaml", folder / "mini.yaml") if p.exists())
settings = yaml.safe_load(config.read_text())["agent"]
for name in ("mode", "confirm_exit", "whitelist_actions"):
    settings.pop(name, None)
settings["step_limit"] = 1
model = LitellmModel(
    model_name="openai/gpt-bench",
    model_kwargs={"api_base": os.environ["OPENAI_BASE_URL"], "api_key": "sk-bench"})
DefaultAgent(model, LocalEnvironment(), **settings).run("Say done.")
"""

PEERS = {
    "codex exec": Peer(kind="npm", package="@openai/codex", program=_codex),
    "claude -p": Peer(kind="npm", package="@anthropic-ai/claude-code", program=_claude),
    "claude-agent-sdk": Peer(
        kind="pip", package="claude-agent-sdk", program=_script(_CLAUDE_AGENT_SDK)
    ),
    "openai-agents": Peer(
        kind="pip",
        package="openai-agents",
        program=_script(_OPENAI_AGENTS, OPENAI_AGENTS_DISABLE_TRACING="1"),
    ),
    "pydantic-ai": Peer(kind="pip", package="pydantic-ai", program=_script(_PYDANTIC_AI)),
    "deepagents": Peer(
        kind="pip", package="deepagents langchain-anthropic", program=_script(_DEEPAGENTS)
    ),
    "smolagents": Peer(kind="pip", package="smolagents openai", program=_script(_SMOLAGENTS)),
    "mini-swe-agent": Peer(
        kind="pip",
        package="mini-swe-agent",
        program=_script(_MINI, MSWEA_CONFIGURED="true", MSWEA_COST_TRACKING="ignore_errors"),
    ),
}
