"""The producing half of an adapter: outputs of many requests become chunks of as many streams.

In: outputs, from any thread. Out: chunks to the next stage, failures to the mailbox.
Never: waits in ``submit``, lets one request hold up another, drops a chunk without a word.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
from functools import partial
from threading import Lock
from typing import Any

from ..errors import (
    BackPressure,
    ClosedError,
    OmniAsyncError,
    StreamAborted,
    TransferTimeout,
    UsageError,
)
from ..observe.log import get_logger
from ..transport import Edge
from ..transport.streams.direct_writer import DirectWriter
from ..transport.streams.reader import Mark
from ..transport.streams.writer import reason_of
from .desk import Desk
from .events import StreamFailed
from .failures import failure
from .inbox import Inbox
from .limits import Limits, size_of
from .mailbox import Mailbox
from .outgoing import Outgoing, Submission
from .processor import Processor
from .stall import StallClock
from .tasks import Tasks
from .writing import Piece, Source, open_writing

_log = get_logger("omni_async.stream")


class Producer:
    """One edge, at its sending end: what happens on the loop. Threads come to :attr:`desk` only."""

    def __init__(
        self,
        edge: Edge,
        processor: Processor,
        limits: Limits,
        stall_timeout: float,
        lock: Lock,
        inbox: Inbox,
        mailbox: Mailbox,
        tasks: Tasks,
    ) -> None:
        self.edge = edge
        self.desk = Desk(edge, limits, lock, inbox, self._process)
        self._processor = processor
        self._mailbox = mailbox
        self._tasks = tasks
        self._stalls: StallClock[Outgoing] = StallClock(stall_timeout, self._stalled)
        self._waiting: dict[str | None, list[tuple[str, asyncio.Future[None]]]] = {}
        """Who waits for room: of a request, or (``None``) of all."""
        self._drained: asyncio.Future[None] | None = None
        self.late = 0
        """Outputs of requests that had failed or been aborted."""

    def abort(self, request_id: str, reason: str) -> None:
        """Give up every generation of it. Any thread."""
        self.desk.give_up(request_id, self._abort, reason)

    # --- from output to chunk ---------------------------------------------------------------------

    def _process(self, submission: Submission) -> None:
        """An output becomes chunks in the queue."""
        request, output, nbytes, finished, segment_ended, done = submission
        if request.error is not None:
            self.late += 1
            self._release(request, 1, nbytes)
            _refuse(done, request.error)
            return
        context = request.context
        context.finished, context.segment_ended = finished, segment_ended
        context.active = self.desk.open
        try:
            pieces = _pieces(self._processor(output, context), output, nbytes)
        except Exception as error:  # noqa: BLE001 - a processor may raise anything: its request fails
            self._release(request, 1, nbytes)
            _refuse(done, self._fail(request, error, "its processor failed"))
            return
        context.chunks += len(pieces)
        self._release(request, 1 - len(pieces), nbytes - sum(piece.nbytes for piece in pieces))
        queue = request.queue
        idle = not queue
        queue.extend(pieces)
        if segment_ended:
            context.state.clear()
            queue.append(Mark.SEGMENT)
        if done is not None:
            queue.append(done)
        if finished:
            queue.append(Mark.FINISHED)
        if idle and queue:
            self._stalls.start(request)
        self._go_on(request)

    def _go_on(self, request: Outgoing) -> None:
        """Send what may be sent, or begin, if the generation before has ended."""
        if request.before is not None and not request.before.over:
            return
        if request.writing is None:
            request.before = None
            source = Source(
                request.queue, partial(self._left, request), partial(self._fail, request)
            )
            try:
                request.writing = open_writing(self.edge, request.request_id, source, self._tasks)
            except OmniAsyncError as error:
                self._fail(request, error)
                return
        request.writing.go_on()
        if request.over and request.writing is not None:  # it ended before it could begin
            request.writing.abort(request.reason)
            request.writing = None

    def _left(self, request: Outgoing, item: Piece | Mark | asyncio.Future[None]) -> None:
        if isinstance(item, Piece):
            request.sent += 1
            self._stalls.start(request)
            self._release(request, 1, item.nbytes)
        elif item is Mark.FINISHED:
            self._end(request)
            self.desk.forget(request)
        elif isinstance(item, asyncio.Future):
            _settle(item)
        if not request.queue:
            self._stalls.stop(request)

    def _fail(self, request: Outgoing, error: Exception, what: str = "") -> OmniAsyncError:
        """It ends by this error, here and at its consumer."""
        if request.error is None:
            where = self.edge.name
            request.error = failure(error, request.request_id, where, request.sent, what)
            self._end(request, reason_of(error))
            event = StreamFailed(request.request_id, request.error, where, request.sent)
            self._mailbox.put(request, event)
            self.desk.failed(request)
        return request.error

    def _stalled(self, request: Outgoing) -> None:
        seconds = self._stalls.timeout
        self._fail(
            request,
            TransferTimeout(
                f"request {request.request_id!r} on {self.edge.name}: nobody has taken chunk "
                f"{request.sent} within {seconds:g} s",
                phase="waiting for credit",
                timeout=seconds,
                key=request.request_id,
                edge=self.edge.name,
            ),
        )

    def _abort(self, request_id: str, requests: list[Outgoing], reason: str) -> None:
        error = StreamAborted(
            f"request {request_id!r} on {self.edge.name} was aborted here: {reason}",
            reason=reason,
            key=request_id,
            edge=self.edge.name,
        )
        for waiters in self._waiting.values():
            for whose, waiter in waiters:
                if whose == request_id:  # woken, they would begin it anew
                    _refuse(waiter, error)
        for request in requests:
            if not request.over:
                request.error = error
                self._end(request, reason)
        if not requests:
            self._discard(request_id)

    def _discard(self, request_id: str) -> None:
        """Drop a stream that has ended and that nobody has begun to read."""
        with contextlib.suppress(ClosedError):
            writer = self.edge.writer(request_id)
            if isinstance(writer, DirectWriter):
                writer.discard()

    def _end(self, request: Outgoing, reason: str | None = None) -> None:
        """Nothing of it leaves any more."""
        request.over = True
        self._stalls.stop(request)
        for item in request.queue:
            if isinstance(item, Piece):
                self._release(request, 1, item.nbytes)
            elif isinstance(item, asyncio.Future) and request.error is not None:
                _refuse(item, request.error)
        request.queue.clear()
        request.context.state.clear()
        self.desk.over(request)
        if reason is not None:
            self._give_up(request, reason)
        request.writing = None
        if request.after is not None:
            self._go_on(request.after)
        if self._drained is not None and not self.desk.draining:
            _settle(self._drained)

    def _give_up(self, request: Outgoing, reason: str) -> None:
        """Tell its consumer, also where its stream has not begun."""
        request.reason = reason
        if request.writing is not None:
            request.writing.abort(reason)
        elif not self.edge.transport.closed:
            self._go_on(request)

    # --- room -------------------------------------------------------------------------------------

    def _release(self, request: Outgoing, chunks: int, nbytes: int) -> None:
        relaxed = self.desk.release(request, chunks, nbytes)
        if self._waiting:
            self._wake(request.request_id)
            if relaxed:
                self._wake(None)

    def _wake(self, whose: str | None) -> None:
        for _, waiter in self._waiting.pop(whose, ()):
            _settle(waiter)

    async def send(
        self,
        request_id: str,
        output: Any,
        position: int | None,
        finished: bool,
        segment_ended: bool,
    ) -> None:
        """Hand in an output as soon as there is room, and wait until all of it has left."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        while True:
            try:
                if self.desk.submit(request_id, output, position, finished, segment_ended, done):
                    await done
                return
            except BackPressure as full:
                request = self.desk.current(request_id)
                room = loop.create_future()
                self._waiting.setdefault(full.key, []).append((request_id, room))
            await room
            if request is not None and request.dead and request.error is not None:
                raise copy.copy(request.error)  # it was aborted, and is not begun anew by this

    # --- the end ----------------------------------------------------------------------------------

    async def drain(self, timeout: float) -> None:
        """Wait until what was finished has left. Cancellation: safe."""
        if self.desk.draining:
            loop = asyncio.get_running_loop()
            self._drained = loop.create_future()
            timer = loop.call_later(timeout, _settle, self._drained)
            try:
                await self._drained
            finally:
                timer.cancel()

    def close(self, reason: str) -> None:
        """Give up all that is open."""
        self._stalls.close()
        left = self.desk.clear()
        for request in left:
            self._abort(request.request_id, [request], reason)
        for whose in list(self._waiting):
            self._wake(whose)  # they find it closed
        if left:
            _log.info("closed with open requests", edge=str(self.edge.name), count=len(left))


def _pieces(chunks: Any, output: Any, nbytes: int) -> list[Piece]:
    if chunks is None:
        return []
    if not isinstance(chunks, (list, tuple)):
        raise UsageError(f"a processor returns a list of chunks, not {type(chunks).__name__}")
    return [Piece(chunk, nbytes if chunk is output else size_of(chunk)) for chunk in chunks]


def _refuse(waiter: asyncio.Future[None] | None, error: OmniAsyncError) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_exception(copy.copy(error))


def _settle(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
