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
from ..transport.arguments import checked_key
from ..transport.streams.direct_writer import DirectWriter
from ..transport.streams.reader import Mark
from ..transport.streams.writer import reason_of
from .events import StreamFailed, StreamState
from .failures import failure
from .inbox import Inbox
from .limits import Limits, size_of
from .mailbox import Mailbox
from .outgoing import Budget, Outgoing, Submission
from .processor import Context, Processor
from .stall import StallClock
from .tasks import Tasks
from .writing import Piece, Source, open_writing

_log = get_logger("omni_async.stream")

FAILURES_KEPT = 1024
"""Requests that failed and whose failure nobody has taken; older ones are forgotten."""


class Producer:
    """One edge, at its sending end. What touches a table or a number of the budget holds the lock."""

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
        self._processor = processor
        self._lock = lock
        self._inbox = inbox
        self._mailbox = mailbox
        self._tasks = tasks
        self._budget = Budget(edge.name, limits)
        self._requests: dict[str, Outgoing] = {}
        """The newest generation of each id."""
        self._open: set[Outgoing] = set()
        """Those that are not over, older generations included."""
        self._failed: dict[Outgoing, None] = {}
        self._stalls: StallClock[Outgoing] = StallClock(stall_timeout, self._stalled)
        self._waiting: dict[str | None, list[tuple[str, asyncio.Future[None]]]] = {}
        """Who waits for room: of a request, or (``None``) of all."""
        self._drained: asyncio.Future[None] | None = None
        self.dropped = 0
        """Outputs at or below the watermark."""
        self.late = 0
        """Outputs of requests that had ended."""

    # --- any thread -------------------------------------------------------------------------------

    def submit(
        self,
        request_id: str,
        output: Any,
        position: int | None,
        finished: bool,
        segment_ended: bool,
        done: asyncio.Future[None] | None = None,
    ) -> bool:
        """Take an output; ``False`` when there was nothing left to take of it.

        Raises:
            BackPressure: past a limit; nothing was taken.
            OmniAsyncError: why the request has failed.
        """
        checked_key(request_id)
        if position is not None and (type(position) is not int or position < 0):
            raise UsageError(f"position must be an int of at least 0 or None, not {position!r}")
        nbytes = size_of(output)
        with self._lock:
            self._inbox.check()
            request = self._newest(request_id, finished)
            if position is not None and request is not None and request.watermark is not None:
                if position <= request.watermark:
                    self.dropped += 1
                    if not (finished or segment_ended):
                        return False
                    output, nbytes = None, 0
                position = max(position, request.watermark)
            self._budget.check(request_id, request, nbytes)
            if request is None:
                request = self._begin(request_id)
            if position is not None:
                request.watermark = position
            if segment_ended:
                request.watermark = None
            request.closed = finished
            self._budget.add(request, 1, nbytes)
            submission = Submission(request, output, nbytes, finished, segment_ended, done)
            self._inbox.append(partial(self._process, submission))
        self._inbox.wake()
        return True

    def _newest(self, request_id: str, finished: bool) -> Outgoing | None:
        """The generation that an output belongs to; ``None`` for a new one."""
        request = self._requests.get(request_id)
        if request is None or request.closed:
            return None
        if request.error is not None:
            if finished:  # the caller has no more to say of it, and hears of it here
                self._forget(request)
            raise copy.copy(request.error)
        return request

    def _begin(self, request_id: str) -> Outgoing:
        before = self._requests.get(request_id)
        context = Context(request_id, self.edge.name, self.edge.knobs)
        request = Outgoing(request_id, context, before)
        if before is not None:
            before.after = request
            before.drop()  # what becomes of it would be taken for the new one's
            self._failed.pop(before, None)
        self._requests[request_id] = request
        self._open.add(request)
        return request

    def _forget(self, request: Outgoing) -> None:
        """It has ended, and whoever had to hear of it has."""
        self._failed.pop(request, None)
        request.drop()
        if self._requests.get(request.request_id) is request:
            del self._requests[request.request_id]

    def abort(self, request_id: str, reason: str) -> None:
        """Give up every generation of it."""
        with self._lock:
            aborted = self._generations(request_id)
            for request in aborted:
                self._forget(request)
            self._inbox.append(partial(self._abort, request_id, aborted, reason))
        self._inbox.wake()

    def _generations(self, request_id: str) -> list[Outgoing]:
        request, found = self._requests.get(request_id), []
        while request is not None:
            found.append(request)
            request = request.before
        return found

    def taken(self, request: Outgoing) -> None:
        """Its failure has been taken."""
        with self._lock:
            self._forget(request)

    def state(self, request_id: str) -> StreamState:
        request = self._requests.get(request_id)
        if request is None:
            return StreamState.UNKNOWN
        if request.error is not None:
            return StreamState.FAILED
        return StreamState.DRAINING if request.closed else StreamState.SENDING

    def ids(self) -> list[str]:
        return list(self._requests)

    # --- the loop's -------------------------------------------------------------------------------

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
        context.active = len(self._open)
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
        if request.writing is None:
            if request.before is not None and not request.before.over:
                return
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

    def _left(self, request: Outgoing, item: Piece | Mark | asyncio.Future[None]) -> None:
        if isinstance(item, Piece):
            request.sent += 1
            self._stalls.start(request)
            self._release(request, 1, item.nbytes)
        elif item is Mark.FINISHED:
            self._end(request)
            with self._lock:
                self._forget(request)
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
            self._failed[request] = None
            self._mailbox.put(request, event)
            if len(self._failed) > FAILURES_KEPT:
                with self._lock:
                    self._forget(next(iter(self._failed)))
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
        for request in requests:
            if not request.over:
                request.error = error
                self._end(request, reason)
        if not requests:
            self._discard(request_id)
        for waiters in self._waiting.values():
            for whose, waiter in waiters:
                if whose == request_id:  # woken, they would begin it anew
                    _refuse(waiter, error)

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
        if reason is not None and request.writing is not None:
            request.writing.abort(reason)
        for item in request.queue:
            if isinstance(item, Piece):
                self._release(request, 1, item.nbytes)
            elif isinstance(item, asyncio.Future) and request.error is not None:
                _refuse(item, request.error)
        request.queue.clear()
        request.context.state.clear()
        request.writing = None
        with self._lock:
            self._open.discard(request)
        if request.after is not None:
            self._go_on(request.after)
        if self._drained is not None and not self._drained.done() and not self._draining():
            self._drained.set_result(None)

    # --- room -------------------------------------------------------------------------------------

    def _release(self, request: Outgoing, chunks: int, nbytes: int) -> None:
        with self._lock:
            self._budget.add(request, -chunks, -nbytes)
        if self._waiting:
            self._wake(request.request_id)
            if self._budget.relaxed:
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
        """:meth:`submit`, waiting for room, then for all of it to have left."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        while True:
            try:
                if self.submit(request_id, output, position, finished, segment_ended, done):
                    await done
                return
            except BackPressure as full:
                room = loop.create_future()
                self._waiting.setdefault(full.key, []).append((request_id, room))
            await room

    # --- the end ----------------------------------------------------------------------------------

    def _draining(self) -> bool:
        return any(request.closed for request in self._open)

    async def drain(self, timeout: float) -> None:
        """Wait until what was finished has left. Cancellation: safe."""
        if self._draining():
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
        with self._lock:
            left = {request.request_id for request in self._open}
            for request in list(self._requests.values()):
                self._forget(request)
            requests = list(self._open)
        for request in requests:
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
