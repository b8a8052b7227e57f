"""ChunkWriter: the sending end of a stream, as users hold it.

In: chunks, boundaries, an end. Out: the same, in order, at the reader.
Never: sends more than the reader has given credit for, goes on after its reader has left.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Awaitable, Generator
from types import TracebackType
from typing import Any, TypeVar

from ...model import TransferKey

Writer = TypeVar("Writer", bound="ChunkWriter")


class Sent:
    """What has happened already; may be awaited, and need not be."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield  # never reached: it makes this a generator


SENT = Sent()


class ChunkWriter(abc.ABC):
    """``async with edge.stream(key) as writer``.

    Leaving normally finishes the stream. Leaving by an exception aborts it: the reader gets the chunks
    that were sent before, then :class:`StreamAborted` with the exception as its reason.
    """

    def __init__(self, where: TransferKey) -> None:
        self._where = where

    @property
    def key(self) -> str:
        return self._where.key

    @property
    @abc.abstractmethod
    def sent(self) -> int:
        """Chunks sent so far."""

    @abc.abstractmethod
    async def send(self, chunk: Any) -> None:
        """Send the next chunk; waits while the reader is behind.

        Args:
            chunk: anything that can be put.

        Raises:
            EncodeError: the chunk cannot be sent; the stream goes on without it.
            StreamClosed: the reader has left, or went away.
            TransferCancelled: the request was cleaned up.
            PayloadTooLarge: it can never fit into the pool.
            UsageError: the stream has not begun, or is over.
            ClosedError: the transport is closed.

        Cancellation: safe; a chunk whose send was cancelled was not sent.
        """

    @abc.abstractmethod
    async def end_segment(self) -> None:
        """End a segment: the reader sees the boundary, and the stream goes on.

        Raises:
            As :meth:`send`.

        Cancellation: safe.
        """

    @abc.abstractmethod
    def finish(self) -> Awaitable[None]:
        """No more chunks. Idempotent; takes effect at once, and need not be awaited."""

    @abc.abstractmethod
    def abort(self, reason: str) -> Awaitable[None]:
        """Give up: the reader gets what was sent before, then :class:`StreamAborted`.

        Idempotent; takes effect at once, and need not be awaited.
        """

    @abc.abstractmethod
    def _begin(self) -> Awaitable[None]:
        """Register the stream."""

    async def __aenter__(self: Writer) -> Writer:
        await self._begin()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await (self.finish() if error is None else self.abort(reason_of(error)))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.key!r} on {self._where.edge}, {self.sent} sent>"


def reason_of(error: BaseException) -> str:
    """What a reader is told of an exception that ended its writer."""
    if isinstance(error, asyncio.CancelledError):
        return "the writer's task was cancelled"
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
