"""The reader of a stream between two processes.

In: words of the sender. Out: chunks in order; larger ones are fetched as soon as they are announced.
Never: gives credit for a chunk before its reader has it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from ..._aio.finish import finish_all
from ...codec import decode
from ...errors import (
    ClosedError,
    OmniAsyncError,
    PeerLost,
    ProtocolError,
    SequenceGap,
    StreamAborted,
    StreamClosed,
    StreamEmpty,
    TransferCancelled,
    TransferTimeout,
    UsageError,
)
from ...model import TransferKey
from ...rendezvous.messages import Chunk, End, Fail, FailCode, Segment
from ...rendezvous.stream_readers import Arrived, Gap, Inlet
from ..delivery import Delivery
from ..link import Link
from ..receiving import Receiving
from ..taking import inline_frames
from ..wiring import Wiring
from .reader import ChunkReader, Mark
from .writer import SENT

Fetch = asyncio.Task[Delivery]


class DirectReader(ChunkReader):
    """One inlet of the rendezvous, and who waits for it."""

    def __init__(
        self,
        wiring: Wiring,
        receiving: Receiving,
        where: TransferKey,
        window: int,
        metadata: Any = None,
    ) -> None:
        super().__init__(where)
        self._wiring = wiring
        self._receiving = receiving
        self._window = window
        self._metadata = metadata
        self._link: Link | None = None
        self._inlet: Inlet | None = None
        self._items: deque[Chunk | Fetch | Mark] = deque()
        self._error: OmniAsyncError | None = None
        """Why nothing comes behind the items."""
        self._left = False
        self._waiter: asyncio.Future[None] | None = None
        self._fetches: dict[Fetch, int] = {}
        """And when their chunks were sent."""
        self._driven = False
        self._on_stir: Callable[[], None] = _nobody

    def _begin(self) -> Awaitable[None]:
        if self._inlet is not None:
            raise UsageError(f"stream {self.key!r} was entered before; ask the edge for a new one")
        self._link, self._inlet = self._receiving.open_stream(
            self._where, self._window, self._metadata, self
        )
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
        found = self._ready()
        return found is not None and (not isinstance(found, asyncio.Task) or found.done())

    def next_item(self) -> Any:
        """The next chunk or :class:`Mark`, while it is :attr:`ready`; errors as for :meth:`read`."""
        item = self._item_nowait()
        self.received += not isinstance(item, Mark)
        return item

    def acknowledge(self, chunks: int) -> None:
        """So many of the chunks that were taken are done with: as many more may come."""
        if self._inlet is not None and self._link is not None and not self._left:
            self._link.core.streams.took(self._inlet, chunks)
            self._link.pump()

    def widen(self, window: int) -> None:
        """From now on so many chunks may be under way, more than before."""
        if self._inlet is not None:
            self._inlet.window = window
            self.acknowledge(0)

    def describe(self) -> str:
        """What is known of the sender, for errors."""
        return self._link.describe() if self._link is not None else "nobody was asked"

    # --- items ------------------------------------------------------------------------------------

    async def _item(self, timeout: float | None) -> Any:
        limit = None if timeout is None else self._wiring.loop.time() + timeout
        while (found := self._ready()) is None:
            await self._wait(limit, timeout)
        if isinstance(found, asyncio.Task):
            while not found.done():
                await self._wait(limit, timeout, found)
            return self._fetched(found)
        return self._take(found)

    def _item_nowait(self) -> Any:
        found = self._ready()
        if isinstance(found, asyncio.Task) and found.done():
            return self._fetched(found)
        if found is None or isinstance(found, asyncio.Task):
            text = (
                f"stream {self.key!r} on {self._where.edge}: chunk {self.received} is not here yet"
            )
            raise StreamEmpty(text, key=self.key, edge=self._where.edge)
        return self._take(found)

    def _ready(self) -> Chunk | Fetch | Mark | None:
        """The next item without taking it, or ``None`` while there is none."""
        if self._inlet is None:
            raise UsageError(f"stream {self.key!r} has not begun: enter it by 'async with'")
        if self._left:
            raise UsageError(f"stream {self.key!r} on {self._where.edge} has been left here")
        if self._items:
            return self._items[0]
        if self._error is not None:
            raise self._error
        return None

    def _fetched(self, fetch: Fetch) -> Any:
        at = self._fetches.pop(fetch, 0)
        delivery = fetch.result()
        assert self._link is not None
        self._meter.took(delivery.nbytes, at if self._link.same_clock else 0)
        return self._took(delivery.value)

    def _take(self, item: Chunk | Mark) -> Any:
        if isinstance(item, Mark):
            if item is Mark.FINISHED:  # it stays, for whoever asks again
                self._meter.end(None, self.received)
            else:
                self._items.popleft()
            return item
        assert self._link is not None
        assert item.inline is not None
        try:
            header, buffers = inline_frames(self._link.room, item.sizes, item.inline)
            value = decode(header, buffers)
        except BaseException:
            self._took(None)
            raise
        self._meter.took(len(item.inline), item.at if self._link.same_clock else 0)
        return self._took(value)

    def _took(self, value: Any) -> Any:
        self._items.popleft()
        assert self._link is not None
        assert self._inlet is not None
        if not self._driven:
            self._link.core.streams.took(self._inlet)
            self._link.pump()
        return value

    async def _wait(
        self, limit: float | None, timeout: float | None, fetch: Fetch | None = None
    ) -> None:
        """Wait for something to arrive, or for a fetch."""
        if self._waiter is not None:
            raise UsageError(f"stream {self.key!r} is being read by another task already")
        loop = self._wiring.loop
        waiter = self._waiter = loop.create_future()
        timer = None if limit is None else loop.call_at(limit, _wake, waiter, True)
        if fetch is not None:
            fetch.add_done_callback(lambda _: _wake(waiter, False))
        try:
            late = await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()
        if late and not self._items and self._error is None:
            assert self._link is not None
            text = f"stream {self.key!r} on {self._where.edge}: chunk {self.received} did not come "
            raise TransferTimeout(
                f"{text}within {timeout:g} s; {self._link.describe()}",
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
        return sum(
            type(item) is Chunk or (isinstance(item, asyncio.Task) and item.done())
            for item in self._items
        )

    @property
    def in_flight(self) -> int:
        """Chunks that are being fetched."""
        return sum(isinstance(item, asyncio.Task) and not item.done() for item in self._items)

    @property
    def credits(self) -> int:
        """Chunks that the writer may still send."""
        inlet = self._inlet
        return 0 if inlet is None or inlet.over else inlet.granted - inlet.chunks

    # --- arrivals ---------------------------------------------------------------------------------

    def _stirred(self) -> None:
        assert self._inlet is not None
        arrived = self._inlet.arrived
        while arrived:
            self._arrive(arrived.popleft())
        if self._waiter is not None:
            _wake(self._waiter, False)
        self._on_stir()

    def _arrive(self, item: Arrived) -> None:
        if isinstance(item, Chunk):
            self._items.append(item if item.inline is not None else self._fetch(item))
        elif isinstance(item, Segment):
            self._items.append(Mark.SEGMENT)
        elif isinstance(item, End) and item.reason is None:
            self._items.append(Mark.FINISHED)
        else:
            self._error = self._failure(item)
            self._meter.end(self._error, self.received)

    def _fetch(self, item: Chunk) -> Fetch:
        where = TransferKey("", self._where.to_stage, item.key)
        get = self._receiving.get(where, None, None, None, False, None, None, self._link)
        fetch = self._wiring.loop.create_task(get)
        self._fetches[fetch] = item.at
        fetch.add_done_callback(self._seen)
        return fetch

    def _seen(self, fetch: Fetch) -> None:
        """Whoever reads the item sees its error; nobody may."""
        if not fetch.cancelled():
            fetch.exception()
        if not self._left:
            self._on_stir()

    def _failure(self, item: End | Fail | Gap | None) -> OmniAsyncError:
        assert self._link is not None
        text = f"stream {self.key!r} on {self._where.edge}"
        fields = self._wiring.where(self._where, self._link.peer)
        where: dict[str, Any] = {"key": self.key, "edge": self._where.edge}
        if isinstance(item, End):
            reason = item.reason or "no reason was given"
            return StreamAborted(f"{text} was aborted: {reason}", reason=reason, **where)
        if isinstance(item, Gap):
            told = {"expected": item.expected, "received": item.received}
            return SequenceGap(f"{text}: item {item.expected} is missing", **told, **where)
        if item is None:
            return PeerLost(f"{text}: the sender went away; {self._link.describe()}", **fields)
        if item.code is FailCode.CANCELLED:
            return TransferCancelled(f"{text} was ended: {item.text}", **fields)
        if item.code is FailCode.REFUSED:
            return StreamClosed(f"{text}: {item.text}", **where)
        return ProtocolError(f"{text}: {item.text}", peer=fields["peer"])

    def fail(self, error: OmniAsyncError) -> bool:
        """End it here, behind what has arrived; whether it was going on."""
        if self._error is not None or (self._items and self._items[-1] is Mark.FINISHED):
            return False
        self._error = error
        self._meter.end(error, self.received)
        if self._inlet is not None and self._link is not None:
            self._link.core.streams.leave(self._inlet)
            self._link.pump()
        if self._waiter is not None:
            _wake(self._waiter, False)
        self._on_stir()
        return True

    def close(self, reason: str) -> None:
        """The transport is closed."""
        self.fail(ClosedError(f"stream {self.key!r}: {reason}"))
        self._drop()

    def leave(self) -> Awaitable[None]:
        if self._inlet is None or self._left:
            return SENT
        assert self._link is not None
        self._left = True
        self._meter.leave(self.received, dropped=self.queued + self.in_flight)
        self._link.core.streams.leave(self._inlet)
        self._link.pump()
        self._receiving.forget_stream(self)
        return self._drop()

    def _drop(self) -> Awaitable[None]:
        self._items.clear()
        fetches = list(self._fetches)
        for fetch in fetches:
            fetch.cancel()
        self._fetches.clear()
        return finish_all(fetches) if fetches else SENT


def _wake(waiter: asyncio.Future[Any], late: bool) -> None:
    if not waiter.done():
        waiter.set_result(late)


def _nobody() -> None:
    """Until somebody drives the stream."""
