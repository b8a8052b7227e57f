"""The writer of a stream over a store.

In: chunks. Out: items, each put under its key once the one before is there.
Never: learns of its reader: only space for what it puts holds it back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from ..._aio.finish import finish_all
from ...errors import (
    EncodeError,
    OmniAsyncError,
    StreamAborted,
    TransferError,
    UsageError,
)
from ...model import Receipt, TransferKey
from ...observe.clock import clock_id
from .keyed_items import Kind, checked_where, item_key
from .writer import SENT, ChunkWriter

if TYPE_CHECKING:
    from .keyed import KeyedStreams

End = asyncio.Task["OmniAsyncError | None"]


class Ending:
    """The end of a stream, on its way; need not be awaited."""

    def __init__(self, end: End, *, loud: bool) -> None:
        self._end = end
        self._loud = loud

    def __await__(self) -> Generator[Any, None, None]:
        error = yield from asyncio.shield(self._end).__await__()
        if error is not None and self._loud:
            raise error


class KeyedWriter(ChunkWriter):
    """One request's items. What nobody reads stays in the store until it expires or is cleaned up."""

    def __init__(self, streams: KeyedStreams, where: TransferKey) -> None:
        super().__init__(checked_where(where))
        self._streams = streams
        self._generation = 0
        self._before: End | None = None
        """The end of the writer before: its item must not come after ours."""
        self._items = 0
        self._chunks = 0
        self._turn = asyncio.Lock()
        self._doubt: tuple[asyncio.Future[bool], Kind] | None = None
        """Of the item whose put was cancelled: whether it is there all the same."""
        self._error: OmniAsyncError | None = None
        """Why nothing can be sent any more."""
        self._end_of_it: End | None = None

    @property
    def sent(self) -> int:
        return self._chunks

    def _begin(self) -> Awaitable[None]:
        self._streams.transport.check_open()
        if self._generation:
            raise UsageError(f"stream {self.key!r} was entered before; ask the edge for a new one")
        self._generation, self._before = self._streams.begin_writing(self._where, self)
        self._meter = self._streams.meters.edge(self._where.edge).open(self.key)
        return SENT

    # --- items ------------------------------------------------------------------------------------

    async def send(self, chunk: Any) -> None:
        self._check()
        try:
            async with self._turn:
                self._check()
                receipt = await self._put(Kind.CHUNK, chunk)
                self._chunks += 1
                self._meter.sent(receipt.nbytes)
        except EncodeError as error:
            raise _inside(error) from error.__cause__

    async def end_segment(self) -> None:
        self._check()
        async with self._turn:
            self._check()
            await self._put(Kind.SEGMENT, None)

    async def _put(self, kind: Kind, body: Any) -> Receipt:
        """The next item; it is the next one still when this fails."""
        if self._before is not None:
            await finish_all([self._before])
            self._before = None
        await self._without_doubt()
        where = self._where
        key = item_key(where, self._items)
        item = (self._generation, int(kind), body, clock_id(), monotonic_ns())
        try:
            receipt = await self._streams.transport.put(
                *where.edge, key, item, request_id=where.key, timeout=None
            )
        except asyncio.CancelledError:
            fate = self._streams.transport.fate(TransferKey(*where.edge, key))
            self._doubt = None if fate is None else (fate, kind)
            raise
        except TransferError as error:
            error.args = (f"chunk {self._chunks} of stream {self.key!r}: {error}",)
            error.key, error.edge = where.key, where.edge
            raise
        if self._error is not None:  # it was cleaned up meanwhile, and this came too late for that
            raise self._error
        self._items += 1
        return receipt

    async def _without_doubt(self) -> None:
        """Know what became of an item whose put was cancelled: its number is used again only if it is not there."""
        if self._doubt is None:
            return
        fate, kind = self._doubt
        await asyncio.wait([fate])
        self._doubt = None
        if fate.result():
            self._items += 1
            self._chunks += kind is Kind.CHUNK

    def _check(self) -> None:
        """Raise unless a chunk may be sent."""
        self._streams.transport.check_caller()
        if not self._generation:
            raise UsageError(f"stream {self.key!r} has not begun: enter it by 'async with'")
        if self._error is not None:
            raise self._error
        if self._end_of_it is not None:
            raise UsageError(f"stream {self.key!r} on {self._where.edge} has been ended here")

    # --- the end ----------------------------------------------------------------------------------

    def finish(self) -> Awaitable[None]:
        return self._end(None)

    def abort(self, reason: str) -> Awaitable[None]:
        return self._end(reason or "aborted")

    def _end(self, reason: str | None) -> Awaitable[None]:
        self._streams.transport.check_caller()
        if not self._generation or self._error is not None:
            return SENT
        if self._end_of_it is None:
            self._end_of_it = self._streams.spawn(self._put_end(reason))
            self._streams.ends_writing(self._where, self._end_of_it)
        return Ending(self._end_of_it, loud=reason is None)

    async def _put_end(self, reason: str | None) -> OmniAsyncError | None:
        """Whoever awaits the end hears of its error; the log does in any case."""
        try:
            async with self._turn:
                await self._put(Kind.END, reason)
        except OmniAsyncError as error:
            self._meter.end(error, self._chunks)
            return error
        aborted = None if reason is None else StreamAborted(reason, reason=reason)
        self._meter.end(aborted, self._chunks)
        return None

    def fail(self, error: OmniAsyncError) -> bool:
        """Nothing more can be sent; whether the stream was going on."""
        if self._error is not None or self._end_of_it is not None:
            return False
        self._error = error
        self._meter.end(error, self._chunks)
        self._streams.ends_writing(self._where, None)
        return True

    # --- gauges -----------------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        return 0

    @property
    def in_flight(self) -> int:
        """The item that is being put."""
        return int(self._turn.locked())

    @property
    def credits(self) -> int:
        return 0


def _inside(error: EncodeError) -> EncodeError:
    """The same without our tuple: the user knows a chunk only."""
    error.args = (str(error).replace("value[2]", "value", 1),)
    error.path = None if error.path is None else error.path.replace("value[2]", "value", 1)
    return error
