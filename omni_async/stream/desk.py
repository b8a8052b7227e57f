"""Where outputs are handed in: which request they belong to, and whether there is room for them.

In: outputs, from any thread. Out: submissions, in order, to the loop.
Never: waits, but for whoever else is at the desk; holds the lock while a processor runs or a chunk leaves.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any

from ..errors import UsageError
from ..transport import Edge
from ..transport.arguments import checked_key
from .events import StreamState
from .inbox import Inbox
from .limits import Limits, size_of
from .outgoing import Budget, Outgoing, Submission
from .processor import Context

FAILURES_KEPT = 1024
"""Requests that failed and whose failure nobody has taken; older ones are forgotten."""


class Desk:
    """All requests that one edge writes. Public methods take the lock."""

    def __init__(
        self,
        edge: Edge,
        limits: Limits,
        lock: Lock,
        inbox: Inbox,
        process: Callable[[Submission], None],
    ) -> None:
        self._edge = edge
        self._lock = lock
        self._inbox = inbox
        self._process = process
        self._budget = Budget(edge.name, limits)
        self._newest: dict[str, Outgoing] = {}
        """The newest generation of each id."""
        self._open: set[Outgoing] = set()
        """Those that are not over, older generations included."""
        self._failed: dict[Outgoing, None] = {}
        self.dropped = 0
        """Outputs at or below the furthest position."""

    def submit(
        self,
        request_id: str,
        output: Any,
        position: int | None,
        finished: bool,
        segment_ended: bool,
        done: asyncio.Future[None] | None = None,
    ) -> bool:
        """Take an output; ``False`` when there was nothing to take of it.

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
            request = self._of(request_id, finished)
            if request is not None and request.covers(position):
                self.dropped += 1
                if not (finished or segment_ended):
                    return False
                output, nbytes, position = None, 0, None
            self._budget.check(request_id, request, nbytes)
            if request is None:
                request = self._begin(request_id)
            if position is not None:
                request.watermark = position
            if segment_ended:
                request.watermark = -1
            request.closed = finished
            self._budget.add(request, 1, nbytes)
            submission = Submission(request, output, nbytes, finished, segment_ended, done)
            self._inbox.append(partial(self._process, submission))
        self._inbox.wake()
        return True

    def _of(self, request_id: str, finished: bool) -> Outgoing | None:
        """The generation that an output belongs to; ``None`` for a new one."""
        request = self._newest.get(request_id)
        if request is None or request.closed:
            return None
        if request.error is not None:
            if finished:  # its caller has no more to say of it, and hears of the error now
                self._forget(request)
            raise copy.copy(request.error)
        return request

    def current(self, request_id: str) -> Outgoing | None:
        """The generation that an output would belong to now."""
        return self._newest.get(request_id)

    def _begin(self, request_id: str) -> Outgoing:
        before = self._newest.get(request_id)
        context = Context(request_id, self._edge.name, self._edge.knobs)
        request = Outgoing(request_id, context, before)
        if before is not None:
            before.after = request
            self._forget(before)  # what becomes of it would be taken for the new one's
        self._newest[request_id] = request
        self._open.add(request)
        return request

    def _forget(self, request: Outgoing) -> None:
        self._failed.pop(request, None)
        request.drop()
        if self._newest.get(request.request_id) is request:
            del self._newest[request.request_id]

    def forget(self, request: Outgoing) -> None:
        """It has ended, and whoever had to hear of it has."""
        with self._lock:
            self._forget(request)

    def give_up(
        self, request_id: str, abort: Callable[[str, list[Outgoing], str], None], reason: str
    ) -> None:
        """Forget every generation of it, and have them aborted."""
        with self._lock:
            request, generations = self._newest.get(request_id), list[Outgoing]()
            while request is not None:
                generations.append(request)
                request = request.before
            for each in generations:
                self._forget(each)
            self._inbox.append(partial(abort, request_id, generations, reason))
        self._inbox.wake()

    def clear(self) -> list[Outgoing]:
        """Forget all; which are not over."""
        with self._lock:
            for request in list(self._newest.values()):
                self._forget(request)
            return list(self._open)

    # --- the loop's -------------------------------------------------------------------------------

    def release(self, request: Outgoing, chunks: int, nbytes: int) -> bool:
        """So much waits no more; whether there is ample room for all now."""
        with self._lock:
            self._budget.add(request, -chunks, -nbytes)
            return self._budget.relaxed

    def over(self, request: Outgoing) -> None:
        """Nothing of it leaves any more."""
        with self._lock:
            self._open.discard(request)

    def failed(self, request: Outgoing) -> None:
        """It has ended by an error, which is remembered until somebody has heard of it."""
        with self._lock:
            if not request.dead:
                self._failed[request] = None
            if len(self._failed) > FAILURES_KEPT:
                self._forget(next(iter(self._failed)))

    # --- for people -------------------------------------------------------------------------------

    @property
    def open(self) -> int:
        """Requests that are not over."""
        return len(self._open)

    @property
    def draining(self) -> bool:
        """Whether something that was finished has not left."""
        with self._lock:
            return any(request.closed for request in self._open)

    def state(self, request_id: str) -> StreamState:
        request = self._newest.get(request_id)
        if request is None:
            return StreamState.UNKNOWN
        if request.error is not None:
            return StreamState.FAILED
        return StreamState.DRAINING if request.closed else StreamState.SENDING

    def ids(self) -> list[str]:
        return list(self._newest)
