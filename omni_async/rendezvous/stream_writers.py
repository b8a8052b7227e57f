"""The writers' half of streams, without I/O: all writers of one sender endpoint.

In: items to send, words of readers, ends of peers, the time. Out: words to send, writers to be told.
Never: sends a reader more chunks than it gave credit for, reaches a clock, looks into a chunk.

::

    UNREAD ──Open──> READ ──End is sent──> ENDED ──Release──> (gone)
       │               ├──Cancel, peer's end──> BROKEN
       └── End is queued, and waits for a reader: replaced by a new writer of its key, or expires
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterable

from ..model import TransferKey
from .directory import Ref
from .messages import Chunk, End, Fail, FailCode, Message, Open, Segment


class Broken(enum.Enum):
    """Why a writer may send no more."""

    LEFT = "its reader has left it"
    LOST = "its reader went away"
    CLEANED = "it was ended by cleanup"
    CLOSED = "the transport was closed"
    REPLACED = "another writer has begun a stream under its key"


class Outlet:
    """One stream as its writer sees it."""

    __slots__ = (
        "backlog", "broken", "chunks", "ended", "ended_at", "filed", "granted", "items", "key", "number",
        "opened_with", "ref", "stir", "told", "window",
    )  # fmt: skip

    def __init__(self, number: int, key: TransferKey, window: int) -> None:
        self.number = number
        self.key = key
        self.window = window
        """Chunks that may wait here for a reader that has not come yet."""
        self.ref: Ref | None = None
        self.opened_with = 0
        """Credit that the reader came with."""
        self.granted = 0
        """Chunks that the reader has given credit for, from the begin on."""
        self.chunks = 0
        """Chunks that the writer has handed over."""
        self.told = 0
        """Chunks of these that were sent."""
        self.items = 0
        self.backlog: deque[Chunk | Segment | End] = deque()
        self.ended = False
        self.ended_at = 0.0
        self.broken: Broken | None = None
        self.filed: deque[TransferKey] = deque(maxlen=window)
        """What the newest larger chunks are put under: older ones have been taken."""
        self.stir: Callable[[], None] = _nobody
        """Whom to call for what is in :attr:`Writers.stirred`."""

    @property
    def room(self) -> int:
        """Chunks the writer may hand over now."""
        limit = self.window if self.ref is None else self.granted
        return max(0, limit - self.chunks)

    @property
    def credits(self) -> int:
        """The same, of a stream that has not ended."""
        return 0 if self.ended else self.room

    @property
    def queued(self) -> int:
        """Chunks that wait here for a reader or its credit."""
        return self.chunks - self.told

    @property
    def in_flight(self) -> int:
        """Chunks that were sent and that the reader is not known to be done with."""
        return self.told - (self.granted - self.opened_with)


def _nobody() -> None:
    """Until a writer holds the outlet."""


class Writers:
    """Every stream that is written at one endpoint, and every reader that waits for one."""

    def __init__(self, say: Callable[[Ref, Message], None]) -> None:
        self._say = say
        self.stirred: list[Outlet] = []
        """Outlets whose writers have something to learn: credit, or that they are broken."""
        self.forsaken: list[Outlet] = []
        """Outlets whose chunks nobody will take any more: what is filed for them can go."""
        self.ignored = 0
        self._numbers = 0
        self._outlets: dict[TransferKey, Outlet] = {}
        """By key: the stream a reader would get now."""
        self._read: dict[Ref, Outlet] = {}
        self._waiting: dict[TransferKey, dict[Ref, int]] = {}
        """Readers that came first, with their credit."""
        self._waits_for: dict[Ref, TransferKey] = {}
        self._last_open: dict[int, int] = {}

    # --- writers ----------------------------------------------------------------------------------

    def open(self, key: TransferKey, window: int) -> Outlet | None:
        """Begin a stream; ``None`` while another writer has one open under this key.

        One that has ended and that nobody has begun to read is replaced.
        """
        known = self._outlets.get(key)
        if known is not None:
            if not known.ended:
                return None
            self._break(known, Broken.REPLACED)
        self._numbers += 1
        outlet = self._outlets[key] = Outlet(self._numbers, key, window)
        waiting = self._waiting.get(key)
        if waiting:
            ref = next(iter(waiting))
            self._attach(outlet, ref, self._unwait(ref))
        return outlet

    def chunk(self, outlet: Outlet, sizes: list[int], inline: bytes, at: int = 0) -> None:
        """The next chunk. There is :attr:`Outlet.room` for it."""
        outlet.chunks += 1
        self._put(outlet, Chunk(0, outlet.items, sizes, inline, "", at))

    def filed_chunk(self, outlet: Outlet, nbytes: int, key: TransferKey, at: int = 0) -> None:
        """The next chunk, a larger one that was put under this key."""
        outlet.chunks += 1
        outlet.filed.append(key)
        self._put(outlet, Chunk(0, outlet.items, [nbytes], None, key.key, at))

    def segment(self, outlet: Outlet) -> None:
        """A boundary behind the chunks so far."""
        self._put(outlet, Segment(0, outlet.items))

    def end(self, outlet: Outlet, reason: str | None, now: float) -> None:
        """The stream is over. Idempotent, and without effect on one that is broken."""
        if outlet.ended or outlet.broken is not None:
            return
        outlet.ended, outlet.ended_at = True, now
        self._put(outlet, End(0, outlet.items, reason))

    def _put(self, outlet: Outlet, item: Chunk | Segment | End) -> None:
        outlet.items += 1
        if outlet.ref is None or outlet.backlog:
            outlet.backlog.append(item)
        else:
            self._tell(outlet, outlet.ref, item)

    def _tell(self, outlet: Outlet, ref: Ref, item: Chunk | Segment | End) -> None:
        item.op = ref[1]
        self._say(ref, item)
        if type(item) is Chunk:
            outlet.told += 1
        elif type(item) is End and self._outlets.get(outlet.key) is outlet:
            del self._outlets[outlet.key]  # the key is free; the stream stays until the Release

    def _flush(self, outlet: Outlet) -> None:
        backlog, ref = outlet.backlog, outlet.ref
        while backlog and ref is not None:
            if type(backlog[0]) is Chunk and outlet.told >= outlet.granted:
                break
            self._tell(outlet, ref, backlog.popleft())

    # --- readers ----------------------------------------------------------------------------------

    def receive(self, peer: int, message: Open) -> None:
        """A reader has come."""
        if message.op <= self._last_open.get(peer, 0) or message.credit < 1:
            self.ignored += 1
            return
        self._last_open[peer] = message.op
        ref = (peer, message.op)
        key = TransferKey(message.from_stage, message.to_stage, message.key)
        outlet = self._outlets.get(key)
        if outlet is None:
            self._waiting.setdefault(key, {})[ref] = message.credit
            self._waits_for[ref] = key
        elif outlet.ref is None:
            self._attach(outlet, ref, message.credit)
        else:
            text = "the stream has a reader already, and one is all it can have"
            self._say(ref, Fail(ref[1], FailCode.REFUSED, text))

    def _attach(self, outlet: Outlet, ref: Ref, credit: int) -> None:
        outlet.ref, outlet.granted, outlet.opened_with = ref, credit, credit
        self._read[ref] = outlet
        self._flush(outlet)
        self.stirred.append(outlet)

    def credit(self, ref: Ref, chunks: int) -> None:
        """More chunks may be sent."""
        outlet = self._read.get(ref)
        if outlet is None or chunks <= outlet.granted:
            self.ignored += 1
            return
        outlet.granted = chunks
        self._flush(outlet)
        self.stirred.append(outlet)

    def left(self, ref: Ref, *, done: bool) -> bool:
        """A reader has left, or (``done``) has the end. Whether the operation was a stream's."""
        if ref in self._waits_for:
            self._unwait(ref)
            return True
        outlet = self._read.get(ref)
        if outlet is None:
            return False
        if done:
            del self._read[ref]
            if not outlet.ended:  # a reader that calls a stream over before its writer does
                self._break(outlet, Broken.LEFT)
        else:
            self._break(outlet, Broken.LEFT)
        return True

    def _unwait(self, ref: Ref) -> int:
        key = self._waits_for.pop(ref)
        waiting = self._waiting[key]
        credit = waiting.pop(ref)
        if not waiting:
            del self._waiting[key]
        return credit

    # --- ends -------------------------------------------------------------------------------------

    def peer_ended(self, peer: int) -> None:
        """The line to a receiver is gone, and with it its readers."""
        self._last_open.pop(peer, None)
        for ref in [ref for ref in self._waits_for if ref[0] == peer]:
            self._unwait(ref)
        for ref, outlet in [pair for pair in self._read.items() if pair[0][0] == peer]:
            self._break(outlet, Broken.LOST)
            self._read.pop(ref, None)

    def cleanup(self, owner: str) -> int:
        """Drop the streams of a key of that name, and the readers that wait for one; how many."""
        count = 0
        for outlet in [o for o in self.every() if o.key.key == owner]:
            if outlet.ref is not None and not outlet.ended:
                self._refuse(outlet.ref)
            self._break(outlet, Broken.CLEANED)
            count += 1
        for ref in [ref for ref, key in self._waits_for.items() if key.key == owner]:
            self._unwait(ref)
            self._refuse(ref)
        return count

    def _refuse(self, ref: Ref) -> None:
        text = "the sender has cleaned up this request"
        self._say(ref, Fail(ref[1], FailCode.CANCELLED, text))

    def expire(self, before: float) -> int:
        """Drop what ended before that time and that nobody has begun to read; how many."""
        old = [o for o in self._outlets.values() if o.ended and o.ended_at <= before]
        for outlet in old:
            self._break(outlet, Broken.LOST)
        return len(old)

    def close(self, reason: str) -> int:
        """End every stream; how many nobody had read to its end."""
        open_ones = list(self.every())
        for outlet in open_ones:
            if outlet.ref is not None and not outlet.ended:
                self._say(outlet.ref, End(outlet.ref[1], outlet.items, reason))
            self._break(outlet, Broken.CLOSED)
        return len(open_ones)

    def _break(self, outlet: Outlet, why: Broken) -> None:
        if self._outlets.get(outlet.key) is outlet:
            del self._outlets[outlet.key]
        if outlet.ref is not None:
            self._read.pop(outlet.ref, None)
        outlet.backlog.clear()
        if outlet.broken is None:
            outlet.broken = why
            self.stirred.append(outlet)
            self.forsaken.append(outlet)

    # --- for people -------------------------------------------------------------------------------

    def every(self) -> Iterable[Outlet]:
        """Streams that are open, or that nobody has read to the end."""
        return {o.number: o for o in (*self._outlets.values(), *self._read.values())}.values()

    def __len__(self) -> int:
        """Streams that are open, or that nobody has read to the end."""
        return len(list(self.every()))

    @property
    def unread(self) -> int:
        """Streams that have ended and that nobody has read to the end."""
        return sum(outlet.ended for outlet in self.every())

    @property
    def waiting(self) -> int:
        """Readers that wait for a writer."""
        return len(self._waits_for)
