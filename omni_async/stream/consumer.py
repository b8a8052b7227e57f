"""The consuming half of an adapter: as many streams as there are requests become events.

In: request ids, from any thread. Out: events, to the mailbox.
Never: polls; lets a request hear of an older one that had its id; gives credit for what nobody has taken.
"""

from __future__ import annotations

from functools import partial
from threading import Lock
from typing import Any

from ..errors import OmniAsyncError, TransferTimeout, UsageError
from ..transport import Edge
from ..transport.arguments import checked_key
from ..transport.streams.reader import Mark
from .events import ChunkReady, Event, SegmentEnded, StreamFailed, StreamFinished, StreamState
from .failures import failure
from .inbox import Inbox
from .incoming import Incoming
from .mailbox import Mailbox
from .reading import Metadata, Reading, Sink, open_reading
from .stall import StallClock
from .tasks import Tasks

Taken = dict[Incoming, list[int]]
"""Of each request: how many events were taken, and how many of them are chunks."""


class Consumer:
    """One edge, at its receiving end. What touches the table holds the lock."""

    def __init__(
        self,
        edge: Edge,
        max_active: int,
        stall_timeout: float,
        lock: Lock,
        inbox: Inbox,
        mailbox: Mailbox,
        tasks: Tasks,
    ) -> None:
        self.edge = edge
        self._max_active = max_active
        self._lock = lock
        self._inbox = inbox
        self._mailbox = mailbox
        self._tasks = tasks
        self._requests: dict[str, Incoming] = {}
        self._active = 0
        self._parked: dict[Incoming, Reading] = {}
        """In the order in which they came."""
        self._stalls: StallClock[Incoming] = StallClock(stall_timeout, self._stalled)
        self.stalls = 0
        """Requests that have failed because nothing came."""

    # --- any thread -------------------------------------------------------------------------------

    def register(self, request_id: str, metadata: Metadata) -> None:
        """Read a request.

        Raises:
            UsageError: it is being read, or its end was not taken yet.
        """
        checked_key(request_id)
        with self._lock:
            self._inbox.check()
            if request_id in self._requests:
                raise UsageError(
                    f"request {request_id!r} on {self.edge.name} is registered already; take its end "
                    "or abort it before its id is used again"
                )
            request = self._requests[request_id] = Incoming(request_id, metadata)
            self._inbox.append(partial(self._open, request))
        self._inbox.wake()

    def abort(self, request_id: str) -> None:
        """Read it no more; nothing is heard of it from now on."""
        with self._lock:
            request = self._requests.pop(request_id, None)
            if request is not None:
                request.drop()
                self._inbox.append(partial(self._close, request))
        self._inbox.wake()

    def taken(self, request: Incoming, event: Event) -> None:
        """An event was taken; what the loop has to know of it is :meth:`acknowledge`."""
        if isinstance(event, (StreamFinished, StreamFailed)):
            with self._lock:
                if self._requests.get(request.request_id) is request:
                    del self._requests[request.request_id]

    def state(self, request_id: str) -> StreamState:
        request = self._requests.get(request_id)
        return StreamState.UNKNOWN if request is None else request.state

    def ids(self) -> list[str]:
        return list(self._requests)

    # --- the loop's -------------------------------------------------------------------------------

    def _open(self, request: Incoming) -> None:
        if request.dead:
            return
        sink = Sink(partial(self._arrived, request), partial(self._broke, request))
        try:
            request.reading = open_reading(
                self.edge,
                request.request_id,
                request.metadata,
                sink,
                self._tasks,
                parked=not self._room,
            )
        except OmniAsyncError as error:
            self._broke(request, error)
            return
        self._parked[request] = request.reading
        self._promote()

    @property
    def _room(self) -> bool:
        """Whether one more may be active."""
        return not self._max_active or self._active < self._max_active

    def _promote(self) -> None:
        """Those who came first become active, as long as more may be."""
        while self._parked and self._room:
            request, reading = next(iter(self._parked.items()))
            del self._parked[request]
            request.active = True
            self._active += 1
            self._stalls.start(request)
            reading.begin()

    def _arrived(self, request: Incoming, item: Any) -> None:
        if item is Mark.FINISHED:
            self._tell(request, StreamFinished(request.request_id, request.index), last=True)
        elif item is Mark.SEGMENT:
            segment = request.segment
            request.segment += 1
            self._tell(request, SegmentEnded(request.request_id, segment, request.index))
        else:
            index = request.index
            request.index += 1
            self._tell(request, ChunkReady(request.request_id, item, index, request.segment))

    def _broke(self, request: Incoming, error: Exception) -> None:
        if not request.over:
            name = self.edge.name
            told = failure(error, request.request_id, name, request.index)
            failed = StreamFailed(request.request_id, told, name, request.index)
            self._tell(request, failed, last=True)

    def _tell(self, request: Incoming, event: Event, *, last: bool = False) -> None:
        request.told += 1
        self._stalls.stop(request)
        if last:
            request.over = True
            self._leave(request)
        self._mailbox.put(request, event)

    def _leave(self, request: Incoming) -> None:
        if request.reading is not None:
            request.reading.leave()
            request.reading = None

    def _stalled(self, request: Incoming) -> None:
        assert request.reading is not None
        self.stalls += 1
        seconds = self._stalls.timeout
        request.reading.fail(
            TransferTimeout(
                f"request {request.request_id!r} on {self.edge.name}: chunk {request.index} did not "
                f"come within {seconds:g} s; {request.reading.describe()}",
                phase="waiting for a chunk",
                timeout=seconds,
                key=request.request_id,
                edge=self.edge.name,
            )
        )

    def acknowledge(self, taken: Taken) -> None:
        """Events were taken: as many more may come, and who is through makes room for others."""
        for request, (events, chunks) in taken.items():
            request.done += events
            if request.reading is not None:
                if chunks:
                    request.reading.acknowledge(chunks)
                if request.waits:
                    self._stalls.start(request)
            elif request.told == request.done:
                self._close(request)

    def _close(self, request: Incoming) -> None:
        """It is over, and whoever had to hear of it has. Idempotent."""
        request.over = True
        self._stalls.stop(request)
        self._leave(request)
        self._parked.pop(request, None)
        if request.active:
            request.active = False
            self._active -= 1
            self._promote()

    def close(self) -> None:
        """Leave all streams."""
        self._stalls.close()
        with self._lock:
            requests = list(self._requests.values())
            self._requests.clear()
        self._max_active = -1  # nobody becomes active any more
        for request in requests:
            request.drop()
            self._close(request)
