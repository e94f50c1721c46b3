"""What a worker-to-be and the PID 1 of a sandbox that was begun tell each other, over one socket.

    worker ── the spec, and the socket for the upper directory ──▶ PID 1
           ── ready to leave the old root ──▶
           ◀── go, or a fault ──

Both are ours, and nothing else has either end.
"""

from __future__ import annotations

import contextlib
import marshal
import socket
from typing import NamedTuple

from .fault import SandboxFault
from .spec import Shape, Spec, pack, unpack

FAULT = b"f"
MAX_FAULT_BYTES = 65536


class Begun(NamedTuple):
    """A sandbox that was begun, held by the process that will work in it. PID 1 and the namespaces
    are there, and PID 1 builds what it can of the view until `link`, a socket, tells it the spec.

    A `fault` is what came of the attempt; the process that holds it is PID 1 itself then.
    """

    shape: Shape
    link: socket.socket | None
    fault: SandboxFault | None = None


def tell(link: socket.socket, spec: Spec, *, upper_socket: int) -> None:
    """Tell PID 1 what to build; `upper_socket` is -1 where nobody wants the upper directory."""
    packed = marshal.dumps(pack(spec))
    head = len(packed).to_bytes(4, "big")
    # Where PID 1 has met a fault it listens no more; which, stands in the socket.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        socket.send_fds(link, [head], [upper_socket] if upper_socket >= 0 else [])
        link.sendall(packed)


def told(link: socket.socket) -> tuple[Spec, int] | None:
    """Give the spec and the socket for its upper directory (-1: none); None at the end of file."""
    head, descriptors, _, _ = socket.recv_fds(link, 4, 1)
    if len(head) < 4:
        return None
    packed = link.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)
    if len(packed) < int.from_bytes(head, "big"):
        return None
    spec = unpack(marshal.loads(packed))  # noqa: S302 - the worker's, before it is told anything
    return spec, (descriptors[0] if descriptors else -1)


def packed_fault(fault: SandboxFault) -> bytes:
    """Give a fault as bytes."""
    return marshal.dumps((fault.layer, fault.reason, fault.errno))


def unpacked_fault(packed: bytes) -> SandboxFault:
    """Give the fault of which these are the bytes."""
    layer, reason, number = marshal.loads(packed)  # noqa: S302 - PID 1's
    return SandboxFault(layer, reason, errno=number)
