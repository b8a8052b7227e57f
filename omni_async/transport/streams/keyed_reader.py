"""The reader of a stream over a store.

In: items, got one after another. Out: chunks in order, each once, then the end.
Never: asks for two items at once, waits longer than its stall limit, tells the writer anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..._aio.deadline import seconds
from ..._aio.finish import finish_all
from ...errors import (
    DecodeError,
    OmniAsyncError,
    StreamAborted,
    StreamEmpty,
    StreamStalled,
    TransferError,
    TransferTimeout,
    UsageError,
)
from ...model import TransferKey
from ...observe.clock import clock_id
from .keyed_items import Item, Kind, checked_where, item_key, item_of
from .reader import ChunkReader, Mark
from .writer import SENT

if TYPE_CHECKING:
    from .keyed import KeyedStreams

SHORTEST = 0.001
"""Seconds; a get that may wait for none at all is another question."""
REPLACED = "another writer has begun a stream under its key"


class Got(NamedTuple):
    item: Item
    nbytes: int


class Left:
    """A get that was called back; need not be awaited."""

    def __init__(self, get: asyncio.Task[Got]) -> None:
        self._get = get

    def __await__(self) -> Generator[Any, None, None]:
        return finish_all([self._get]).__await__()


class KeyedReader(ChunkReader):
    """One request's items. The next one is being got from the moment the one before was taken.

    Its writer hears nothing: after :meth:`leave` what was not read stays in the store until it expires
    (``buffer_ttl_seconds``), or until the sender cleans the request up.
    """

    def __init__(
        self,
        streams: KeyedStreams,
        where: TransferKey,
        metadata: Mapping[str, Any] | None = None,
        stall: float | None = None,
    ) -> None:
        super().__init__(checked_where(where))
        self._streams = streams
        self._metadata = metadata
        self._stall = stall
        self._begun = False
        self._left = False
        self._over = False
        """The end mark was taken."""
        self._error: OmniAsyncError | None = None
        """Why nothing comes behind what :attr:`_get` has, if it is there still."""
        self._generation: int | None = None
        self._items = 0
        self._chunks = 0
        self._get: asyncio.Task[Got] | None = None
        self._waiter: asyncio.Future[bool] | None = None

    def _begin(self) -> Awaitable[None]:
        self._streams.transport.check_open()
        if self._begun:
            raise UsageError(f"stream {self.key!r} was entered before; ask the edge for a new one")
        self._streams.begin_reading(self._where, self)
        self._begun = True
        self._meter = self._streams.meters.edge(self._where.edge).open(self.key)
        self._ask()
        return SENT

    # --- getting ----------------------------------------------------------------------------------

    def _ask(self) -> None:
        """Begin to get the next item."""
        if self._error is None:
            self._get = self._streams.spawn(self._next())
            self._get.add_done_callback(self._arrived)
        else:
            self._get = None

    async def _next(self) -> Got:
        """The next item of this stream; what an earlier one left under its key is thrown away."""
        loop = asyncio.get_running_loop()
        limit = None if self._stall is None else loop.time() + self._stall
        where, key = self._where, item_key(self._where, self._items)
        while True:
            timeout = None if limit is None else max(SHORTEST, limit - loop.time())
            delivery = await self._streams.transport.get(
                *where.edge, key, self._metadata, timeout=timeout
            )
            item = item_of(delivery.value, key)
            if self._generation is None:
                self._generation = item.generation
            if item.generation == self._generation:
                return Got(item, delivery.nbytes)
            if item.generation > self._generation:
                text = f"stream {self.key!r} on {where.edge} was aborted: {REPLACED}"
                raise StreamAborted(text, reason=REPLACED, key=where.key, edge=where.edge)
            self._meter.dropped(1, "an earlier stream has left it under the same key")

    def _arrived(self, get: asyncio.Task[Got]) -> None:
        if not get.cancelled():
            get.exception()  # whoever takes the item sees it; nobody may
        if get is self._get:
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None:
            _tell(self._waiter, False)

    # --- taking -----------------------------------------------------------------------------------

    async def _item(self, timeout: float | None) -> Any:
        limit = seconds(timeout)
        late = False
        while not self.ready:
            if late:
                raise self._not_yet(timeout)
            late = await self._wait(limit)
        return self._take()

    def _item_nowait(self) -> Any:
        if not self.ready:
            text = f"{self._name}: chunk {self._chunks} is not here yet"
            raise StreamEmpty(text, key=self.key, edge=self._where.edge)
        return self._take()

    def _take(self) -> Any:
        get = self._get
        if get is None:
            if self._over:
                return Mark.FINISHED
            assert self._error is not None
            raise self._error
        try:
            item, nbytes = get.result()
        except DecodeError as error:  # that one cannot be read here; the next one may
            error.args = (f"chunk {self._chunks} of stream {self.key!r}: {error}",)
            self._items += 1
            self._chunks += 1
            self._ask()
            raise
        except OmniAsyncError as error:
            self._get = None
            self._over_by(self._told(error))
            assert self._error is not None
            raise self._error from error.__cause__
        return self._handed(item, nbytes)

    def _handed(self, item: Item, nbytes: int) -> Any:
        self._items += 1
        if item.kind is Kind.CHUNK:
            self._chunks += 1
            self._meter.took(nbytes, item.at if item.clock == clock_id() != 0 else 0)
            self._ask()
            return item.body
        if item.kind is Kind.SEGMENT:
            self._ask()
            return Mark.SEGMENT
        self._get = None
        if item.body is None:
            self._over = True
            self._meter.end(None, self._chunks)
            self._streams.ends_reading(self._where, self)
            return Mark.FINISHED
        text = f"{self._name} was aborted: {item.body}"
        error = StreamAborted(text, reason=item.body, key=self.key, edge=self._where.edge)
        self._over_by(error)
        raise error

    def _over_by(self, error: OmniAsyncError) -> None:
        if self._error is None:
            self._error = error
        self._meter.end(self._error, self._chunks)
        self._streams.ends_reading(self._where, self)

    def _told(self, error: OmniAsyncError) -> OmniAsyncError:
        """The error of a get as one of this stream."""
        where = self._where
        if isinstance(error, TransferTimeout):
            return StreamStalled(
                f"{self._name}: chunk {self._chunks} did not come within {self._stall:g} s, the stall "
                f"limit, and the stream was given up ({error})",
                chunk=self._chunks,
                timeout=self._stall,
                key=where.key,
                edge=where.edge,
            )
        if isinstance(error, TransferError):
            error.args = (f"chunk {self._chunks} of stream {self.key!r}: {error}",)
            error.key, error.edge = where.key, where.edge
        return error

    def _not_yet(self, timeout: float | None) -> TransferTimeout:
        return TransferTimeout(
            f"{self._name}: chunk {self._chunks} did not come within {timeout:g} s; the stream goes on",
            phase="waiting for a chunk",
            timeout=timeout,
            key=self.key,
            edge=self._where.edge,
            backend=self._streams.transport.capabilities.backend,
        )

    async def _wait(self, limit: float | None) -> bool:
        """Wait until something has arrived; true when ``limit`` seconds passed first."""
        if self._waiter is not None:
            raise UsageError(f"stream {self.key!r} is being read by another task already")
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiter = waiter
        timer = None if limit is None else loop.call_later(limit, _tell, waiter, True)
        try:
            return await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    @property
    def _name(self) -> str:
        return f"stream {self.key!r} on {self._where.edge}"

    @property
    def ready(self) -> bool:
        """Whether there is an item, or a reason why nothing comes."""
        self._streams.transport.check_caller()
        if not self._begun:
            raise UsageError(f"stream {self.key!r} has not begun: enter it by 'async with'")
        if self._left:
            raise UsageError(f"{self._name} has been left here")
        return self._get is None or self._get.done()

    # --- the end ----------------------------------------------------------------------------------

    def fail(self, error: OmniAsyncError) -> bool:
        """End it here, behind the item that has arrived; whether it was going on."""
        if self._error is not None or self._over:
            return False
        self._error = error
        self._meter.end(error, self._chunks)
        self._streams.ends_reading(self._where, self)
        if self._get is not None and not self._get.done():
            get, self._get = self._get, None
            get.cancel()
        self._wake()
        return True

    def leave(self) -> Awaitable[None]:
        self._streams.transport.check_caller()
        if not self._begun or self._left:
            return SENT
        self._left = True
        self._meter.leave(self._chunks, dropped=self.queued)
        self._streams.ends_reading(self._where, self)
        get, self._get = self._get, None
        self._wake()
        if get is None:
            return SENT
        get.cancel()
        return Left(get)

    # --- gauges -----------------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        """The chunk that is here and not handed over."""
        get = self._get
        if get is None or not get.done() or get.cancelled() or get.exception() is not None:
            return 0
        return int(get.result().item.kind is Kind.CHUNK)

    @property
    def in_flight(self) -> int:
        return 0

    @property
    def credits(self) -> int:
        return 0


def _tell(waiter: asyncio.Future[bool], late: bool) -> None:
    if not waiter.done():
        waiter.set_result(late)
