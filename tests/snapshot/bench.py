"""Print what freezing, repairing, forking and a turn cost, by the size of the history.

Run by hand: `python tests/snapshot/bench.py [MEGABYTES …]`. Freezing and repairing grow with the
history, once; a fork and a turn do not.
"""

import json
import sys
import time

from forkrun.conversation import Conversation
from forkrun.snapshot.fork import fork
from forkrun.snapshot.freeze import Snapshot

TURNS = 50


def history(megabytes: float) -> list[dict]:
    """Give a talk of about this size: calls with results of 4,000 characters."""
    messages = [{"role": "user", "content": "go"}]
    for turn in range(int(megabytes * 1e6 / 5000)):
        call = {"type": "tool_use", "id": f"t{turn}", "name": "bash", "input": {"command": "ls"}}
        found = {"type": "tool_result", "tool_use_id": f"t{turn}", "content": 'line "x"\n' * 400}
        messages += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [found]}]
    return [*messages, {"role": "assistant", "content": "ok"}]


def timed(act):
    start = time.perf_counter()
    done = act()
    return done, (time.perf_counter() - start) * 1e3


def turn_ms(conversation: Conversation, number: int) -> float:
    call = {"type": "tool_use", "id": f"n{number}", "name": "bash", "input": {}}
    found = {"type": "tool_result", "tool_use_id": f"n{number}", "content": "x" * 1000}
    start = time.perf_counter()
    conversation.add_assistant([json.dumps(call).encode()])
    conversation.add_user([json.dumps(found).encode()])
    conversation.request(number)
    return (time.perf_counter() - start) * 1e3


def bench(megabytes: float) -> None:
    messages = history(megabytes)
    snapshot, of_ms = timed(lambda: Snapshot.of(model="m", max_tokens=9, messages=messages))
    text = snapshot.to_json()
    snapshot, json_ms = timed(lambda: Snapshot.from_json(text))
    start, first_ms = timed(lambda: fork(snapshot, "count"))
    _, more_ms = timed(lambda: [fork(snapshot, f"count {n}") for n in range(50)])
    conversation = Conversation.fork(start)
    turns_ms = sorted(turn_ms(conversation, n) for n in range(TURNS))
    print(
        f"{len(text) / 1e6:7.1f} {len(messages):9} {of_ms:9.1f} {json_ms:10.1f} {first_ms:11.1f}"
        f" {more_ms / 50:13.3f} {turns_ms[TURNS // 2]:9.3f}"
    )


if __name__ == "__main__":
    print("     MB  messages  of (ms)  from_json  first fork  another fork      turn")
    for size in sys.argv[1:] or ["0.1", "1", "10", "30"]:
        bench(float(size))
