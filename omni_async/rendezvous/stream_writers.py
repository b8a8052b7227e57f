"""The writers' half of streams, without I/O: all writers of one sender endpoint.

In: items to send, words of readers, ends of peers, the time. Out: words to send, writers to be told.
Never: sends a reader more chunks than it gave credit for, reaches a clock, looks into a chunk.

::

    UNREAD ──Open──> READ ──end──> ENDED ──its End is sent──> OVER ──Release──> (gone)
       │               └────────────┴── Cancel, peer's end ────┴──> BROKEN
       └──end──> ended UNREAD ──> replaced by a new stream of its key, or expires

A key is free for the next stream as soon as one that has a reader has ended.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

from ..model import TransferKey
from .directory import TOMBSTONES, Ref
from .messages import Chunk, Credit, End, Fail, FailCode, Message, Open, Segment
from .outlet import Broken, Outlet
from .seen import Seen

_SECOND = "the stream has a reader already, and one is all it can have"


class Writers:
    """Every stream that is written at one endpoint, and every reader that waits for one."""

    def __init__(self, say: Callable[[Ref, Message], None]) -> None:
        self._say = say
        self.stirred: list[Outlet] = []
        """Outlets whose writers have something to learn: credit, or that they are broken."""
        self.obsolete: list[TransferKey] = []
        """What nobody will take any more of what is filed for streams."""
        self.ignored = 0
        self.unread = 0
        """Streams that have ended and that nobody has read to the end."""
        self._numbers = 0
        self._outlets: dict[TransferKey, Outlet] = {}
        """By key: the stream that a reader would get now, or is reading while it is written."""
        self._read: dict[Ref, Outlet] = {}
        self._waiting: dict[TransferKey, dict[Ref, int]] = {}
        """Readers that came first, with their credit."""
        self._waits_for: dict[Ref, TransferKey] = {}
        self._seen: dict[int, Seen] = {}
        self._expired: OrderedDict[TransferKey, None] = OrderedDict()

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
        self._expired.pop(key, None)
        self._numbers += 1
        outlet = self._outlets[key] = Outlet(self._numbers, key, window)
        for ref in list(self._waiting.get(key, ())):
            credit = self._unwait(ref)
            if outlet.ref is None:
                self._attach(outlet, ref, credit)
            else:
                self._refuse(ref, FailCode.CLOSED, _SECOND)
        return outlet

    def chunk(self, outlet: Outlet, sizes: list[int], inline: bytes, at: int = 0) -> None:
        """The next chunk. There is :attr:`Outlet.room` for it."""
        outlet.chunks += 1
        self._put(outlet, Chunk(0, outlet.items, sizes, inline, "", at))

    def filed_chunk(self, outlet: Outlet, nbytes: int, key: TransferKey, at: int = 0) -> None:
        """The next chunk, a larger one that was put under this key."""
        outlet.chunks += 1
        outlet.filed.append((outlet.chunks, key))
        self._put(outlet, Chunk(0, outlet.items, [nbytes], None, key.key, at))

    def segment(self, outlet: Outlet) -> None:
        """A boundary behind the chunks so far."""
        self._put(outlet, Segment(0, outlet.items))

    def end(self, outlet: Outlet, reason: str | None, now: float) -> None:
        """The stream is over. Idempotent, and without effect on one that is broken."""
        if outlet.ended or outlet.broken is not None:
            return
        outlet.ended, outlet.ended_at = True, now
        self.unread += 1
        if outlet.ref is not None:
            del self._outlets[outlet.key]
        self._put(outlet, End(0, outlet.items, reason))

    def _put(self, outlet: Outlet, item: Chunk | Segment | End) -> None:
        outlet.items += 1
        ref = outlet.ref
        if ref is None or outlet.backlog or (type(item) is Chunk and outlet.told >= outlet.granted):
            outlet.backlog.append(item)
        else:
            self._tell(outlet, ref, item)

    def _tell(self, outlet: Outlet, ref: Ref, item: Chunk | Segment | End) -> None:
        item.op = ref[1]
        outlet.told += type(item) is Chunk
        self._say(ref, item)

    def _flush(self, outlet: Outlet, ref: Ref) -> None:
        backlog = outlet.backlog
        while backlog and (type(backlog[0]) is not Chunk or outlet.told < outlet.granted):
            self._tell(outlet, ref, backlog.popleft())

    # --- readers ----------------------------------------------------------------------------------

    def receive(self, peer: int, message: Open) -> None:
        """A reader has come."""
        if message.credit < 1 or not self._hear(peer, message.op):
            self.ignored += 1
            return
        ref = (peer, message.op)
        key = TransferKey(message.from_stage, message.to_stage, message.key)
        outlet = self._outlets.get(key)
        if outlet is not None and outlet.ref is None:
            self._attach(outlet, ref, message.credit)
        elif outlet is not None:
            self._refuse(ref, FailCode.CLOSED, _SECOND)
        elif key in self._expired:
            del self._expired[key]  # who asks again means the next one
            self._refuse(ref, FailCode.EXPIRED, Broken.EXPIRED.value)
        else:
            self._waiting.setdefault(key, {})[ref] = message.credit
            self._waits_for[ref] = key

    def _hear(self, peer: int, op: int) -> bool:
        seen = self._seen.get(peer)
        if seen is None:
            seen = self._seen[peer] = Seen()
        return seen.add(op)

    def _attach(self, outlet: Outlet, ref: Ref, credit: int) -> None:
        outlet.ref, outlet.granted = ref, credit
        self._read[ref] = outlet
        if outlet.ended:
            del self._outlets[outlet.key]
        self._flush(outlet, ref)
        self.stirred.append(outlet)

    def credit(self, ref: Ref, message: Credit) -> None:
        """More chunks may be sent."""
        outlet = self._read.get(ref)
        if outlet is None or message.chunks <= outlet.granted:
            self.ignored += 1
            return
        outlet.granted = message.chunks
        outlet.taken = min(message.taken, outlet.told)
        filed = outlet.filed
        while filed and filed[0][0] <= outlet.taken:
            self.obsolete.append(filed.popleft()[1])
        self._flush(outlet, ref)
        self.stirred.append(outlet)

    def left(self, ref: Ref, *, done: bool) -> bool:
        """A reader has left, or (``done``) has all of it. Whether the operation was a stream's."""
        if ref in self._waits_for:
            self._unwait(ref)
            return True
        outlet = self._read.get(ref)
        if outlet is None:
            if not done:
                self._hear(*ref)  # should its Open come after it
            return False
        if done and outlet.over:
            self._forget(outlet)
        else:  # also one that calls a stream over before its writer does
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
        self._seen.pop(peer, None)
        for ref in [ref for ref in self._waits_for if ref[0] == peer]:
            self._unwait(ref)
        for outlet in [outlet for ref, outlet in self._read.items() if ref[0] == peer]:
            self._break(outlet, Broken.LOST)

    def cleanup(self, owner: str) -> int:
        """Drop the streams of a key of that name, and the readers that wait for one; how many."""
        text = "the sender has cleaned up this request"
        ended = [outlet for outlet in self.every() if outlet.key.key == owner]
        for outlet in ended:
            if outlet.ref is not None:  # also where the end was sent: larger chunks may be missing
                self._refuse(outlet.ref, FailCode.CANCELLED, text)
            self._break(outlet, Broken.CLEANED)
        waiting = [ref for ref, key in self._waits_for.items() if key.key == owner]
        for ref in waiting:
            self._unwait(ref)
            self._refuse(ref, FailCode.CANCELLED, text)
        return len(ended) + len(waiting)

    def _refuse(self, ref: Ref, code: FailCode, text: str) -> None:
        self._say(ref, Fail(ref[1], code, text))

    def expire(self, before: float) -> int:
        """Drop what ended before that time and that nobody has begun to read; how many."""
        old = [o for o in self._outlets.values() if o.ended and o.ended_at <= before]
        for outlet in old:
            self._break(outlet, Broken.EXPIRED)
            self._expired[outlet.key] = None
        while len(self._expired) > TOMBSTONES:
            self._expired.popitem(last=False)
        return len(old)

    def discard(self, key: TransferKey) -> bool:
        """Drop the stream that has ended and that nobody has begun to read; whether there was one."""
        outlet = self._outlets.get(key)
        if outlet is None or not outlet.ended:
            return False
        self._break(outlet, Broken.CLEANED)
        return True

    def oldest(self) -> float | None:
        """When the first of those ended that nobody has begun to read."""
        return min((o.ended_at for o in self._outlets.values() if o.ended), default=None)

    def close(self, reason: str) -> int:
        """End every stream; how many had ended and nobody had read to the end."""
        count = self.unread
        for outlet in list(self.every()):
            ref = outlet.ref
            if ref is not None and not outlet.over:
                self._say(ref, End(ref[1], outlet.items - len(outlet.backlog), reason))
            self._break(outlet, Broken.CLOSED)
        return count

    def _break(self, outlet: Outlet, why: Broken) -> None:
        outlet.broken = why
        self._forget(outlet)
        self.stirred.append(outlet)

    def _forget(self, outlet: Outlet) -> None:
        if self._outlets.get(outlet.key) is outlet:
            del self._outlets[outlet.key]
        if outlet.ref is not None:
            del self._read[outlet.ref]
        self.unread -= outlet.ended
        outlet.backlog.clear()
        self.obsolete += [key for _, key in outlet.filed]
        outlet.filed.clear()

    # --- for people -------------------------------------------------------------------------------

    def every(self) -> Iterator[Outlet]:
        """Streams that are open, or that nobody has read to the end."""
        yield from self._read.values()
        for outlet in self._outlets.values():
            if outlet.ref is None:
                yield outlet

    def __len__(self) -> int:
        return len(self._read) + sum(outlet.ref is None for outlet in self._outlets.values())

    @property
    def waiting(self) -> int:
        """Readers that wait for a writer."""
        return len(self._waits_for)
