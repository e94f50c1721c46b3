"""An agent that keeps notes on its own session, by forking itself in the background.

    python examples/session_memory.py                          with no key, in this directory
    python examples/session_memory.py --model claude-sonnet-4-5 "What is here?" "And the tests?"

The agent talks with a model and reads files. When its conversation has grown by so many tokens and
tool calls since the last notes, it forks: a confined process of its own, which knows everything up
to now, may edit session-memory.md and nothing else, and is then forgotten. The agent does not wait
for it, and nothing of the fork appears in its own messages.
"""

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

import forkrun
from forkrun.models import open_model

MEMORY = "session-memory.md"
RULES = (f"edit_file({MEMORY})", f"read_file({MEMORY})")  # the one file, and nothing else
NOTES_PROMPT = f"""\
Bring the notes of this session in {MEMORY} up to date: what was asked, what was found and decided,
which files matter, what is still open. Keep what is there and still true. Edit that file only, then
say in one sentence what you noted."""
PROMPTS = ("What is this project about? See README.md.", "Which licence does it have? See LICENSE.")


def tool(name: str, description: str, *fields: str) -> dict[str, Any]:
    """Describe a tool whose inputs are all texts."""
    properties = {field: {"type": "string"} for field in fields}
    schema = {"type": "object", "properties": properties, "required": list(fields)}
    return {"name": name, "description": description, "input_schema": schema}


# A fork shows the model this very list: that is what keeps the prompt cache warm. What the fork may
# do with it is judged when a tool runs.
TOOLS = [
    tool("read_file", "Read a file.", "file_path"),
    tool("edit_file", "Replace text in a file.", "file_path", "old_string", "new_string"),
]


class Agent:
    """A conversation, and the notes on it."""

    def __init__(self, runner: forkrun.Runner, options: argparse.Namespace) -> None:
        self.messages: list[dict[str, Any]] = []
        self.taken: list[forkrun.Result] = []
        self.forked: list[str] = []  # the messages, as they were at each fork
        self._runner = runner
        self._options = options
        self._model = open_model(options.model, environ=os.environ)
        self._requests = 0
        self._noted_tokens = self._noted_calls = self._calls = 0
        self._taking: asyncio.Task[None] | None = None

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of `messages.create`, as they stand now."""
        return {
            "model": self._options.model,
            "max_tokens": 4_000,
            "system": "You help with the project in the working directory. Read before you answer.",
            "tools": TOOLS,
            "messages": self.messages,
        }

    async def talk(self, prompt: str) -> str:
        """Answer one prompt, with as many tool calls as it takes."""
        self.messages.append({"role": "user", "content": prompt})
        while True:
            content = await self._ask()
            self.messages.append({"role": "assistant", "content": content})
            self._take_notes_when_due()
            calls = [block for block in content if block["type"] == "tool_use"]
            if not calls:
                return "".join(block.get("text", "") for block in content)
            self._calls += len(calls)
            self.messages.append({"role": "user", "content": [answer(call) for call in calls]})

    async def _ask(self) -> list[dict[str, Any]]:
        """Get one reply. An agent of yours has `client.messages.create(**self.params)` here."""
        frozen = forkrun.Snapshot.of(**self.params)
        params = {name: msgspec.Raw(value) for name, value in frozen.params}
        request = forkrun.Request(params=params, messages=frozen.messages, number=self._requests)
        self._requests += 1
        reply = await self._model.reply(request, lambda text: None)
        return [json.loads(block) for block in reply.content]

    # -- the notes ---------------------------------------------------------------------------

    def _take_notes_when_due(self) -> None:
        tokens = len(json.dumps(self.messages)) // 4
        is_due = (
            tokens - self._noted_tokens >= self._options.notes_after_tokens
            and self._calls - self._noted_calls >= self._options.notes_after_calls
        )
        if is_due and self._taking is None:
            self._noted_tokens, self._noted_calls = tokens, self._calls
            self.forked.append(json.dumps(self.messages))
            self._taking = asyncio.create_task(
                self._take_notes(forkrun.Snapshot.of(**self.params))  # frozen here and now
            )
            tell(f"forked after {tokens} tokens and {self._calls} calls; the talk goes on")

    async def _take_notes(self, snapshot: forkrun.Snapshot) -> None:
        """Fork. A call that was open at that moment is closed in the fork alone."""
        try:
            result = await self._runner.run(
                NOTES_PROMPT,
                snapshot=snapshot,
                model=self._options.notes_model,
                allow=RULES,
                limits=forkrun.Limits(max_turns=6, timeout_s=300),
            )
            self.taken.append(result)
            said = result.summary.partition("\n")[0]
            tell(f"notes: {result.stop_reason}, cache {result.cache.verdict}: {said!r}")
        except forkrun.ForkrunError as error:
            tell(f"no notes: {error}")
        finally:
            self._taking = None

    async def close(self) -> None:
        """Wait for notes that are being taken."""
        if self._taking is not None:
            await self._taking
        await self._model.close()


def answer(call: dict[str, Any]) -> dict[str, Any]:
    """Run a tool of the parent's own, in this process."""
    given, block = call["input"], {"type": "tool_result", "tool_use_id": call["id"]}
    try:
        path = Path(given["file_path"])
        text = path.read_text()
        if call["name"] == "edit_file":
            path.write_text(text.replace(given["old_string"], given["new_string"], 1))
            return block | {"content": "done"}
        lines = text.splitlines()[:500]
        numbered = (f"{number:6}\t{line}" for number, line in enumerate(lines, start=1))
        return block | {"content": "\n".join(numbered) or "(empty)"}
    except (OSError, KeyError, UnicodeDecodeError) as error:
        return block | {"content": f"{type(error).__name__}: {error}", "is_error": True}


def tell(text: str) -> None:
    """Say something that is not part of the talk."""
    print(f"[{text}]", file=sys.stderr)


async def main(options: argparse.Namespace) -> int:
    """Talk; then show that the notes are written and that the agent's own messages are not."""
    memory = Path(MEMORY)
    if not memory.exists():
        memory.write_text("# Session memory\n")
    before = memory.read_text()
    async with forkrun.Runner() as runner:
        agent = Agent(runner, options)
        for prompt in options.prompts or PROMPTS:
            print(f"> {prompt}\n{await agent.talk(prompt)}\n")
        await agent.close()
    own = json.dumps(agent.messages)
    is_unchanged = all(own.startswith(forked[:-1]) for forked in agent.forked)
    tell(f"{len(agent.messages)} messages of its own, unchanged since each fork: {is_unchanged}")
    tell(f"{MEMORY} was changed: {memory.read_text() != before}")
    print(memory.read_text())
    return 0 if agent.taken and all(r.stop_reason == "completed" for r in agent.taken) else 1


def options_of(argv: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="An agent that keeps notes on its own session.")
    parser.add_argument("--model", default="offline", help="a Claude model, script:FILE or offline")
    parser.add_argument("--notes-model", help="that of the fork (default: the same)")
    parser.add_argument("--notes-after-tokens", type=int, default=500, metavar="N")
    parser.add_argument("--notes-after-calls", type=int, default=1, metavar="N")
    parser.add_argument("prompts", nargs="*", metavar="PROMPT")
    options = parser.parse_args(argv)
    if options.notes_model is None and options.model.startswith("script:"):
        parser.error("a script for the agent needs another one for its notes: --notes-model")
    return options


if __name__ == "__main__":
    sys.exit(asyncio.run(main(options_of(sys.argv[1:]))))
