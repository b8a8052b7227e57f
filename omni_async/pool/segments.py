"""All segments of a pool: they come when there is no room, and go when nobody leases from them.

In: sizes. Out: a segment and an offset in it.
Never: holds more than the capacity, closes a segment that has a lease, except on the pool's order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator

from ..abc.memory import Block, MemorySource
from ..model import Region, aligned
from .memory import PAGE
from .segment import Segment

__all__ = ["Segments"]


class Segments:
    """The books of a pool's memory.

    Args:
        capacity: bytes of all segments together, whole pages.
        discard: pages inside a segment may be given back one by one.

    The rest is as for :class:`~omni_async.pool.pool.Pool`.
    """

    def __init__(
        self,
        *,
        capacity: int,
        source: MemorySource,
        register: Callable[[Block], Region],
        unregister: Callable[[Region], None],
        segment_nbytes: int,
        alignment: int,
        discard: bool,
    ) -> None:
        self.on_grow: Callable[[Region], None] | None = None
        self.on_shrink: Callable[[Region], None] | None = None
        self.regions: dict[int, Region] = {}
        self.committed = 0
        self._capacity = capacity
        self._source = source
        self._register = register
        self._unregister = unregister
        self._segment_nbytes = segment_nbytes
        self._alignment = alignment
        self._discard = discard
        self._oldest_first: list[Segment] = []
        self._by_address: list[Segment] = []
        self._addresses: list[int] = []

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._oldest_first)

    def __len__(self) -> int:
        return len(self._oldest_first)

    def allocate(self, size: int) -> tuple[Segment, int] | None:
        """Room for ``size`` bytes, in the oldest segment that has it: its pages are warm.

        Raises:
            MemoryError: the system refused a new segment. What ``register`` raises passes through.
        """
        for segment in self._oldest_first:
            closed = segment.condemned or segment.retired
            offset = None if closed else segment.allocator.allocate(size)
            if offset is not None:
                return segment, offset
        grown = self._grow(size)
        if grown is None:
            return None
        offset = grown.allocator.allocate(size)
        assert offset is not None  # it was made long enough
        return grown, offset

    def at(self, address: int) -> Segment | None:
        """The segment that contains ``address``."""
        at = bisect_right(self._addresses, address)
        if not at:
            return None
        segment = self._by_address[at - 1]
        return segment if address < segment.address + segment.nbytes else None

    def trim(self, keep: int, at_most: int | None) -> int:
        """See :meth:`~omni_async.pool.pool.Pool.trim`."""
        ranges = {
            segment: segment.warm_ranges(PAGE) if self._discard else []
            for segment in self._oldest_first
        }
        free = {
            segment: sum(nbytes for _, nbytes in ranges[segment])
            if self._discard
            else segment.room * (not segment.leases)
            for segment in self._oldest_first
        }
        excess = sum(free.values()) - keep
        budget = excess if at_most is None else min(excess, at_most)
        given = 0
        for segment in self._oldest_first[::-1]:
            # Without its pages the oldest segment costs nothing, and peers know it already. One that
            # has lost some of its room is better replaced.
            closable = not segment.leases and (
                segment.lost or not self._discard or segment is not self._oldest_first[0]
            )
            whole = given + free[segment]
            if closable and whole <= excess and (whole <= budget or not given):
                self.release(segment)
                given = whole
            else:
                given += segment.discard(ranges[segment], budget - given, PAGE)
        return given

    def release(self, segment: Segment) -> None:
        """Close a segment. Views of its memory keep it mapped."""
        self._oldest_first.remove(segment)
        at = self._by_address.index(segment)
        del self._by_address[at], self._addresses[at]
        if segment.retired:
            segment.close()
            return
        del self.regions[segment.region.id]
        self.committed -= segment.room
        self._unregister(segment.region)
        segment.close()
        if self.on_shrink is not None:
            self.on_shrink(segment.region)

    def lose(self, segment: Segment, nbytes: int) -> None:
        """These bytes are gone; others may take their place elsewhere."""
        segment.lost += nbytes
        self.committed -= nbytes

    def retire(self, segment: Segment) -> None:
        """End all access of peers to a segment, for good; others take its place elsewhere.

        It is not registered again, for an engine may repeat what has failed as soon as it knows of
        memory at the same addresses. Those who lease from it keep what they have.
        """
        self._unregister(segment.region)
        del self.regions[segment.region.id]
        self.committed -= segment.room
        segment.lost = segment.nbytes
        segment.retired = True
        if self.on_shrink is not None:
            self.on_shrink(segment.region)

    def _grow(self, size: int) -> Segment | None:
        need = aligned(size, PAGE)
        if not self._make_room(need):
            return None
        # Steps of an eighth, so that payloads that grow bit by bit do not each need a new segment;
        # a share of what there is, so that segments stay few.
        ordinary = self._segment_nbytes
        want = aligned(need, max(PAGE, 1 << (need.bit_length() - 4)))
        want = max(want, self.committed // 4 // ordinary * ordinary)
        if need <= ordinary // 2 or ordinary >= self._capacity:
            want = max(want, ordinary)
        block = self._source.allocate(min(want, self._capacity - self.committed))
        try:
            segment = Segment(block, self._register(block), self._alignment)
        except BaseException:
            block.close()
            raise
        at = bisect_right(self._addresses, segment.address)
        self._addresses.insert(at, segment.address)
        self._by_address.insert(at, segment)
        self._oldest_first.append(segment)
        self.regions[segment.region.id] = segment.region
        self.committed += segment.nbytes
        if self.on_grow is not None:
            self.on_grow(segment.region)
        return segment

    def _make_room(self, need: int) -> bool:
        """Whether a new segment of ``need`` bytes keeps the capacity, idle ones given up for it."""
        room = self._capacity - self.committed
        if room >= need:
            return True
        idle = [segment for segment in self._oldest_first if not segment.leases]
        if room + sum(segment.room for segment in idle) < need:
            return False
        while self._capacity - self.committed < need:
            self.release(idle.pop())
        return True
