"""The agent loop of the child: ask for a reply, run its calls, ask again, until told to finish.

The bounds are the broker's. The child could lie about what it did, but it cannot get one turn more.
"""

from __future__ import annotations

import time
from typing import Protocol

from forkrun.channel import Channel
from forkrun.protocol import Ask, Finish, Ran, Started, ToChild, ToolCall, ToolResult, Turn


class Tools(Protocol):
    """What the loop needs of a toolbox."""

    def run(self, call: ToolCall) -> ToolResult: ...


def run_loop(channel: Channel[ToChild], tools: Tools) -> str:
    """Serve turns until the broker says that the run is over; return the summary it derived."""
    channel.send(Ask())
    while isinstance(message := channel.receive(), Turn):
        for call in message.calls:
            channel.send(Started(id=call.id))
            began = time.monotonic()
            result = tools.run(call)
            channel.send(Ran(result=result, duration_s=time.monotonic() - began))
        channel.send(Ask())
    if not isinstance(message, Finish):
        raise TypeError(f"unexpected message in the loop: {type(message).__name__}")
    return message.summary
