"""Streams over a store: each item under a key of its own, and nothing else between the two ends.

In: a transport that can put and get. Out: its writers and readers, and what all of them are at.
Never: asks again and again where the transport's own get waits.

A transport over a store makes one :class:`KeyedStreams` and answers :meth:`Transport.writer` and
:meth:`Transport.reader` by it. Its ``capabilities.credit`` is false, which is to say:

- a writer is held back by the store's space alone, however far its reader is behind;
- a writer does not learn that its reader has left or is gone; what was not read stays in the store until
  it expires, or until the sender cleans the request up;
- a chunk whose send was cancelled while the store took it is sent; ``sent`` tells, from the writer's next call on;
- a reader does not learn that its writer is gone, or has cleaned up: it gives up after its stall limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from time import time_ns
from typing import TYPE_CHECKING, Any, TypeVar

from ..._aio.deadline import seconds
from ..._aio.finish import finish_all
from ...errors import ClosedError, TransferCancelled, UsageError
from ...model import TransferKey
from ...observe.streams import Flowing, StreamMeters
from .keyed_reader import KeyedReader
from .keyed_writer import End, KeyedWriter

if TYPE_CHECKING:
    from ..base import Transport

STALL_SECONDS = 600.0
"""How long a reader waits for its next chunk, where nobody says otherwise."""

T = TypeVar("T")


class KeyedStreams:
    """All streams of one transport."""

    def __init__(
        self, transport: Transport, *, stall_timeout: float | None = STALL_SECONDS
    ) -> None:
        """``stall_timeout`` in seconds ends a reader's stream; ``None``: it waits for ever.

        Raises:
            UsageError: it is 0, negative or no number.
        """
        self._stall = seconds(stall_timeout, "stall_timeout")
        if self._stall == 0:
            raise UsageError("stall_timeout must be more than 0 s, or None for no limit")
        self.transport = transport
        self._writers: dict[TransferKey, KeyedWriter] = {}
        self._readers: dict[TransferKey, KeyedReader] = {}
        self._ends: dict[TransferKey, End] = {}
        """Ends on their way, which the next writer of the key waits for."""
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def meters(self) -> StreamMeters:
        return self.transport.meters

    # --- for the transport ------------------------------------------------------------------------

    def writer(self, where: TransferKey, window: int = 0) -> KeyedWriter:
        """A writer; ``window`` bounds nothing, as nobody tells what was read.

        Raises:
            UsageError: the key is too long for keys of items.
        """
        return KeyedWriter(self, where)

    def reader(
        self, where: TransferKey, window: int = 0, metadata: Mapping[str, Any] | None = None
    ) -> KeyedReader:
        """A reader; one item is got ahead of it, whatever ``window`` says.

        Raises:
            UsageError: the key is too long for keys of items.
        """
        return KeyedReader(self, where, metadata, self._stall)

    def cleanup(self, owner: str) -> int:
        """End the streams of a key of that name here; how many. What they put is the transport's."""
        text = f"{owner!r} was ended by cleanup"
        ended = 0
        streams: list[tuple[TransferKey, KeyedWriter | KeyedReader]]
        streams = [*self._writers.items(), *self._readers.items()]
        for where, stream in streams:
            if where.key == owner:
                backend = self.transport.capabilities.backend
                error = TransferCancelled(text, key=owner, edge=where.edge, backend=backend)
                ended += stream.fail(error)
        return ended

    def close(self, reason: str) -> None:
        """End all streams here: the transport is closed."""
        streams: list[tuple[TransferKey, KeyedWriter | KeyedReader]]
        streams = [*self._writers.items(), *self._readers.items()]
        for where, stream in streams:
            text = f"stream {where.key!r} on {where.edge}: {reason}"
            stream.fail(ClosedError(text))

    async def settle(self) -> None:
        """Wait until the ends of streams are in the store.

        Cancellation: ends when they are.
        """
        await finish_all(list(self._ends.values()))

    def flowing(self) -> Iterator[tuple[TransferKey, Flowing]]:
        """All open streams, for gauges."""
        yield from self._writers.items()
        yield from self._readers.items()

    # --- for writers and readers ------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def begin_writing(self, where: TransferKey, writer: KeyedWriter) -> tuple[int, End | None]:
        """The writer's generation, and the end that is still on its way."""
        if where in self._writers:
            raise UsageError(
                f"stream {where.key!r} on {where.edge} has a writer already; end that one first"
            )
        self._writers[where] = writer
        return time_ns(), self._ends.get(where)

    def ends_writing(self, where: TransferKey, end: End | None) -> None:
        del self._writers[where]
        if end is not None:
            self._ends[where] = end
            end.add_done_callback(lambda _: self._forget(where, end))

    def _forget(self, where: TransferKey, end: End) -> None:
        if self._ends.get(where) is end:
            del self._ends[where]

    def begin_reading(self, where: TransferKey, reader: KeyedReader) -> None:
        if where in self._readers:
            raise UsageError(
                f"stream {where.key!r} on {where.edge} has a reader already; leave that one first"
            )
        self._readers[where] = reader

    def ends_reading(self, where: TransferKey, reader: KeyedReader) -> None:
        if self._readers.get(where) is reader:
            del self._readers[where]
