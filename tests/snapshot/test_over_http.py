"""Forks against a strict server on the loopback: what really goes over the wire."""

import asyncio
import copy
import json

import pytest
from messages_server import MessagesServer
from support_cli import call

from forkrun.job import Job
from forkrun.runner import Runner
from forkrun.snapshot.freeze import Snapshot

MARK = {"cache_control": {"type": "ephemeral"}}
PARENT = {
    "model": "claude-test",
    "max_tokens": 900,
    "system": [{"type": "text", "text": "You are the parent."} | MARK],
    "tools": [{"name": "bash", "input_schema": {"type": "object"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "begin"} | MARK]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": " so\u2028 ", "signature": "Ab+/=="},
                {
                    "type": "tool_use",
                    "id": "toolu_parent",
                    "name": "spawn",
                    "input": {"z": 1.50, "a": 2},
                },
            ],
        },
    ],
}


def forked(server, cwd, *, count=1, **options):
    """Run forks of the parent at once; give their results and the parent's parameters afterwards."""
    parent = copy.deepcopy(PARENT)
    snapshot = Snapshot.from_params(parent)
    environ = {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": "k", "PATH": "/usr/bin:/bin"}

    async def run_all():
        async with Runner(environ=environ) as runner, asyncio.timeout(100):
            jobs = [Job(prompt=f"task {n}", cwd=str(cwd), **options) for n in range(count)]
            return await asyncio.gather(*(runner.run(job, snapshot=snapshot) for job in jobs))

    results = asyncio.run(run_all())
    assert parent == PARENT
    return results


def test_twenty_turns_share_every_byte_of_the_parent(tmp_path):
    """Each of twenty requests begins with the parent's bytes, and the strict server takes all."""
    lines = [call("bash", command=f"echo {n}") for n in range(19)]
    with MessagesServer([*lines, {"text": "counted"}]) as server:
        (result,) = forked(server, tmp_path, sandbox="best-effort")
    bodies = [request.body for request in server.messages]
    whole = b",".join(Snapshot.from_params(PARENT).messages)
    prefix = bodies[0][: bodies[0].index(whole) + len(whole)]
    assert (result.stop_reason, result.summary, len(bodies)) == ("completed", "counted", 20)
    assert all(body.startswith(prefix) for body in bodies)
    for body in bodies:
        sent = json.loads(body)
        assert {name: sent[name] for name in PARENT if name != "messages"} == {
            name: value for name, value in PARENT.items() if name != "messages"
        }
    assert result.repair.tool_use_ids == ("toolu_parent",)


def test_siblings_wait_for_the_first_byte_of_the_first(tmp_path):
    """While the first of five is unanswered, no other request is out; then all come."""
    seen_at_answer = []

    def answer(request):
        if len(server.messages) == 1:
            with pytest.raises(AssertionError):
                server.wait_for(2, timeout_s=1.0)
        seen_at_answer.append(len(server.messages))
        return {"text": "done"}

    with MessagesServer(answer) as server:
        results = forked(server, tmp_path, count=5, sandbox="best-effort")
    assert [result.stop_reason for result in results] == ["completed"] * 5
    assert seen_at_answer[0] == 1
    assert len(server.messages) == 5
