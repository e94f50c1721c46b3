"""What goes over the wire, through the command line: a parent's request and its fork's, in a trie.

The parent's request is sent by the anthropic package, as a parent would send it.
"""

import json
import subprocess
import sys

import pytest
from messages_server import MessagesServer
from support_cli import call, environment, run

PARENT = {
    "model": "claude-test",
    "max_tokens": 4096,
    "system": [
        {
            "type": "text",
            "text": "Du bist die Eltern: être.",
            "cache_control": {"type": "ephemeral"},
        }
    ],
    "tools": [
        {
            "name": "Bash",
            "description": "runs",
            "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}},
        },
        {"name": "Task", "input_schema": {"type": "object", "properties": {}}},
    ],
    "stop_sequences": ["\n\nHalt"],
    "metadata": {"user_id": "u"},
    "messages": [
        {"role": "user", "content": "begin / \u2028 \U0001f600"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look."},
                {
                    "type": "tool_use",
                    "id": "toolu_1",
                    "name": "Bash",
                    "input": {"b": 1.5, "a": "é"},
                },
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "content": "found\n",
                    "cache_control": {"type": "ephemeral"},
                }
            ],
        },
    ],
}
SEND = """
import anthropic, json, sys
client = anthropic.Anthropic(max_retries=0)
with client.messages.stream(**json.load(open(sys.argv[1]))) as stream:
    stream.get_final_message()
"""


class Trie:
    """Request bodies by their bytes, in pieces of 16: how much of a new one has been seen before."""

    SIZE = 16

    def __init__(self):
        self._root = {}

    def add(self, body):
        """Take a body; give how many of its first bytes an earlier one began with."""
        node, shared, is_known = self._root, 0, True
        for at in range(0, len(body), self.SIZE):
            piece = body[at : at + self.SIZE]
            is_known = is_known and piece in node
            shared += len(piece) * is_known
            node = node.setdefault(piece, {})
        return shared


def without_messages(body):
    return {name: value for name, value in json.loads(body).items() if name != "messages"}


@pytest.mark.slow
def test_a_fork_shares_the_whole_request_of_its_parent(tmp_path):
    """Its first request and the one twenty turns later begin with all of the parent's bytes."""
    ws = tmp_path / "ws"
    ws.mkdir()
    params, snapshot = tmp_path / "params.json", tmp_path / "parent.json"
    params.write_text(json.dumps(PARENT))
    steps = [call("Bash", command=f"echo {number}") for number in range(20)]
    with MessagesServer([{"text": "hm"}, *steps, {"text": "counted"}]) as server:
        env = environment(tmp_path, ANTHROPIC_BASE_URL=server.url, ANTHROPIC_API_KEY="k")
        subprocess.run([sys.executable, "-c", SEND, str(params)], env=env, check=True)
        snapshot.write_bytes(server.messages[0].body)  # the very request of the parent
        done = run(
            *("spawn", "--snapshot", snapshot, "--prompt", "count", "--output-format", "json"),
            *("--deny", "bash(rm:*)", "--append-system-prompt", "You count."),
            cwd=ws,
            env=env,
            check=0,
        )
    bodies = [request.body for request in server.messages]
    assert json.loads(done.stdout)["summary"] == "counted" and len(bodies) == 22
    parent, *forks = bodies
    # All of the parent's blocks: the fork's directive joins its last message, before the "]}".
    prefix = parent.index(b']}],"model"')
    trie = Trie()
    trie.add(parent)
    for body in forks:
        assert trie.add(body) >= prefix - Trie.SIZE
        assert body[:prefix] == parent[:prefix]
        assert without_messages(body) == without_messages(parent)
    last = json.loads(forks[-1])["messages"]
    assert len(last) == 2 * 20 + len(PARENT["messages"])
    assert len({request.header("anthropic-beta") for request in server.messages}) == 1


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_a_parent_with_a_client_of_its_own_is_shared_too(tmp_path, separators):
    """Whatever wrote the parent's body, in whatever order: the fork's begins with the same bytes.

    Model and max_tokens among them; FORKRUN_MODEL does not count in a fork.
    """
    ws, snapshot = tmp_path / "ws", tmp_path / "parent.json"
    ws.mkdir()
    parent = json.dumps(PARENT, separators=separators).encode()
    snapshot.write_bytes(parent)
    with MessagesServer([call("Bash", command="true"), {"text": "done"}]) as server:
        env = environment(tmp_path, ANTHROPIC_BASE_URL=server.url, ANTHROPIC_API_KEY="k")
        env["FORKRUN_MODEL"] = "offline"
        run("spawn", "--snapshot", snapshot, "--prompt", "x", cwd=ws, env=env, check=0)
    for request in server.messages:
        assert request.body.startswith(parent.removesuffix(b"]}]}"))
        assert request.json["stream"] is True
