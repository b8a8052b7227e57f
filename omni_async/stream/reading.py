"""How the chunks of one request arrive: by callback where a stream tells of them, else by a task.

In: a stream. Out: chunks and boundaries in order, then why nothing comes behind them.
Never: lets more arrive than was made room for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from ..errors import OmniAsyncError
from ..model import TransferKey
from ..transport import Edge
from ..transport.streams.direct_reader import DirectReader
from ..transport.streams.reader import Mark
from .tasks import Tasks

Metadata = Mapping[str, Any] | None


class Sink(NamedTuple):
    """Who is told what arrives."""

    arrived: Callable[[Any], None]
    """Told of each chunk and :class:`Mark`; the last one is ``Mark.FINISHED``."""
    broke: Callable[[Exception], object]
    """Told when nothing comes any more."""


class Reading(Protocol):
    def begin(self) -> None:
        """Tell what arrives, and let a whole window of it come."""
        ...

    def acknowledge(self, chunks: int) -> None:
        """So many are done with: as many more may come."""
        ...

    def fail(self, error: OmniAsyncError) -> None:
        """End it by this error."""
        ...

    def leave(self) -> None:
        """Read no more."""
        ...

    def describe(self) -> str:
        """What is known of the sender."""
        ...


def open_reading(
    edge: Edge, key: str, metadata: Metadata, sink: Sink, tasks: Tasks, *, parked: bool
) -> Reading:
    """Ask for a stream. While it is parked, at most one chunk of it comes, and is not told of.

    Raises:
        OmniAsyncError: the sender's address is not known, or the transport is closed.
    """
    reader = edge.reader(key, window=1 if parked else None, metadata=metadata)
    if isinstance(reader, DirectReader):
        return DirectReading(reader, sink, edge.window if parked else 0)
    return PlainReading(edge, key, metadata, sink, tasks)


class DirectReading:
    """Without a task."""

    def __init__(self, reader: DirectReader, sink: Sink, window: int) -> None:
        self._reader = reader
        self._sink = sink
        self._window = window
        """What it still has to be widened to."""
        self._begun = False
        self._over = False
        reader.drive(self._stirred)

    def begin(self) -> None:
        self._begun = True
        self._stirred()

    def _stirred(self) -> None:
        reader = self._reader
        try:
            if (
                self._window and self._begun and reader.ready
            ):  # a sender without a writer hears no credit
                reader.widen(self._window)
                self._window = 0
            while self._begun and not self._over and reader.ready:
                self._sink.arrived(reader.next_item())
        except Exception as error:  # noqa: BLE001 - whatever it is, the request is told of it
            self._sink.broke(error)

    def acknowledge(self, chunks: int) -> None:
        self._reader.acknowledge(chunks)

    def fail(self, error: OmniAsyncError) -> None:
        self._reader.fail(error)

    def leave(self) -> None:
        self._over = True
        self._reader.leave()

    def describe(self) -> str:
        return self._reader.describe()


class PlainReading:
    """One task, for streams that tell nothing by themselves; there it holds the window itself."""

    def __init__(self, edge: Edge, key: str, metadata: Metadata, sink: Sink, tasks: Tasks) -> None:
        self._edge = edge
        self._where = TransferKey(*edge.name, key)
        self._metadata = metadata
        self._sink = sink
        self._tasks = tasks
        self._room = edge.window
        self._more = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._task = self._tasks.start(self._run())

    async def _run(self) -> None:
        try:
            async with self._edge.reader(self._where.key, metadata=self._metadata) as reader:
                item = None
                while item is not Mark.FINISHED:
                    await self._wait_for_room()
                    item = await reader.item()
                    self._room -= not isinstance(item, Mark)
                    self._sink.arrived(item)
        except Exception as error:  # noqa: BLE001 - as for the other
            self._sink.broke(error)

    async def _wait_for_room(self) -> None:
        while self._room < 1:
            self._more.clear()
            await self._more.wait()

    def acknowledge(self, chunks: int) -> None:
        self._room += chunks
        self._more.set()

    def fail(self, error: OmniAsyncError) -> None:
        self._sink.broke(error)

    def leave(self) -> None:
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    def describe(self) -> str:
        return "nobody can tell whether there is one"
