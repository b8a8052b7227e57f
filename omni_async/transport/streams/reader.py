"""ChunkReader: the receiving end of a stream, as users hold it.

In: what has arrived. Out: chunks in order, each once, then the end or the reason why there is none.
Never: polls, hands out a chunk twice.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import AsyncIterator, Awaitable
from types import TracebackType
from typing import Any, TypeVar

from ...errors import StreamClosed
from ...model import TransferKey

Reader = TypeVar("Reader", bound="ChunkReader")


class Mark(enum.Enum):
    """What is in a stream beside its chunks."""

    SEGMENT = "the end of a segment"
    FINISHED = "the end of the stream"


class ChunkReader(abc.ABC):
    """``async with edge.stream(key) as reader``, then ``async for chunk in reader``.

    Chunks have the types that were sent. Their tensors are views; the memory goes back when the last
    view dies. Leaving early tells the writer, and frees what is between.
    """

    def __init__(self, where: TransferKey) -> None:
        self._where = where
        self.received = 0
        """Chunks handed out so far."""
        self.segment = 0
        """Which segment the next chunk belongs to, from 0."""

    @property
    def key(self) -> str:
        return self._where.key

    @abc.abstractmethod
    async def _item(self, timeout: float | None) -> Any:
        """The next chunk or mark."""

    @abc.abstractmethod
    def _item_nowait(self) -> Any:
        """The next chunk or mark, if it is there."""

    @abc.abstractmethod
    def _begin(self) -> Awaitable[None]:
        """Ask for the stream."""

    @abc.abstractmethod
    def leave(self) -> Awaitable[None]:
        """Read no more. Idempotent; takes effect at once, and need not be awaited."""

    async def read(self, timeout: float | None = None) -> Any:
        """The next chunk; waits for it, for ever without a ``timeout`` in seconds.

        Raises:
            StreamClosed: the stream has finished.
            StreamAborted: its writer gave up; all chunks before have been handed out.
            PeerLost: the sender went away in the middle.
            TransferCancelled: the request was cleaned up, here or at the sender.
            TransferTimeout: the time limit passed; the stream goes on. Names the chunk.
            DecodeError: the chunk cannot be read here.
            SequenceGap: the sender left one out.
            UsageError: the stream has not begun, or is being read elsewhere.
            ClosedError: the transport is closed.

        Cancellation: safe; the chunk is read next.
        """
        while True:
            item = await self._item(timeout)
            if isinstance(item, Mark):
                self._pass(item)
                continue
            self.received += 1
            return item

    async def item(self) -> Any:
        """The next chunk or :class:`Mark`, for who has to know of a boundary as soon as it is there.

        Errors and cancellation as for :meth:`read`.
        """
        return self._counted(await self._item(None))

    def _counted(self, item: Any) -> Any:
        if not isinstance(item, Mark):
            self.received += 1
        elif item is Mark.SEGMENT:
            self.segment += 1
        return item

    def read_nowait(self) -> Any:
        """The next chunk, if it is there.

        Raises:
            StreamEmpty: it is not there yet. Others as :meth:`read`.
        """
        while True:
            item = self._item_nowait()
            if isinstance(item, Mark):
                self._pass(item)
                continue
            self.received += 1
            return item

    def _pass(self, mark: Mark) -> None:
        if mark is Mark.FINISHED:
            raise StreamClosed(
                f"stream {self.key!r} on {self._where.edge} has finished",
                key=self.key,
                edge=self._where.edge,
            )
        self.segment += 1

    async def segments(self) -> AsyncIterator[AsyncIterator[Any]]:
        """The stream as segments: ``async for segment in …: async for chunk in segment``.

        What is left of a segment when the next one is asked for is read over.
        """
        while (item := await self._item(None)) is not Mark.FINISHED:
            segment = self._segment(item)
            yield segment
            async for _ in segment:
                pass

    async def _segment(self, item: Any) -> AsyncIterator[Any]:
        number = self.segment
        while not isinstance(item, Mark):
            self.received += 1
            yield item
            if self.segment != number:
                return
            item = await self._item(None)
        self.segment += 1

    def __aiter__(self) -> ChunkReader:
        return self

    async def __anext__(self) -> Any:
        item = await self._item(None)
        while isinstance(item, Mark):
            if item is Mark.FINISHED:
                raise StopAsyncIteration
            self.segment += 1
            item = await self._item(None)
        self.received += 1
        return item

    async def __aenter__(self: Reader) -> Reader:
        await self._begin()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.leave()

    def __repr__(self) -> str:
        where = f"{self.key!r} on {self._where.edge}"
        return f"<{type(self).__name__} of {where}, {self.received} received>"
