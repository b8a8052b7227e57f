"""Pool: room for frames, up to a limit, in registered segments that come and go.

In: sizes. Out: leases; back-pressure when there is no room.
Never: evicts, frees memory under a live operation, works on two threads.

**Limit.** The leases never exceed the limit, nor do the segments together (rounded up to a whole
page). When a request does not fit into the segments there are, and a new one would break the
limit, segments without a lease are given up to make room; a segment with a lease stays whole. With
``segment_nbytes`` at the limit there is one segment, which costs nothing until its pages are
touched, and nothing can be stranded: right for memory whose pages come lazily. Small segments are
for engines that pin what they register.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from types import MappingProxyType

from ..abc.engine import Revoke
from ..abc.memory import Block, MemorySource
from ..errors import ClosedError, PayloadTooLarge, PoolExhausted, UsageError
from ..model import ALIGNMENT, Region, aligned
from .lease import Lease, State
from .memory import PAGE
from .segment import Segment
from .segments import Segments
from .waiters import Line

__all__ = ["Pool"]

_FREE, _QUARANTINED = State.FREE, State.QUARANTINED

_left_behind: set[Segment] = set()
"""Segments of closed pools that an operation in flight may touch: kept until it has ended."""


class Pool:
    """Leases of memory on one event loop.

    Args:
        limit: bytes that may be leased at a time.
        source: where segments come from.
        register: makes a new block reachable by peers.
        unregister: ends that, before the block is closed.
        segment_nbytes: size of an ordinary segment; larger requests get one of their own.
        alignment: of every lease, in bytes.
        setting: the option that a caller raises when a payload is too large.
        discard: free pages may be given back one by one. False where an engine pins what is
            registered: it would go on reading and writing the old pages.
        revoke: how :meth:`revoke` ends a peer's access.
    """

    def __init__(
        self,
        *,
        limit: int,
        source: MemorySource,
        register: Callable[[Block], Region],
        unregister: Callable[[Region], None],
        segment_nbytes: int = 64 << 20,
        alignment: int = ALIGNMENT,
        setting: str = "memory_pool_size",
        discard: bool = True,
        revoke: Revoke = Revoke.NOTHING,
    ) -> None:
        if revoke is Revoke.PAGES and alignment % PAGE:
            raise UsageError(f"pages are taken away whole, leases are aligned to {alignment}")
        if limit <= 0 or segment_nbytes <= 0 or alignment <= 0 or PAGE % alignment:
            raise UsageError(
                f"no pool of {limit} bytes in segments of {segment_nbytes}, aligned to {alignment}"
            )
        self._limit = limit
        self._ceiling = aligned(limit, alignment)
        self._alignment = alignment
        self._revoke = revoke
        self._setting = setting
        self._segments = Segments(
            capacity=aligned(limit, PAGE),
            source=source,
            register=register,
            unregister=unregister,
            segment_nbytes=aligned(segment_nbytes, PAGE),
            alignment=alignment,
            discard=discard,
        )
        self._generations = itertools.count(1)
        self._line: Line[Lease] = Line(self._grant, Lease.drop)
        self._closed = False
        self._used = 0
        self._live = 0
        self._findable = 0
        self._quarantined = 0

    # regions

    @property
    def regions(self) -> Mapping[int, Region]:
        """Region id → region, as they are now."""
        return MappingProxyType(self._segments.regions)

    @property
    def on_grow(self) -> Callable[[Region], None] | None:
        """Hears of each new region, before anything in it is leased."""
        return self._segments.on_grow

    @on_grow.setter
    def on_grow(self, hear: Callable[[Region], None] | None) -> None:
        self._segments.on_grow = hear

    @property
    def on_shrink(self) -> Callable[[Region], None] | None:
        """Hears of each region that is no more; not while closing."""
        return self._segments.on_shrink

    @on_shrink.setter
    def on_shrink(self, hear: Callable[[Region], None] | None) -> None:
        self._segments.on_shrink = hear

    # gauges

    @property
    def limit(self) -> int:
        """Bytes that may be leased at a time."""
        return self._limit

    @property
    def used(self) -> int:
        """Bytes leased, each lease rounded up to the alignment."""
        return self._used

    @property
    def live(self) -> int:
        """Leases."""
        return self._live

    @property
    def findable(self) -> int:
        """Leases that :meth:`find` may return."""
        return self._findable

    @property
    def quarantined(self) -> int:
        """Leases whose operations were given up and have not ended yet."""
        return self._quarantined

    @property
    def committed(self) -> int:
        """Bytes of all segments."""
        return self._segments.committed

    @property
    def waiting(self) -> int:
        """Requests in line."""
        return len(self._line)

    # leasing

    def lease_nowait(self, nbytes: int) -> Lease:
        """A lease of ``nbytes`` bytes (0 is allowed) with one holder.

        Raises:
            PoolExhausted: no room now, or others wait for it already.
            PayloadTooLarge: it can never fit.
            ClosedError: the pool is closed.
        """
        if self._line:
            self._admit(nbytes)
            raise self._exhausted(nbytes)
        try:
            lease = self._take(nbytes)
        except MemoryError as error:
            raise self._exhausted(nbytes, error) from error
        if lease is None:
            raise self._exhausted(nbytes)
        return lease

    async def lease(
        self,
        nbytes: int,
        *,
        deadline: float | None = None,
        owner: str | None = None,
        findable: bool = True,
    ) -> Lease:
        """The same, but stands in line for room.

        Args:
            nbytes: length in bytes.
            deadline: time of the event loop's clock; ``None`` waits without limit.
            owner: name for :meth:`cancel_waiters`.
            findable: :meth:`find` is to know it. It may know one that had to wait in any case.

        Raises:
            PoolExhausted: no room until the deadline.
            PayloadTooLarge: it can never fit; at once.
            ClosedError: the pool is closed.

        Cancellation: safe; a lease granted in the same moment is given back.
        """
        if not self._line:
            lease = self._grant(nbytes, findable)
            if lease is not None:
                return lease
        else:
            self._admit(nbytes)
        return await self._line.wait(
            nbytes, deadline=deadline, owner=owner, expired=lambda: self._exhausted(nbytes)
        )

    def cancel_waiters(self, owner: str | None, error: BaseException) -> int:
        """End the waiting of ``owner`` (``None``: of all) with a copy of ``error``; how many."""
        return self._line.cancel(owner, error)

    def find(self, address: int, nbytes: int) -> Lease | None:
        """The findable lease with ``[address, address + nbytes)``; ``None`` for foreign memory."""
        if not self._findable or nbytes <= 0:
            return None
        segment = self._segments.at(address)
        return None if segment is None else segment.find(address, nbytes)

    def revoke(self, lease: Lease) -> bool:
        """End the operation on a lease by ending its peer's access to the bytes, and so unpin it.

        For operations whose end nobody can tell any more. By pages it is done at once, and the pool
        gets the room elsewhere; by region it is done when no other operation uses the segment.

        Returns:
            ``False`` where the engine has no means to: the lease stays as it is.
        """
        segment = lease.segment
        if self._revoke is Revoke.PAGES and segment.block is not None:
            segment.block.withdraw(lease.offset, lease.size)
            lease.withdrawn = True
            lease.unpin()
            return True
        if self._revoke is Revoke.REGION:
            if lease.state is not _QUARANTINED:
                lease.quarantine()
            segment.condemned.append(lease)
            self._try_retire(segment)
            return True
        return False

    def _try_retire(self, segment: Segment) -> None:
        if segment.pinned > len(segment.condemned) or segment.block is None:
            return
        self._segments.retire(segment)
        condemned, segment.condemned = segment.condemned, []
        for lease in condemned:
            lease.unpin()

    # giving back

    def trim(self, keep: int = 0, *, at_most: int | None = None) -> int:
        """Give memory that nobody leases back to the system; returns how many bytes.

        Segments without a lease are closed, newest first, but the oldest stays where its pages can
        be given back without it. Call it when the pool is idle: what was given back is slow to
        touch again.

        Args:
            keep: bytes of free memory that stay.
            at_most: bytes given back in this call. The system takes about 0.16 ms a MiB, so an
                event loop asks for a few MiB at a time, until it is told 0. A segment is closed in
                one piece.
        """
        return self._segments.trim(keep, at_most)

    def close(self, *, mapped: bool = False) -> int:
        """Give up all segments. Idempotent.

        Who waits gets :class:`ClosedError`. Memory stays mapped while there are views of it, or
        somebody refers to a lease in it that is not free. A segment that an operation in flight may
        touch stays, registered, until that ends.

        Args:
            mapped: peers reach the memory through mappings of their own, which need nothing of
                this process: then no segment has to stay.

        Returns:
            Leases that could not be freed, because an operation has not ended.
        """
        if not self._closed:
            self._closed = True
            self._segments.on_shrink = None
            self._line.cancel(None, ClosedError("the pool was closed before there was room"))
        stuck = 0
        for segment in tuple(self._segments):
            stuck += segment.pinned
            self._release(segment, mapped)
        return stuck

    def moved(self, lease: Lease, before: State) -> None:
        """Hear of a lease's new state; leases call it."""
        state = lease.state
        segment = lease.segment
        if state is _FREE:
            offset = lease.offset
            if lease.withdrawn:
                self._segments.lose(segment, lease.size)
            else:
                segment.allocator.free(offset)
            if lease.findable:
                segment.starts.remove(offset)
                self._findable -= 1
            segment.leases.pop(offset, None)  # forgotten when the pool was closed
            if (
                offset + lease.size > segment.warm and not lease.withdrawn
            ):  # trimmed around it while it lived
                segment.warm = offset + lease.size
            self._used -= lease.size
            self._live -= 1
        if state is _QUARANTINED:
            self._quarantined += 1
        elif before is _QUARANTINED:
            self._quarantined -= 1
        if segment.condemned:
            self._try_retire(segment)
        if self._closed:
            if segment in _left_behind:
                self._release(segment)
            return
        if segment.retired and state is _FREE and not segment.leases:
            self._segments.release(segment)
        if state is _FREE and self._line:
            self._line.serve()

    # within

    def _admit(self, nbytes: int) -> int:
        """Size of a lease of ``nbytes`` bytes that may be served some time."""
        if self._closed:
            raise ClosedError("the pool is closed")
        if nbytes < 0:
            raise UsageError(f"a lease has no {nbytes} bytes")
        if nbytes > self._limit:
            raise PayloadTooLarge(
                f"{nbytes:,} bytes can never fit into a pool of {self._limit:,} bytes; "
                f"raise {self._setting}",
                nbytes=nbytes,
                limit=self._limit,
                setting=self._setting,
            )
        alignment = self._alignment
        return -(-nbytes // alignment) * alignment or alignment

    def _take(self, nbytes: int, findable: bool = True) -> Lease | None:
        size = self._admit(nbytes)
        if self._used + size > self._ceiling:
            return None
        place = self._segments.allocate(size)
        if place is None:
            return None
        segment, offset = place
        if offset + size > segment.warm:
            segment.warm = offset + size
        lease = Lease(self, segment, offset, nbytes, size, next(self._generations), findable)
        segment.leases[offset] = lease
        if findable:
            segment.starts.add(offset)
            self._findable += 1
        self._used += size
        self._live += 1
        return lease

    def _grant(self, nbytes: int, findable: bool = True) -> Lease | None:
        try:
            return self._take(nbytes, findable)
        except MemoryError as error:
            if self._live:
                return None  # what others give back may do
            raise self._exhausted(nbytes, error) from error

    def _release(self, segment: Segment, mapped: bool = False) -> None:
        if segment.pinned and not mapped:
            _left_behind.add(segment)
        else:
            _left_behind.discard(segment)
            self._segments.release(segment)

    def _exhausted(self, nbytes: int, cause: MemoryError | None = None) -> PoolExhausted:
        reason = f"the system refused it: {cause}" if cause else f"raise {self._setting}"
        return PoolExhausted(
            f"no room for {nbytes:,} bytes: {self._used:,} of {self._limit:,} are in use by "
            f"{self._live} leases ({self._quarantined} in quarantine), "
            f"{len(self._line)} requests wait; {reason}",
            nbytes=nbytes,
            limit=self._limit,
        )

    def __repr__(self) -> str:
        return (
            f"<Pool {self._used:,} of {self._limit:,} bytes in {self._live} leases, "
            f"{len(self._segments)} segments, {len(self._line)} waiting>"
        )
