"""The first words: who is let in, what both sides learn when somebody is not."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_async.errors import ProtocolError
from omni_async.model import Endpoint
from omni_async.rendezvous.handshake import disagreement, first_word
from omni_async.rendezvous.messages import WIRE, Bye, Hello, encode
from omni_async.rendezvous.unix_channel import UnixChannels, UnixListener
from tests.rendezvous.lines import Recorder, hello, want
from tests.rendezvous.test_unix_framing import feed, frame

OTHER_USER = 65534

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")


class Door:
    """A listener and what it heard."""

    def __init__(self, namespace: str, **options: Any) -> None:
        self.channels = UnixChannels(**options)
        self.endpoint = Endpoint(namespace, "0", 0, 0)
        self.namespace = namespace
        self.handler = Recorder()
        self.listener: UnixListener

    async def open(self) -> None:
        self.listener = await self.channels.listen(
            self.endpoint, hello("sender", self.namespace), self.handler
        )

    def knock(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)
        sock.connect("\0" + self.listener.address.removeprefix("unix:@"))
        return sock

    async def until_dropped(self, count: int) -> None:
        async def wait() -> None:
            while self.listener.dropped < count:  # noqa: ASYNC110 - a counter has no event
                await asyncio.sleep(0.002)

        await asyncio.wait_for(wait(), 30)

    async def works(self) -> None:
        """Somebody who speaks well is let in."""
        handler = Recorder()
        dialer = self.channels.dial(
            self.listener.address, hello("receiver", self.namespace), handler
        )
        channel = await handler.next("opened")
        channel.send(want(1))
        assert await self.handler.next("received") == want(1)
        dialer.close()
        await self.handler.next("ended")

    def close(self) -> None:
        self.listener.close()
        for channel in self.handler.channels:
            channel.close()


@pytest.fixture
async def door(namespace: str) -> AsyncIterator[Door]:
    opened = Door(namespace)
    await opened.open()
    yield opened
    opened.close()


class TestDisagreement:
    @pytest.mark.parametrize(
        ("what", "value", "text"),
        [
            ("wire", 7, f"wire version differs: the receiver speaks 7, the sender speaks {WIRE}"),
            ("namespace", "b", "namespace differs: the receiver has 'b', the sender has 'n'"),
            ("backend", "X", "the receiver has 'X', the sender has 'SharedMemoryConnector'"),
            ("verb", "read", "the receiver has 'read', the sender has 'map'"),
            ("role", "sender", "both sides are a sender"),
        ],
    )
    def test_each_field(self, what: str, value: Any, text: str) -> None:
        mine, theirs = hello("sender", "n"), hello("receiver", "n")
        assert disagreement(mine, theirs) is None
        setattr(theirs, what, value)
        assert text in (disagreement(theirs, mine) or "")
        assert disagreement(mine, theirs) is not None

    def test_the_version_comes_first(self) -> None:
        theirs = hello("receiver", "other", wire=2)
        assert "wire version" in (disagreement(hello("sender", "n"), theirs) or "")

    def test_hello_of_a_wire_with_other_fields(self) -> None:
        body = msgspec.msgpack.encode([1, 99, {"new": "shape"}])
        with pytest.raises(ProtocolError, match="the sender speaks 1, the receiver speaks 99"):
            first_word(memoryview(body), "sender")

    def test_refusal(self) -> None:
        with pytest.raises(ProtocolError, match="it refused: because"):
            first_word(memoryview(encode(Bye("because"))), "sender")
        with pytest.raises(ProtocolError, match="it refused: no reason given"):
            first_word(memoryview(encode(Bye())), "sender")

    def test_another_word(self) -> None:
        with pytest.raises(ProtocolError, match="first word is Want, not Hello"):
            first_word(memoryview(encode(want(1))), "sender")

    @settings(max_examples=200, deadline=None)
    @given(
        st.binary(max_size=100)
        | st.lists(st.integers(-(2**63), 2**64 - 1)).map(msgspec.msgpack.encode)
    )
    def test_nonsense(self, body: bytes) -> None:
        with pytest.raises(ProtocolError):
            first_word(memoryview(body), "receiver")


class TestMismatch:
    @pytest.mark.parametrize(
        ("changes", "text"),
        [
            ({"wire": 2}, "the sender speaks 1, the receiver speaks 2"),
            ({"namespace": "other"}, "namespace differs"),
            ({"backend": "NixlConnector"}, "backend differs"),
            ({"verb": "read"}, "verb differs"),
            ({"role": "sender"}, "both sides are a sender"),
        ],
    )
    async def test_both_sides_learn_why(
        self, door: Door, changes: dict[str, Any], text: str
    ) -> None:
        handler = Recorder()
        mine = hello(**{"role": "receiver", "namespace": door.namespace, **changes})
        dialer = door.channels.dial(door.listener.address, mine, handler)
        assert await dialer.attempt() is None
        error = dialer.refused()
        assert isinstance(error, ProtocolError)
        assert text in str(error)
        assert f"process {os.getpid()}" in str(error)
        assert door.listener.dropped == 1
        assert isinstance(door.listener.last_drop, ProtocolError)
        assert text in str(door.listener.last_drop)
        assert handler.events == door.handler.events == []
        dialer.close()
        await door.works()

    async def test_listener_of_another_wire(self, namespace: str) -> None:
        """The other side need not even check: the dialer does."""
        server = socket.socket(socket.AF_UNIX)
        address = UnixChannels().address_of(Endpoint(namespace, "0", 0, 0))
        server.bind("\0" + address.removeprefix("unix:@"))
        server.listen()
        handler = Recorder()
        dialer = UnixChannels().dial(address, hello("receiver", namespace), handler)
        sock, _ = server.accept()
        sock.send(frame(msgspec.msgpack.encode([1, 2, "of", "another", "shape"])))
        assert await dialer.attempt() is None
        assert "the receiver speaks 1, the sender speaks 2" in str(dialer.refused())
        theirs, bye = feed_all(sock)
        assert isinstance(theirs, Hello)
        assert isinstance(bye, Bye)
        assert "the sender speaks 2" in bye.reason
        dialer.close()
        sock.close()
        server.close()


def feed_all(sock: socket.socket) -> list[Any]:
    from omni_async.rendezvous.framing import FrameReader

    return feed(FrameReader(), sock.recv(10_000))


class TestUnwelcome:
    async def test_who_says_nothing(self, namespace: str) -> None:
        door = Door(namespace, handshake_timeout=0.1)
        await door.open()
        sock = door.knock()
        await door.until_dropped(1)
        assert "no Hello within 0.1 s" in str(door.listener.last_drop)
        sock.setblocking(True)
        assert [type(word) for word in feed_all(sock)] == [Bye]
        sock.close()
        await door.works()
        door.close()

    @pytest.mark.parametrize(
        "data",
        [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100, frame(b"\xc1"), frame(encode(want(1)))],
    )
    async def test_who_speaks_nonsense(self, door: Door, data: bytes) -> None:
        sock = door.knock()
        sock.send(data)
        await door.until_dropped(1)
        assert isinstance(door.listener.last_drop, ProtocolError)
        await door.works()
        assert door.handler.words == [want(1)]
        sock.close()

    async def test_who_says_hello_without_end(self, door: Door) -> None:
        sock = door.knock()
        sock.send(struct.pack("<I", 1 << 20))
        await door.until_dropped(1)
        assert "limit is 65536" in str(door.listener.last_drop)
        sock.close()

    async def test_a_thousand_who_leave_at_once(self, door: Door) -> None:
        for count in range(1, 1001):
            sock = door.knock()
            if count % 2:
                sock.send(b"\x10")
            sock.close()
            if not count % 50:
                await door.until_dropped(count)
        await door.works()
        assert door.listener.dropped == 1000
        assert len(door.handler.channels) == 1

    async def test_who_leaves_after_a_good_hello(self, door: Door) -> None:
        sock = door.knock()
        sock.send(frame(encode(hello("receiver", door.namespace))))
        sock.close()
        await door.until_dropped(1)
        assert door.handler.events == []  # a line that never stood
        await door.works()

    async def test_closing_drops_who_has_not_said_hello(self, door: Door) -> None:
        sock = door.knock()
        await asyncio.sleep(0.01)
        door.listener.close()
        door.listener.close()
        sock.setblocking(True)
        assert sock.recv(10) == b""
        sock.close()


_STRANGER = """
import os, socket, sys
address, uid, mode = "\\0" + sys.argv[1], int(sys.argv[2]), sys.argv[3]
os.setuid(uid)
sock = socket.socket(socket.AF_UNIX)
if mode == "listen":
    sock.bind(address)
    sock.listen()
    print("ready", flush=True)
    listener, (sock, _) = sock, sock.accept()
