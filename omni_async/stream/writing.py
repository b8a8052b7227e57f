"""How the chunks of one request leave: by callback where a stream tells of credit, else by a task.

In: a queue, a word that there is something in it. Out: chunks, boundaries and the end, in order.
Never: sends what there is no credit for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from ..errors import BackPressure
from ..transport import Edge
from ..transport.streams.direct_writer import DirectWriter
from ..transport.streams.reader import Mark
from .tasks import Tasks


class Piece:
    """A chunk that waits, and about how many bytes it is."""

    __slots__ = ("chunk", "nbytes")

    def __init__(self, chunk: Any, nbytes: int) -> None:
        self.chunk = chunk
        self.nbytes = nbytes


Queue = deque["Piece | Mark | asyncio.Future[None]"]
"""A future is for who waits until everything before it has left."""


class Source(NamedTuple):
    """Whose chunks leave."""

    queue: Queue
    left: Callable[[Piece | Mark | asyncio.Future[None]], None]
    """Told of the first of the queue when it has left it."""
    broke: Callable[[Exception], object]
    """Told when nothing can leave any more."""


NOBODY = Source(deque(), lambda item: None, lambda error: None)
"""Whose chunks have all left: the writer lives until its reader has them."""


class Writing(Protocol):
    def go_on(self) -> None:
        """Begin, or there may be something in the queue."""
        ...

    def abort(self, reason: str) -> None:
        """Give up, at once."""
        ...


def open_writing(edge: Edge, key: str, source: Source, tasks: Tasks) -> Writing:
    """The writing of a stream, not yet begun.

    Raises:
        ClosedError: the transport is closed.
    """
    writer = edge.writer(key)
    if isinstance(writer, DirectWriter):
        return DirectWriting(writer, source, tasks)
    return PlainWriting(edge, key, source, tasks)


class DirectWriting:
    """Without a task, but for chunks that are too large to ride inside their word."""

    def __init__(self, writer: DirectWriter, source: Source, tasks: Tasks) -> None:
        self._writer = writer
        self._source = source
        self._tasks = tasks
        self._begun = False
        self._busy = False
        self._sending: asyncio.Task[None] | None = None
        self._over = False

    def go_on(self) -> None:
        if self._busy or self._over:
            return
        self._busy = True
        try:
            if not self._begun:
                self._begun = True
                self._writer.drive(self.go_on)
            self._send_small()
        except Exception as error:  # noqa: BLE001 - whatever a chunk's encoding raises is its request's failure
            self._source.broke(error)
        finally:
            self._busy = self._sending is not None

    def _send_small(self) -> None:
        writer, queue = self._writer, self._source.queue
        while not self._over:
            failure = writer.failure()
            if failure is not None:
                self._source.broke(failure)
                return
            if not queue or (type(queue[0]) is Piece and not writer.room):
                return
            if not self._send_first(queue[0]):
                self._sending = self._tasks.start(self._send_large())
                return

    def _send_first(self, item: Piece | Mark | asyncio.Future[None]) -> bool:
        """``False``: it has to be waited for."""
        if type(item) is Piece:
            try:
                self._writer.send_nowait(item.chunk)
            except BackPressure:
                return False
        elif item is Mark.SEGMENT:
            self._writer.end_segment_nowait()
        elif item is Mark.FINISHED:
            self._over = True
            self._writer.finish()
        self._left()
        if self._over:
            self._source = NOBODY
        return True

    def _left(self) -> None:
        self._source.left(self._source.queue.popleft())

    async def _send_large(self) -> None:
        """The first of the queue, and what follows as long as it is large too."""
        queue = self._source.queue
        try:
            while not self._over and queue and isinstance(queue[0], Piece):
                await self._writer.send(queue[0].chunk)
                self._left()
                if not self._writer.room:
                    break
        except Exception as error:  # noqa: BLE001 - as in go_on
            self._source.broke(error)
        finally:
            self._sending, self._busy = None, False
        self.go_on()

    def abort(self, reason: str) -> None:
        self._over = True
        if self._sending is not None and self._sending is not asyncio.current_task():
            self._sending.cancel()
        self._writer.abort(reason)
        self._source = NOBODY


class PlainWriting:
    """One task, for streams that tell nothing by themselves."""

    def __init__(self, edge: Edge, key: str, source: Source, tasks: Tasks) -> None:
        self._source = source
        self._more = asyncio.Event()
        self._reason = ""
        self._task = tasks.start(self._run(edge, key))

    def go_on(self) -> None:
        self._more.set()

    async def _run(self, edge: Edge, key: str) -> None:
        queue = self._source.queue
        try:
            async with edge.writer(key) as writer:
                try:
                    while (item := await self._first(queue)) is not Mark.FINISHED:
                        if isinstance(item, Piece):
                            await writer.send(item.chunk)
                        elif item is Mark.SEGMENT:
                            await writer.end_segment()
                        self._source.left(queue.popleft())
                except asyncio.CancelledError:
                    await writer.abort(self._reason)
                    raise
            self._source.left(queue.popleft())
        except Exception as error:  # noqa: BLE001 - as for the others
            self._source.broke(error)

    async def _first(self, queue: Queue) -> Piece | Mark | asyncio.Future[None]:
        while not queue:
            self._more.clear()
            await self._more.wait()
        return queue[0]

    def abort(self, reason: str) -> None:
        self._reason = reason
        if self._task is not asyncio.current_task():
            self._task.cancel()
