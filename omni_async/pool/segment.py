"""One segment of a pool: a registered block, and who leases which part of it.

In: a block and its region. Out: slots, and the lease that contains an address.
Never: decides when to grow or to shrink.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..abc.memory import Block
from ..model import Region, aligned
from .allocator import Allocator
from .starts import StartSet

if TYPE_CHECKING:
    from .lease import Lease

__all__ = ["Segment"]


class Segment:
    """The books of one segment; the pool writes them."""

    __slots__ = (
        "address",
        "allocator",
        "block",
        "condemned",
        "keep",
        "leases",
        "lost",
        "nbytes",
        "region",
        "retired",
        "starts",
        "warm",
    )

    def __init__(self, block: Block, region: Region, alignment: int) -> None:
        self.block: Block | None = block
        """``None`` once closed."""
        self.region = region
        self.address = block.address
        self.nbytes = block.nbytes
        self.keep: Any = block.keep()
        """Whoever refers to it keeps the memory mapped, whatever became of the pool."""
        self.allocator = Allocator(block.nbytes, alignment)
        self.starts = StartSet(block.nbytes, alignment)
        self.leases: dict[int, Lease] = {}
        self.lost = 0
        """Bytes whose pages were taken away for good; the allocator does not get them back."""
        self.condemned: list[Lease] = []
        """Leases whose operations end with the region's registration; meanwhile nothing is leased."""
        self.retired = False
        """Not registered any more; nothing is leased, and its addresses are never used again."""
        self.warm = 0
        """No free byte from here on has a page."""

    @property
    def room(self) -> int:
        """Bytes that are leased or can be."""
        return self.nbytes - self.lost

    @property
    def pinned(self) -> int:
        """Leases that an operation in flight uses."""
        return sum(1 for lease in self.leases.values() if lease.pins)

    def find(self, address: int, nbytes: int) -> Lease | None:
        """The findable lease with ``[address, address + nbytes)``, which begins inside here."""
        offset = address - self.address
        lease = self.leases.get(offset)
        if lease is None or not lease.findable:
            start = self.starts.floor(offset)
            if start is None:
                return None
            lease = self.leases[start]
        return lease if offset + nbytes <= lease.offset + lease.nbytes else None

    def warm_ranges(self, page: int) -> list[tuple[int, int]]:
        """Whole pages in free ranges that may be in use, the last one first: offset and bytes."""
        warm = aligned(self.warm, page)
        pages = (
            (aligned(start, page), min(start + size, warm) // page * page)
            for start, size in self.allocator.free_ranges(page)
            if start < warm
        )
        return sorted(((start, end - start) for start, end in pages if end > start), reverse=True)

    def discard(self, ranges: list[tuple[int, int]], budget: int, page: int) -> int:
        """Give pages of ``ranges`` back in that order, ``budget`` bytes at most; how many."""
        given = 0
        assert self.block is not None
        for offset, nbytes in ranges:
            nbytes_now = min(nbytes, (budget - given) // page * page)
            if nbytes_now <= 0:
                break
            self.warm = offset + nbytes - nbytes_now
            self.block.discard(self.warm, nbytes_now)
            given += nbytes_now
        return given

    def close(self) -> None:
        """Close the block. Leases that are not free yet keep its memory mapped, each for itself."""
        kept = bool(self.leases)
        if kept:
            self.leases.clear()  # a circle of references would leave the end to the collector
        else:
            self.keep = memoryview(b"")  # a lease that outlives its slot must not keep memory
        if self.block is not None:
            if self.retired and not kept:
                self.block.withdraw(0, self.nbytes)
            self.block.close()
            self.block = None
