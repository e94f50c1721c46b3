"""Frames over one inherited socket: a length of 4 bytes (big-endian), then one msgpack message.

Both sides speak through here. The child reads with `Channel`, which blocks; the parent feeds what
it reads to `Frames`, which believes nothing: the length is checked before anything is allocated,
a message must decode into exactly the structs of `protocol`, and whatever does not is a
`ChannelError`.
"""

from __future__ import annotations

import functools
import select
import socket
from typing import Any, Generic, TypeVar

import msgspec

from forkrun.errors import ChannelError
from forkrun.protocol import MAX_FRAME_BYTES, Alive, Message

HEADER_BYTES = 4

M = TypeVar("M")


def encode(message: Message) -> bytes:
    """Give the frame of a message. Raises ChannelError when it is larger than a frame may be."""
    body = msgspec.msgpack.encode(message)
    return frame_header(len(body)) + body


def frame_header(size: int) -> bytes:
    """Give the header of a frame of `size` bytes, which must be within the cap."""
    if not 0 < size <= MAX_FRAME_BYTES:
        raise ChannelError(f"a frame has 1 to {MAX_FRAME_BYTES} bytes, not {size}")
    return size.to_bytes(HEADER_BYTES, "big")


def frame_size(header: bytes) -> int:
    """Read the header of a frame; raise ChannelError when it is over the cap or zero."""
    size = int.from_bytes(header, "big")
    frame_header(size)
    return size


@functools.cache
def decoder_of(messages: Any) -> msgspec.msgpack.Decoder[Any]:
    """Give the decoder of a union of messages; to make one takes a millisecond."""
    return msgspec.msgpack.Decoder(messages)


class Decoder(Generic[M]):
    """Decodes the bodies of frames into messages of one union."""

    def __init__(self, messages: Any) -> None:
        """`messages` is the union of the structs that may come."""
        self._decoder: msgspec.msgpack.Decoder[M] = decoder_of(messages)

    def decode(self, body: bytes) -> M:
        """Decode one body. Raises ChannelError for anything that is not one of the messages."""
        try:
            return self._decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ChannelError(f"a frame that is no message: {error}") from error


class Channel(Generic[M]):
    """The blocking end of a channel, for the child. EOF means that the parent is gone."""

    def __init__(self, sock: socket.socket, messages: Any) -> None:
        self._sock = sock
        self._decoder: Decoder[M] = Decoder(messages)

    def send(self, message: Message) -> None:
        """Send one message. Raises ChannelError when the parent is gone."""
        try:
            self._sock.sendall(encode(message))
        except OSError as error:
            raise ChannelError(f"the parent is gone: {error.strerror}") from error

    def receive(self) -> M:
        """Wait for one message. Raises ChannelError at end of file."""
        return self._decoder.decode(self._exactly(frame_size(self._exactly(HEADER_BYTES))))

    def has_message(self) -> bool:
        """Say whether something has come that was not read yet, or the end of file."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(0))

    def alive(self, call_id: str) -> None:
        """Tell the parent that a call which runs has shown a sign of life."""
        self.send(Alive(id=call_id))

    def fileno(self) -> int:
        """Give the descriptor of the socket."""
        return self._sock.fileno()

    def _exactly(self, size: int) -> bytes:
        buffer = bytearray(size)
        view = memoryview(buffer)
        while view:
            got = self._sock.recv_into(view)
            if not got:
                raise ChannelError("the parent is gone: end of file on the channel")
            view = view[got:]
        return bytes(buffer)
