"""Lines for tests: both ends in one loop, or one end and a bare socket.

In: a namespace. Out: fixtures ``ends`` and ``wire``, and what lies in a socket.
Never: asserts more than that a line comes about.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator

import pytest

from omni_async.rendezvous.messages import encode
from omni_async.rendezvous.unix_channel import UnixChannels, UnixLine
from tests.rendezvous.lines import Pair, Recorder, hello, pair
from tests.rendezvous.test_unix_framing import frame


@pytest.fixture
async def ends(namespace: str) -> AsyncIterator[Pair]:
    async with pair(UnixChannels(), namespace) as both:
        yield both


class Wire:
    """The other end of a line as a bare socket, after the handshake."""

    def __init__(self) -> None:
        self.handler = Recorder()
        self.line: UnixLine
        self.sock: socket.socket

    async def open(self, namespace: str, **options: float) -> None:
        channels = UnixChannels(**options)  # type: ignore[arg-type]
        ends = Pair(channels, f"{namespace}-wire")
        self.listener = await channels.listen(
            ends.endpoint, hello("sender", ends.endpoint.namespace), self.handler
        )
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.setblocking(False)
        self.sock.connect("\0" + self.listener.address.removeprefix("unix:@"))
        self.sock.send(frame(encode(hello("receiver", ends.endpoint.namespace))))
        line = await self.handler.next("opened")
        assert isinstance(line, UnixLine)
        self.line = line
        assert self.sock.recv(1000)  # its Hello

    def close(self) -> None:
        self.line.close()
        self.listener.close()
        self.sock.close()


@pytest.fixture
async def wire(namespace: str) -> AsyncIterator[Wire]:
    bare = Wire()
    await bare.open(namespace)
    yield bare
    bare.close()


def drain(sock: socket.socket) -> list[int]:
    """Sizes of what lies in the socket, one for each write of a word's length or more."""
    sizes: list[int] = []
    while True:
        try:
            data = sock.recv(1 << 20)
        except BlockingIOError:
            return sizes
        if not data:
            return sizes
        sizes.append(len(data))


def drain_end(sock: socket.socket) -> bool:
    """Whether the other side has closed."""
    try:
        return not sock.recv(1 << 20)
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
