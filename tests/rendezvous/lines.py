"""Doubles for everything that tests channels.

In: nothing. Out: a handler that records, words to send, and both ends of a line.
Never: asserts.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from omni_async.abc import Channel, Channels, Dialer, Listener
from omni_async.model import Endpoint
from omni_async.rendezvous.messages import WIRE, Hello, Message, Regions, RegionWord, Want


def hello(role: str, namespace: str, **changes: Any) -> Hello:
    fields: dict[str, Any] = {
        "wire": WIRE,
        "incarnation": uuid.uuid4().hex,
        "role": role,
        "namespace": namespace,
        "stage": "0" if role == "sender" else "1",
        "rank": 0,
        "replica": 0,
        "pid": os.getpid(),
        "backend": "SharedMemoryConnector",
        "verb": "map",
    }
    return Hello(**{**fields, **changes})


def want(op: int, key: str = "k") -> Want:
    return Want(op=op, from_stage="0", to_stage="1", key=key)


def regions(count: int, *, descriptor: bytes = b"") -> Regions:
    added = [RegionWord(id, 4096, 4096, descriptor, True) for id in range(count)]
    return Regions(added=added)


class Recorder:
    """A handler; ``next(kind)`` waits for the next event of that kind."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []
        self.channels: list[Channel] = []
        self.words: list[Message] = []
        self.fds: list[list[int]] = []
        self._queues: dict[str, asyncio.Queue[Any]] = {}
        self.depth = 0
        self.answer: Sequence[Message] = ()

    def queue(self, kind: str) -> asyncio.Queue[Any]:
        return self._queues.setdefault(kind, asyncio.Queue())

    async def next(self, kind: str, timeout: float = 30.0) -> Any:
        return await asyncio.wait_for(self.queue(kind).get(), timeout)

    def _note(self, kind: str, what: Any) -> None:
        assert self.depth == 0, f"{kind} was called from inside another call"
        self.events.append((kind, what))
        self.queue(kind).put_nowait(what)

    def opened(self, channel: Channel) -> None:
        self.channels.append(channel)
        self._note("opened", channel)

    def received(self, channel: Channel, message: Message, fds: list[int]) -> None:
        self.words.append(message)
        self.fds.append(fds)
        self._note("received", message)
        self.depth += 1
        for word in self.answer:
            channel.send(word)
        self.depth -= 1

    def silent(self, channel: Channel, seconds: float) -> None:
        self._note("silent", seconds)

    def ended(self, channel: Channel, error: Exception | None) -> None:
        self._note("ended", error)


class Pair:
    """Both ends of a line in one loop."""

    def __init__(self, channels: Channels, namespace: str) -> None:
        self.channels = channels
        self.endpoint = Endpoint(namespace, "0", 0, 0)
        self.sender = Recorder()
        self.receiver = Recorder()
        self.listener: Listener
        self.dialer: Dialer
        self.tx: Channel
        self.rx: Channel

    async def open(self) -> None:
        namespace = self.endpoint.namespace
        self.listener = await self.channels.listen(
            self.endpoint, hello("sender", namespace), self.sender
        )
        self.dialer = self.channels.dial(
            self.listener.address, hello("receiver", namespace), self.receiver
        )
        self.tx = await self.sender.next("opened")
        self.rx = await self.receiver.next("opened")

    def close(self) -> None:
        self.dialer.close()
        self.listener.close()
        for channel in self.sender.channels:
            channel.close()


@asynccontextmanager
async def pair(channels: Channels, namespace: str) -> AsyncIterator[Pair]:
    ends = Pair(channels, namespace)
    await ends.open()
    try:
        yield ends
    finally:
        ends.close()
        await asyncio.sleep(0)
