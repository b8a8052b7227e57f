"""The writer of a stream between two processes.

In: chunks. Out: small ones inside their words, larger ones as payloads that a word names.
Never: sends what the reader gave no credit for; leaves a payload behind that nobody will take.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic_ns
from typing import Any

from ..._aio.breath import Breath
from ..._aio.loop import LoopBound
from ...codec import Encoded, encode
from ...errors import (
    BackPressure,
    ClosedError,
    StreamAborted,
    StreamClosed,
    TransferCancelled,
    TransferError,
    UsageError,
)
from ...model import TransferKey
from ...rendezvous.outlet import Outlet
from ..placing import inline_of
from ..sending import Sending
from ..wiring import Wiring
from .ends import named, of_chunk, writer_failure
from .writer import SENT, ChunkWriter


class DirectWriter(ChunkWriter):
    """One outlet of the rendezvous, and who waits for its credit."""

    def __init__(
        self,
        wiring: Wiring,
        sending: Sending,
        bound: LoopBound,
        breath: Breath,
        where: TransferKey,
        window: int,
    ) -> None:
        super().__init__(where)
        self._wiring = wiring
        self._sending = sending
        self._bound = bound
        self._breath = breath
        self._window = window
        self._outlet: Outlet | None = None
        self._turn = asyncio.Lock()
        self._queue = 0
        """Sends that wait for their turn, or have it."""
        self._filing = ""
        """Whose memory the chunk is put into that is being put."""
        self._waiter: asyncio.Future[None] | None = None
        self._on_stir: Callable[[], None] = _nobody

    @property
    def sent(self) -> int:
        return self._outlet.chunks if self._outlet is not None else 0

    @property
    def room(self) -> int:
        """Chunks that may be sent now without waiting."""
        outlet = self._outlet
        return 0 if outlet is None or self._queue or not self._may(outlet) else outlet.room

    def _may(self, outlet: Outlet) -> bool:
        """Whether there is credit for a chunk, and the way to the reader is not crowded."""
        return outlet.room > 0 and not self._sending.crowded(outlet)

    def _begin(self) -> Awaitable[None]:
        self._bound.check()
        if self._outlet is not None:
            raise UsageError(f"stream {self.key!r} was entered before; ask the edge for a new one")
        outlet = self._sending.open_stream(self._where, self._window)
        if outlet is None:
            raise UsageError(f"{named(self._where)} has a writer already; end that one first")
        self._outlet = outlet
        outlet.stir = self._stirred
        self._meter = self._wiring.meters.edge(self._where.edge).open(self.key)
        return SENT

    def drive(self, on_stir: Callable[[], None]) -> None:
        """Begin, for somebody who writes many streams at once.

        Args:
            on_stir: called on the event loop when there is credit or an end.
        """
        self._on_stir = on_stir
        self._begin()

    # --- chunks -----------------------------------------------------------------------------------

    async def send(self, chunk: Any) -> None:
        outlet = self._ready()
        encoded = encode(chunk)
        if self._breath.used_up():
            await asyncio.sleep(0)
            outlet = self._ready()
        try:
            if not self._send_at_once(outlet, encoded):
                await self._send_in_turn(outlet, encoded, chunk)
        finally:
            self._breath.used()

    def send_nowait(self, chunk: Any) -> None:
        """Send a small chunk, if there is credit for it.

        Raises:
            BackPressure: there is none, or the chunk is too large to ride inside its word.
            As :meth:`send`.
        """
        outlet = self._ready()
        encoded = encode(chunk)
        if not self._send_at_once(outlet, encoded):
            raise BackPressure(
                f"{named(self._where)} takes no more now; await send",
                key=self.key,
                edge=self._where.edge,
            )

    def _send_at_once(self, outlet: Outlet, encoded: Encoded) -> bool:
        """``False``: others are before it, there is no credit, or it does not fit into its word."""
        return not self._queue and self._may(outlet) and self._send_inline(outlet, encoded)

    def _send_inline(self, outlet: Outlet, encoded: Encoded) -> bool:
        small = inline_of(encoded, self._wiring.options.inline_limit)
        if small is None:
            return False
        self._sending.core.streams.chunk(outlet, *small, monotonic_ns())
        self._meter.sent(len(small[1]))
        self._sending.pump()
        return True

    async def _send_in_turn(self, outlet: Outlet, encoded: Encoded, chunk: Any) -> None:
        self._queue += 1
        try:
            async with self._turn:
                await self._room(outlet)
                if not self._send_inline(outlet, encoded):
                    await self._send_filed(outlet, encoded, chunk)
        finally:
            self._queue -= 1

    async def _send_filed(self, outlet: Outlet, encoded: Encoded, chunk: Any) -> None:
        """As a payload of its own, whose key no user can name."""
        sending, began = self._sending, monotonic_ns()
        # Not to be confused with a chunk that a sender before this one has announced.
        owner = f"{self._wiring.hello.incarnation}/{outlet.number}"
        key = TransferKey("", self._where.to_stage, f"{owner}/{outlet.chunks}")
        self._filing = owner
        try:
            receipt = await sending.put(key, chunk, owner, 1, None, encoded)
        except TransferError as error:
            self._ready()  # it was given up, because the stream is over
            raise of_chunk(error, self._where, outlet.chunks) from error.__cause__
        finally:
            self._filing = ""
        try:
            self._ready()
        except BaseException:
            sending.core.drop(key)
            sending.pump()
            raise
        sending.core.streams.filed_chunk(outlet, receipt.nbytes, key, began)
        self._meter.sent(receipt.nbytes)
        sending.pump()

    def end_segment_nowait(self) -> None:
        """:meth:`end_segment` while no send is under way."""
        self._sending.core.streams.segment(self._ready())
        self._sending.pump()

    async def end_segment(self) -> None:
        outlet = self._ready()
        self._queue += 1
        try:
            async with self._turn:
                self._ready()
                self._sending.core.streams.segment(outlet)
                self._sending.pump()
        finally:
            self._queue -= 1

    # --- credit -----------------------------------------------------------------------------------

    async def _room(self, outlet: Outlet) -> None:
        """Wait for credit."""
        began = 0
        while not self._may(outlet):
            self._ready()
            began = began or monotonic_ns()
            self._waiter = self._wiring.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if began:
            self._meter.stalled(began)
        self._ready()

    def _stirred(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        outlet, error = self._outlet, self.failure()
        assert outlet is not None  # it is the outlet that stirs
        if error is not None:
            self._meter.end(error, self.sent, dropped=outlet.queued)
        if self._filing and (error is not None or outlet.ended):
            # It may wait for space for as long as others hold it.
            cancelled = TransferCancelled(f"{named(self._where)} is over")
            self._wiring.pool.cancel_waiters(self._filing, cancelled)
        self._on_stir()

    def _ready(self) -> Outlet:
        """The outlet, if a chunk may be sent."""
        self._bound.check()
        outlet = self._outlet
        if outlet is None:
            raise UsageError(f"stream {self.key!r} has not begun: enter it by 'async with'")
        if outlet.broken is not None:
            raise writer_failure(self._wiring, self._where, outlet.broken)
        if outlet.ended:
            raise UsageError(f"{named(self._where)} has been ended here")
        self._sending.check_open()
        return outlet

    def failure(self) -> StreamClosed | TransferCancelled | ClosedError | None:
        """Why nothing can be sent any more, if so."""
        outlet = self._outlet
        if outlet is None or outlet.broken is None:
            return None
        return writer_failure(self._wiring, self._where, outlet.broken)

    # --- the end ----------------------------------------------------------------------------------

    def finish(self) -> Awaitable[None]:
        return self._end(None)

    def abort(self, reason: str) -> Awaitable[None]:
        return self._end(reason or "aborted")

    def discard(self) -> bool:
        """Drop what another writer of this key has finished and nobody has begun to read."""
        self._bound.check()
        dropped = self._sending.core.streams.discard(self._where)
        self._sending.pump()
        return dropped

    def _end(self, reason: str | None) -> Awaitable[None]:
        self._bound.check()
        if self._outlet is not None:
            self._sending.core.streams.end(self._outlet, reason, self._wiring.loop.time())
            error = None if reason is None else StreamAborted(reason, reason=reason)
            self._meter.end(error, self.sent)
            self._stirred()
            self._sending.pump()
        return SENT


def _nobody() -> None:
    """Until somebody drives the stream."""
