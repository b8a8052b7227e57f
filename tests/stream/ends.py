"""Both ends of an edge with an adapter at each, in one loop.

In: a backend, a namespace, options of the adapters. Out: a producer and a consumer.
Never: leaves a transport open, or a request behind in an adapter that was not told to fail.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from omni_async import ChunkReady, ChunkTransferAdapter, Edge, StreamFailed, StreamFinished
from omni_async.stream import Event
from omni_async.transport import Transport
from omni_async.transport.streams import ChunkReader, ChunkWriter
from omni_async.transport.streams.keyed import KeyedStreams
from tests.pairs import open_pair


class KeyedEdge(Edge):
    """Streams as they are over a store, where no stream tells of anything by itself."""

    __slots__ = ("streams",)

    def __init__(self, edge: Edge) -> None:
        super().__init__(edge.transport, edge.name, edge.window, edge.knobs)
        self.streams = KeyedStreams(edge.transport)

    def writer(self, key: str, *, window: int | None = None) -> ChunkWriter:
        return self.streams.writer(self.transport.enter("sender", *self.name, key))

    def reader(self, key: str, *, window: int | None = None, metadata: Any = None) -> ChunkReader:
        return self.streams.reader(self.transport.enter("receiver", *self.name, key))


class Ends(NamedTuple):
    producer: ChunkTransferAdapter
    consumer: ChunkTransferAdapter
    sender: Transport
    receiver: Transport


@contextlib.asynccontextmanager
async def opened(
    backend: str,
    namespace: str,
    *,
    window: int = 32,
    keyed: bool = False,
    producer: dict[str, Any] | None = None,
    consumer: dict[str, Any] | None = None,
    **extra: Any,
) -> AsyncIterator[Ends]:
    async with open_pair(backend, namespace, **extra) as (sender, receiver):
        output = sender.edge("0", "1", window=window)
        input = receiver.edge("0", "1", window=window)
        if keyed:
            output, input = KeyedEdge(output), KeyedEdge(input)
        async with (
            ChunkTransferAdapter(None, output=output, **producer or {}) as writes,
            ChunkTransferAdapter(None, input=input, **consumer or {}) as reads,
        ):
            yield Ends(writes, reads, sender, receiver)


async def story(adapter: ChunkTransferAdapter, ends: int = 1) -> list[Event]:
    """All events until so many requests have ended."""
    told: list[Event] = []
    async for event in adapter.events():
        told.append(event)
        ends -= isinstance(event, (StreamFinished, StreamFailed))
        if not ends:
            break
    return told


def chunks(told: list[Event], request_id: str = "r") -> list[Any]:
    """The chunks of a request, whose indices have to count up."""
    found = [e for e in told if isinstance(e, ChunkReady) and e.request_id == request_id]
    assert [event.index for event in found] == list(range(len(found)))
    return [event.chunk for event in found]


def failure(told: list[Event], request_id: str = "r") -> StreamFailed:
    [found] = [e for e in told if isinstance(e, StreamFailed) and e.request_id == request_id]
    return found