else:
    sock.connect(address)
    print("ready", flush=True)
got = b""
while part := sock.recv(1000):
    got += part
print(len(got), flush=True)
sys.stdin.read()
"""


async def stranger(address: str, mode: str) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _STRANGER, address.removeprefix("unix:@"), str(OTHER_USER), mode),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    return process


async def leave(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    await process.stdout.read()
    await process.wait()


@needs_root
class TestAnotherUser:
    async def test_is_not_let_in_and_learns_nothing(self, door: Door) -> None:
        process = await stranger(door.listener.address, "connect")
        await door.until_dropped(1)
        error = door.listener.last_drop
        assert isinstance(error, ProtocolError)
        assert f"process {process.pid} belongs to user {OTHER_USER}" in str(error)
        assert f"this process to user {os.geteuid()}" in str(error)
        assert process.stdout is not None
        assert await process.stdout.readline() == b"0\n"
        await leave(process)
        await door.works()

    async def test_is_not_dialled_and_learns_nothing(self, namespace: str) -> None:
        channels = UnixChannels()
        address = channels.address_of(Endpoint(namespace, "0", 0, 0))
        process = await stranger(address, "listen")
        handler = Recorder()
        dialer = channels.dial(address, hello("receiver", namespace), handler)
        assert await dialer.attempt() is None
        error = dialer.refused()
        assert isinstance(error, ProtocolError)
        assert f"process {process.pid} belongs to user {OTHER_USER}" in str(error)
        assert f"this process to user {os.geteuid()}" in str(error)
        assert process.stdout is not None
        assert await process.stdout.readline() == b"0\n"
        dialer.close()
        await leave(process)

    async def test_squats_a_name(self, namespace: str) -> None:
        channels = UnixChannels()
        endpoint = Endpoint(namespace, "0", 0, 0)
        process = await stranger(channels.address_of(endpoint), "listen")
        with pytest.raises(ValueError, match=f"another user \\({OTHER_USER}") as caught:
            await channels.listen(endpoint, hello("sender", namespace), Recorder())
        assert f"process {process.pid}" in str(caught.value)
        assert "socket_dir" in str(caught.value)
        await leave(process)
