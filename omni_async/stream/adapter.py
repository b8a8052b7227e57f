"""ChunkTransferAdapter: all streams of a stage, driven by a scheduler.

In: outputs and request ids, from any thread. Out: events.
Never: blocks its caller, polls, keeps anything of a request that is over.
"""

from __future__ import annotations

from functools import partial
from threading import Lock
from types import TracebackType
from typing import Any

from ..errors import UsageError
from ..observe.log import get_logger
from ..transport.streams.writer import reason_of
from .consumer import Consumer, Taken
from .ends import End, StageEdges, input_of, output_of
from .events import ChunkReady, Event, StreamState
from .inbox import Inbox
from .incoming import Incoming
from .limits import STALL_SECONDS, Limits, checked_max_active, checked_stall_timeout
from .mailbox import Mailbox, Request
from .outgoing import Outgoing
from .processor import Processor, as_they_are
from .producer import Producer
from .reading import Metadata
from .tasks import Tasks

_log = get_logger("omni_async.stream")

LINGER_SECONDS = 5.0
"""How long leaving waits for what was finished and is not sent."""


class ChunkTransferAdapter:
    """``async with ChunkTransferAdapter(stage) as adapter``: every request of a stage is a stream.

    It belongs to the event loop that enters it. :meth:`submit`, :meth:`poll`, :meth:`register`,
    :meth:`abort` and :meth:`state` may be called from any thread, and return at once.

    Args:
        stage: what :func:`open_stage` yields; ``None`` where both edges are given.
        input: what is read: an :class:`Edge` of a receiver, or the sending stage's id; by default the
            stage's only one, if it has any.
        output: what is written: an :class:`Edge` of a sender, or the receiving stage's id; by default the
            stage's only one, if it has any.
        processor: makes chunks of an output, see :class:`Processor`; by default each output is one.
        max_active: how many requests are read at a time; the others wait in the order they were
            registered. 0 is without a limit.
        stall_timeout: seconds after which a request fails of which nothing comes, or whose next chunk
            nobody takes; 0 for never.
        limits: how much may wait to be sent.

    Raises:
        UsageError: an edge, a number or a processor that makes no sense; several edges and none named.
    """

    def __init__(
        self,
        stage: StageEdges | None,
        input: End = None,
        output: End = None,
        processor: Processor | None = None,
        max_active: int = 0,
        stall_timeout: float = STALL_SECONDS,
        *,
        limits: Limits | None = None,
    ) -> None:
        self._input = input_of(stage, input)
        self._output = output_of(stage, output)
        if processor is not None and not callable(processor):
            raise UsageError(f"processor must be callable, not {processor!r}")
        self._processor = as_they_are if processor is None else processor
        self._max_active = checked_max_active(max_active)
        self._stall_timeout = checked_stall_timeout(stall_timeout)
        self._limits = Limits() if limits is None else limits
        self._mailbox = Mailbox()
        self._taker = ""
        self._consumer: Consumer | None = None
        self._producer: Producer | None = None
        self._open: Inbox | None = None
        self._closed = False

    def __repr__(self) -> str:
        edges = [str(edge.name) for edge in (self._input, self._output) if edge is not None]
        state = "closed" if self._closed else "open" if self._open is not None else "not entered"
        return f"<ChunkTransferAdapter of {' and '.join(edges) or 'no edge'}, {state}>"

    # --- its life ---------------------------------------------------------------------------------

    async def __aenter__(self) -> ChunkTransferAdapter:
        if self._open is not None:
            raise UsageError("the adapter was entered before; make a new one")
        lock = Lock()
        self._tasks = Tasks()
        inbox = Inbox(repr(self), lock)
        shared = (lock, inbox, self._mailbox, self._tasks)
        if self._input is not None:
            self._consumer = Consumer(self._input, self._max_active, self._stall_timeout, *shared)
        if self._output is not None:
            self._producer = Producer(
                self._output, self._processor, self._limits, self._stall_timeout, *shared
            )
        if not self._stall_timeout:
            _log.warning("stall_timeout is 0: a request that nothing comes of waits for ever")
        self._open = inbox
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """What was finished is sent, for at most 5 s; what was not, and all of it after an error, is aborted.

        Cancellation: ends; what is left is aborted.
        """
        try:
            if error is None and self._producer is not None:
                await self._producer.drain(LINGER_SECONDS)
        finally:
            await self._close("the adapter was closed" if error is None else reason_of(error))

    async def _close(self, reason: str) -> None:
        self._closed = True
        self._inbox.close()
        if self._consumer is not None:
            self._consumer.close()
        if self._producer is not None:
            self._producer.close(reason)
        self._mailbox.ring()
        await self._tasks.close()

    @property
    def _inbox(self) -> Inbox:
        if self._open is None:
            raise UsageError("the adapter is entered by 'async with' before it is used")
        return self._open

    # --- producing --------------------------------------------------------------------------------

    def submit(
        self,
        request_id: str,
        output: Any,
        position: int | None = None,
        finished: bool = False,
        *,
        segment_ended: bool = False,
    ) -> None:
        """Hand over an output of a request; any thread. The first one begins its stream.

        Args:
            request_id: whose it is.
            output: what the processor takes, ``None`` for no output. It belongs to the adapter from now
                on: do not change it.
            position: how far the request has come, such as committed tokens. An output at or below the
                furthest position of its segment was submitted before, and is dropped and counted.
            finished: nothing follows. The id may be used again at once; a stream that had been sent
                whole and that nobody had begun to read is replaced then.
            segment_ended: a segment ends behind this output; positions begin anew.

        Raises:
            BackPressure: too much waits already, of this request or of all; nothing was taken.
            StreamError, TransferError: the request has failed. It stays so until its
                :class:`StreamFailed` is taken, :meth:`abort` is called, or ``finished`` was refused so.
            UsageError: no such id or position; the stage has no output.
            ClosedError: the adapter is closed.
        """
        inbox = self._inbox
        producer = self._writes(output)
        if producer is not None:
            producer.desk.submit(request_id, output, position, finished, segment_ended)
        else:
            inbox.check()

    async def send(
        self,
        request_id: str,
        output: Any,
        position: int | None = None,
        finished: bool = False,
        *,
        segment_ended: bool = False,
    ) -> None:
        """:meth:`submit`, waiting where that raises :class:`BackPressure`, until its chunks have left.

        On the adapter's own event loop only.

        Raises:
            As :meth:`submit`, and why its own chunks could not be sent.

        Cancellation: unknown; what was taken by then is sent all the same.
        """
        inbox = self._inbox
        if not inbox.on_loop:
            raise UsageError("send is awaited on the adapter's event loop; elsewhere use submit")
        producer = self._writes(output)
        if producer is not None:
            await producer.send(request_id, output, position, finished, segment_ended)

    def _writes(self, output: Any) -> Producer | None:
        """``None``: the end of a request that goes nowhere is nothing to be sent."""
        if self._producer is None and output is not None:
            raise UsageError("the stage has no output to send this to")
        return self._producer

    # --- consuming --------------------------------------------------------------------------------

    def register(self, request_id: str, metadata: Metadata = None) -> None:
        """A request will stream in; any thread. Whether it has begun does not matter.

        Args:
            request_id: which.
            metadata: where its sender is, as for :meth:`Edge.get`.

        Raises:
            UsageError: it is registered, or its end was not taken; the stage has no input.
            ClosedError: the adapter is closed.
        """
        self._inbox.check()
        if self._consumer is None:
            raise UsageError("the stage has no input that could stream in")
        self._consumer.register(request_id, metadata)

    def poll(self) -> list[Event]:
        """All events that are ready now; any thread, one at a time.

        Credit for the chunks goes back with this call: what a scheduler does not poll holds back its
        producer.

        Raises:
            UsageError: :meth:`events` is in use.
            ClosedError: the adapter is closed.
        """
        inbox = self._inbox
        inbox.check()
        self._claim("poll")
        events: list[Event] = []
        taken: Taken = {}
        for _ in range(len(self._mailbox)):  # not what arrives meanwhile: it would never end
            entry = self._mailbox.take()
            if entry is None:
                break
            events.append(entry[1])
            self._taken(*entry, taken)
        if taken and self._consumer is not None:
            inbox.append(partial(self._consumer.acknowledge, taken))
            inbox.wake()
        return events

    def events(self) -> EventStream:
        """The events, as they come: ``async for event in adapter.events()``. Ends when the adapter closes.

        Raises:
            UsageError: :meth:`poll` is in use.
        """
        self._claim("events")
        return EventStream(self)

    async def _next_event(self) -> Event | None:
        if not self._inbox.on_loop or self._mailbox.awaited:
            raise UsageError("events() is read by one task, on the adapter's event loop")
        while not self._closed:
            entry = self._mailbox.take()
            if entry is not None:
                taken: Taken = {}
                self._taken(*entry, taken)
                if taken and self._consumer is not None:
                    self._consumer.acknowledge(taken)
                return entry[1]
            await self._mailbox.wait()
        return None

    def _claim(self, taker: str) -> None:
        if self._taker not in ("", taker):
            raise UsageError("events are taken by poll() or by events(), not by both")
        self._taker = taker

    def _taken(self, request: Request, event: Event, taken: Taken) -> None:
        if isinstance(request, Incoming):
            assert self._consumer is not None
            self._consumer.taken(request, event)
            counts = taken.setdefault(request, [0, 0])
            counts[0] += 1
            counts[1] += isinstance(event, ChunkReady)
        else:
            assert isinstance(request, Outgoing)
            assert self._producer is not None
            self._producer.desk.forget(request)

    # --- both -------------------------------------------------------------------------------------

    def state(self, request_id: str) -> StreamState:
        """Of what the request reads, if it does, else of what it writes; any thread."""
        state = StreamState.UNKNOWN
        if self._consumer is not None:
            state = self._consumer.state(request_id)
        if state is StreamState.UNKNOWN and self._producer is not None:
            state = self._producer.desk.state(request_id)
        return state

    def abort(self, request_id: str, reason: str = "aborted") -> None:
        """Give a request up, in both directions; any thread.

        Its consumer gets what was sent before, then ``reason``; its producer hears that it has left.
        Nothing is heard of it here from now on, and its id may be used again at once. One that is not
        known is nothing to give up.

        Raises:
            ClosedError: the adapter is closed.
        """
        self._inbox.check()
        if self._consumer is not None:
            self._consumer.abort(request_id)
        if self._producer is not None:
            self._producer.abort(request_id, reason)

    @property
    def requests(self) -> frozenset[str]:
        """Ids that something is kept of: what a scheduler does not know of them it may abort."""
        read = self._consumer.ids() if self._consumer is not None else []
        written = self._producer.desk.ids() if self._producer is not None else []
        return frozenset([*read, *written])

    @property
    def dropped(self) -> int:
        """Outputs that were at or below the furthest position of their request."""
        return self._producer.desk.dropped if self._producer is not None else 0


class EventStream:
    """What :meth:`ChunkTransferAdapter.events` gives. Cancellation: safe; no event is lost."""

    def __init__(self, adapter: ChunkTransferAdapter) -> None:
        self._adapter = adapter

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> Event:
        event = await self._adapter._next_event()
        if event is None:
            raise StopAsyncIteration
        return event
