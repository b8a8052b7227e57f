"""The reader of a stream between two processes.

In: words of the sender. Out: chunks in order; larger ones are fetched as soon as they are announced.
Never: gives credit for a chunk before its reader has it; waits for a chunk that will not come.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Generator
from typing import Any

from ..._aio.deadline import seconds
from ..._aio.finish import finish_all
from ..._aio.loop import LoopBound
from ...codec import decode
from ...errors import (
    ClosedError,
    DecodeError,
    OmniAsyncError,
    ProtocolError,
    StreamEmpty,
    TransferTimeout,
    UsageError,
)
from ...model import TransferKey
from ...rendezvous.messages import Chunk, End, Segment
from ...rendezvous.stream_readers import Arrived, Inlet
from ..delivery import Delivery
from ..link import Link
from ..receiving import Receiving
from ..taking import inline_frames
from ..wiring import Wiring
from .ends import named, of_chunk, reader_failure
from .reader import ChunkReader, Mark
from .writer import SENT


class Fetch:
    """A larger chunk on its way here."""

    __slots__ = ("at", "task")

    def __init__(self, task: asyncio.Task[Delivery], at: int) -> None:
        self.task = task
        self.at = at
        """When it was sent."""


class DirectReader(ChunkReader):
    """One inlet of the rendezvous, and who waits for it."""

    _link: Link
    _inlet: Inlet

    def __init__(
        self,
        wiring: Wiring,
        receiving: Receiving,
        bound: LoopBound,
        where: TransferKey,
        window: int,
        metadata: Any = None,
    ) -> None:
        super().__init__(where)
        self._wiring = wiring
        self._receiving = receiving
        self._bound = bound
        self._window = window
        self._metadata = metadata
        self._begun = False
        self._items: deque[Chunk | Fetch | Mark] = deque()
        self._taken = 0
        """Chunks that are no longer among the items."""
        self._error: OmniAsyncError | None = None
        """Why nothing comes behind the items."""
        self._left = False
        self._waiter: asyncio.Future[bool] | None = None
        self._fetches: set[asyncio.Task[Delivery]] = set()
        """Those that have not ended, wanted or not."""
        self._driven = False
        self._on_stir: Callable[[], None] = _nobody

    def _begin(self) -> Awaitable[None]:
        self._bound.check()
        if self._begun:
            raise UsageError(f"stream {self.key!r} was entered before; ask the edge for a new one")
        self._link, self._inlet = self._receiving.open_stream(
            self._where, self._window, self._metadata, self
        )
        self._begun = True
        self._inlet.stir = self._stirred
        self._meter = self._wiring.meters.edge(self._where.edge).open(self.key)
        return SENT

    # --- for whoever reads many streams -----------------------------------------------------------

    def drive(self, on_stir: Callable[[], None]) -> None:
        """Begin, for somebody who waits for many streams at once and gives credit himself.

        Args:
            on_stir: called on the event loop when something has arrived, or has been fetched.
        """
        self._driven, self._on_stir = True, on_stir
        self._begin()

    @property
    def ready(self) -> bool:
        """Whether :meth:`next_item` has something, or a reason why nothing comes."""
        return self._head() is not None or (not self._items and self._error is not None)

    def next_item(self) -> Any:
        """The next chunk or :class:`Mark`, while it is :attr:`ready`; errors as for :meth:`read`."""
        return self._counted(self._item_nowait())

    def acknowledge(self, chunks: int) -> None:
        """So many of the chunks that were taken are done with: as many more may come."""
        if self._begun and not self._left:
            self._link.core.streams.took(self._inlet, chunks)
            self._link.pump()

    def widen(self, window: int) -> None:
        """From now on so many chunks may be under way, more than before."""
        if self._begun:
            self._inlet.window = window
            self.acknowledge(0)

    def describe(self) -> str:
        """What is known of the sender, for errors."""
        return self._link.describe() if self._begun else "nobody was asked"

    # --- items ------------------------------------------------------------------------------------

    async def _item(self, timeout: float | None) -> Any:
        limit = seconds(timeout)
        deadline = None if limit is None else self._wiring.loop.time() + limit
        while (found := self._ready()) is None:
            await self._wait(deadline, timeout)
        return self._take(found)

    def _item_nowait(self) -> Any:
        found = self._ready()
        if found is None:
            text = f"{named(self._where)}: chunk {self._taken} is not here yet"
            raise StreamEmpty(text, key=self.key, edge=self._where.edge)
        return self._take(found)

    def _head(self) -> Chunk | Fetch | Mark | None:
        """The next item without taking it; ``None`` while there is none, or it is being fetched."""
        if not self._items:
            return None
        item = self._items[0]
        return None if isinstance(item, Fetch) and not item.task.done() else item

    def _ready(self) -> Chunk | Fetch | Mark | None:
        """The same, or the error that there will be none."""
        self._bound.check()
        if not self._begun:
            raise UsageError(f"stream {self.key!r} has not begun: enter it by 'async with'")
        if self._left:
            raise UsageError(f"{named(self._where)} has been left here")
        if not self._items and self._error is not None:
            raise self._error.with_traceback(None)
        return self._head()

    def _take(self, item: Chunk | Fetch | Mark) -> Any:
        if isinstance(item, Mark):
            if item is Mark.FINISHED:  # it stays, for whoever asks again
                self._meter.end(None, self.received)
            else:
                self._items.popleft()
            return item
        try:
            value, nbytes = self._value(item)
        except (DecodeError, ProtocolError) as error:  # this chunk is lost, and no other
            raise of_chunk(error, self._where, self._took() - 1) from error.__cause__
        except OmniAsyncError as error:  # it did not come, so the stream has a gap here
            self.fail(of_chunk(error, self._where, self._taken))
            raise
        self._meter.took(nbytes, item.at if self._link.same_clock else 0)
        self._took()
        return value

    def _value(self, item: Chunk | Fetch) -> tuple[Any, int]:
        if isinstance(item, Fetch):
            delivery = item.task.result()
            return delivery.value, delivery.nbytes
        inline = item.inline or b""
        return decode(*inline_frames(self._link.room, item.sizes, inline)), len(inline)

    def _took(self) -> int:
        """The next item was a chunk, and is its reader's now; how many were."""
        self._items.popleft()
        self._taken += 1
        if not self._driven:
            self._link.core.streams.took(self._inlet)
            self._link.pump()
        return self._taken

    async def _wait(self, deadline: float | None, timeout: float | None) -> None:
        """Wait for something to arrive, be fetched, or end."""
        if self._waiter is not None:
            raise UsageError(f"{named(self._where)} is being read by another task already")
        loop = self._wiring.loop
        waiter = self._waiter = loop.create_future()
        timer = None if deadline is None else loop.call_at(deadline, _wake, waiter, True)
        try:
            late = await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()
        if late and self._ready() is None:
            raise TransferTimeout(
                f"{named(self._where)}: chunk {self._taken} did not come within {timeout:g} s; "
                f"{self._link.describe()}",
                phase="waiting for a chunk",
                timeout=timeout,
                **self._wiring.where(self._where, self._link.peer),
            )

    # --- gauges -----------------------------------------------------------------------------------

    @property
    def where(self) -> TransferKey:
        return self._where

    @property
    def queued(self) -> int:
        """Chunks that are here and not handed over."""
        return sum(not isinstance(item, Mark) for item in self._items) - self.in_flight

    @property
    def in_flight(self) -> int:
        """Chunks that are being fetched."""
        return sum(isinstance(item, Fetch) and not item.task.done() for item in self._items)

    @property
    def credits(self) -> int:
        """Chunks that the writer may still send."""
        return 0 if self._inlet.over else self._inlet.granted - self._inlet.chunks

    # --- arrivals ---------------------------------------------------------------------------------

    def _stirred(self) -> None:
        arrived = self._inlet.arrived
        while arrived:
            self._arrive(arrived.popleft())
        self._tell()

    def _tell(self) -> None:
        """There is something new to learn here."""
        if self._waiter is not None:
            _wake(self._waiter, False)
        if not self._left:
            self._on_stir()

    def _arrive(self, item: Arrived) -> None:
        if isinstance(item, Chunk):
            self._items.append(self._fetch(item) if item.inline is None else item)
        elif isinstance(item, Segment):
            self._items.append(Mark.SEGMENT)
        elif isinstance(item, End) and item.reason is None:
            self._items.append(Mark.FINISHED)
        else:
            missing = not isinstance(item, End) and self._cut_short()
            if missing or not self._complete:
                self._error = reader_failure(self._wiring, self._link, self._where, item)
                self._meter.end(self._error, self.received)

    @property
    def _complete(self) -> bool:
        """Whether the end is known."""
        finished = bool(self._items) and self._items[-1] is Mark.FINISHED
        return finished or self._error is not None

    def _cut_short(self) -> bool:
        """What is still on its way will not come: forget it, and all behind it. Whether there was any."""
        for number, item in enumerate(self._items):
            if isinstance(item, Fetch) and not item.task.done():
                while len(self._items) > number:
                    dropped = self._items.pop()
                    if isinstance(dropped, Fetch):
                        dropped.task.cancel()
                return True
        return False

    def _fetch(self, item: Chunk) -> Fetch:
        where = TransferKey("", self._where.to_stage, item.key)
        get = self._receiving.get(where, None, None, None, False, None, None, self._link)
        task = self._wiring.loop.create_task(get)
        self._fetches.add(task)
        task.add_done_callback(self._fetched)
        return Fetch(task, item.at)

    def _fetched(self, task: asyncio.Task[Delivery]) -> None:
        self._fetches.discard(task)
        if not task.cancelled():
            task.exception()  # whoever reads the item sees it; nobody may
        self._link.core.streams.fetched(self._inlet)
        self._link.pump()
        self._tell()

    # --- the end ----------------------------------------------------------------------------------

    def fail(self, error: OmniAsyncError) -> bool:
        """End it here and now; whether there was anything left of it."""
        if self._left or (not self._items and self._error is not None):
            return False
        if self._items and self._items[0] is Mark.FINISHED:
            return False
        self._error = error
        self._meter.end(error, self.received, dropped=self.queued + self.in_flight)
        self._drop()
        self._tell()
        return True

    def close(self, reason: str) -> Collection[asyncio.Task[Delivery]]:
        """The transport is closed. Returns fetches that have not ended yet."""
        self.fail(ClosedError(f"{named(self._where)}: {reason}"))
        return list(self._fetches)

    def leave(self) -> Awaitable[None]:
        self._bound.check()
        if self._begun and not self._left:
            self._meter.leave(self.received, dropped=self.queued + self.in_flight)
            self._left = True
            self._receiving.forget_stream(self)
            self._drop()
            self._tell()
        return Ended(self._fetches) if self._fetches else SENT

    def _drop(self) -> None:
        """Want nothing more of it, and keep nothing."""
        self._items.clear()
        for task in list(self._fetches):
            task.cancel()
        self._link.core.streams.leave(self._inlet)
        self._link.pump()


class Ended:
    """The end of fetches that were cancelled; need not be awaited."""

    def __init__(self, fetches: Collection[asyncio.Task[Delivery]]) -> None:
        self._fetches = list(fetches)

    def __await__(self) -> Generator[Any, None, None]:
        return finish_all(self._fetches).__await__()


def _wake(waiter: asyncio.Future[bool], late: bool) -> None:
    if not waiter.done():
        waiter.set_result(late)


def _nobody() -> None:
    """Until somebody drives the stream."""
