"""Side channels for tests: both ends in one loop, or one end and a bare zmq socket.

In: a namespace. Out: fixtures ``ends``, ``wire`` and ``listening``, bare peers, and what they are told.
Never: asserts more than that a line comes about.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import zmq

from omni_async.model import Endpoint
from omni_async.rendezvous.messages import AnyMessage, Message, decode, encode
from omni_async.rendezvous.zmq_channel import ZmqChannels, ZmqLine, ZmqListener
from omni_async.rendezvous.zmq_context import new_socket
from omni_async.rendezvous.zmq_sockets import Frames, ReadySocket
from omni_async.rendezvous.zmq_words import packed
from tests.rendezvous.lines import Pair, Recorder, hello, pair, want

HOST = "127.0.0.1"


def local(**options: Any) -> ZmqChannels:
    return ZmqChannels(HOST, **options)


@pytest.fixture
async def ends(namespace: str) -> AsyncIterator[Pair]:
    async with pair(local(), namespace) as both:
        yield both


class Bare:
    """A zmq socket that says and hears messages as they are."""

    def __init__(self, address: str, kind: int = zmq.DEALER, **options: Any) -> None:
        socket = new_socket(kind)
        if kind == zmq.DEALER:
            socket.set(zmq.ROUTING_ID, options.get("routing_id", b"\1" + os.urandom(15)))
        socket.set(zmq.SNDHWM, 0)
        for name, value in options.items():
            if name.isupper():
                socket.set(getattr(zmq, name), value)
        if kind == zmq.ROUTER:
            socket.bind(address)
            self.address = socket.get_string(zmq.LAST_ENDPOINT)
        else:
            socket.connect(address)
        self.socket = socket
        self.heard: asyncio.Queue[list[bytes]] = asyncio.Queue()
        self.ready = ReadySocket(socket, self._heard)

    def _heard(self, frames: Frames) -> None:
        self.heard.put_nowait([frame.bytes for frame in frames])

    def say(self, *frames: bytes) -> None:
        self.ready.send(frames)

    def word(self, *words: Message) -> None:
        self.say(b"".join(packed(word) for word in words))

    def has_come(self) -> bool:
        """Wait for a message, and give the loop no turn meanwhile."""
        came = bool(self.socket.poll(5000))
        self.ready.look_soon()  # the question has swallowed the telling
        return came

    async def next(self, timeout: float = 30.0) -> list[bytes]:
        return await asyncio.wait_for(self.heard.get(), timeout)

    async def words(self, timeout: float = 30.0) -> list[AnyMessage]:
        """The words of the next message; none for the end of a line."""
        return words_of((await self.next(timeout))[-1])

    async def hello(self, namespace: str, **changes: Any) -> AnyMessage:
        self.word(hello("receiver", namespace, **changes))
        (answer,) = await self.words()
        return answer

    def close(self, linger: float = 0.3) -> None:
        self.ready.close(linger)


def words_of(body: bytes) -> list[AnyMessage]:
    found = []
    while body:
        (length,) = struct.unpack_from("<I", body)
        found.append(decode(body[4 : 4 + length]))
        body = body[4 + length :]
    return found


def sealed(*bodies: bytes) -> bytes:
    """Bodies of words, good or bad, in one message."""
    return b"".join(struct.pack("<I", len(body)) + body for body in bodies)


def word_bytes(*words: Message) -> bytes:
    return sealed(*map(encode, words))


async def until(true: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for something that nobody tells."""
    over = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < over, "it has not come true"
        await asyncio.sleep(0.002)


class Listening:
    """A sender that listens, and nobody yet."""

    def __init__(self, listener: ZmqListener, handler: Recorder, namespace: str) -> None:
        self.listener = listener
        self.handler = handler
        self.namespace = namespace
        self.bares: list[Bare] = []

    @property
    def address(self) -> str:
        return self.listener.address

    def bare(self, kind: int = zmq.DEALER, **options: Any) -> Bare:
        one = Bare(self.address, kind, **options)
        self.bares.append(one)
        return one

    async def until_dropped(self, count: int) -> None:
        await until(lambda: self.listener.dropped >= count)

    async def works(self) -> None:
        """Somebody who speaks well is let in, and heard."""
        bare = self.bare()
        await bare.hello(self.namespace)
        await self.handler.next("opened")
        bare.word(want(99))
        while await self.handler.next("received") != want(99):
            pass
        bare.close()
        await self.handler.next("ended")


@asynccontextmanager
async def listens(channels: ZmqChannels, namespace: str) -> AsyncIterator[Listening]:
    handler = Recorder()
    listener = await channels.listen(
        Endpoint(namespace, "0", 0, 0), hello("sender", namespace), handler
    )
    house = Listening(listener, handler, namespace)
    try:
        yield house
    finally:
        for bare in house.bares:
            bare.close()
        listener.close()
        for channel in handler.channels:
            channel.close()


@pytest.fixture
async def listening(namespace: str) -> AsyncIterator[Listening]:
    async with listens(local(), namespace) as house:
        yield house


class Wire:
    """A sender's line whose other end is a bare socket, after the handshake."""

    def __init__(self, house: Listening) -> None:
        self.house = house
        self.handler = house.handler
        self.bare = house.bare()
        self.line: ZmqLine

    async def open(self) -> None:
        await self.bare.hello(self.house.namespace)
        line = await self.handler.next("opened")
        assert isinstance(line, ZmqLine)
        self.line = line


@asynccontextmanager
async def wired(channels: ZmqChannels, namespace: str) -> AsyncIterator[Wire]:
    async with listens(channels, f"{namespace}-wire") as house:
        bare = Wire(house)
        await bare.open()
        yield bare


@pytest.fixture
async def wire(namespace: str) -> AsyncIterator[Wire]:
    async with wired(local(), namespace) as bare:
        yield bare
