"""Which bytes of one segment are free: best fit, newest first, neighbours joined at once.

In: sizes and offsets, multiples of the alignment. Out: offsets.
Never: touches memory, asyncio or the clock.

Free ranges are filed by their exact size; the sizes in use are kept sorted. Since k different
sizes need k²/2 units of space, that list stays short (2,900 for 256 MiB) however many blocks
live, so the cost of a call does not depend on them. The range at the end of the segment, the
tail, is filed nowhere: it is the last resort, which keeps untouched pages untouched, and most
calls on a quiet pool only move its start.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from ..model import ALIGNMENT

__all__ = ["Allocator", "AllocatorError"]


class AllocatorError(RuntimeError):
    """An offset was given back that is not handed out, or the books are wrong: an internal bug."""


class Allocator:
    """Offsets within ``[0, nbytes)``.

    Args:
        nbytes: length of the segment in bytes, a multiple of ``alignment``.
        alignment: every offset and size is a multiple of it.
    """

    __slots__ = ("_by_size", "_ends", "_live", "_sizes", "_starts", "_tail", "alignment", "nbytes")

    def __init__(self, nbytes: int, alignment: int = ALIGNMENT) -> None:
        if alignment <= 0 or nbytes <= 0 or nbytes % alignment:
            raise ValueError(f"{nbytes:,} bytes are not a multiple of the alignment {alignment}")
        self.nbytes = nbytes
        self.alignment = alignment
        self._tail = 0
        """Everything from here on is free."""
        self._live: dict[int, int] = {}
        """Offset of a block handed out → its size."""
        self._starts: dict[int, int] = {}
        """Start of a free range before the tail → its size."""
        self._ends: dict[int, int] = {}
        """End of a free range before the tail → its start."""
        self._by_size: dict[int, dict[int, None]] = {}
        """Size → starts of the free ranges of that size, oldest first."""
        self._sizes: list[int] = []
        """Keys of :attr:`_by_size`, sorted."""

    def allocate(self, size: int) -> int | None:
        """Offset of ``size`` bytes, or ``None`` when no free range is that long."""
        if size <= 0 or size % self.alignment:
            raise ValueError(f"a block of {size} bytes is not a multiple of {self.alignment}")
        sizes = self._sizes
        at = bisect_left(sizes, size)
        if at == len(sizes):
            offset = self._tail
            if offset + size > self.nbytes:
                return None
            self._tail = offset + size
        else:
            found = sizes[at]
            bucket = self._by_size[found]
            offset = bucket.popitem()[0]  # the one freed last: its pages are the warmest
            if not bucket:
                del self._by_size[found]
                del sizes[at]
            del self._starts[offset]
            if found == size:
                del self._ends[offset + size]
            else:
                self._file(offset + size, found - size)
        self._live[offset] = size
        return offset

    def free(self, offset: int) -> None:
        """Take a block back.

        Raises:
            AllocatorError: no block handed out begins there; says what does lie there.
        """
        size = self._live.pop(offset, 0)
        if not size:
            raise AllocatorError(self._complaint(offset))
        end = offset + size
        left = self._ends.get(offset)
        if left is not None:
            self._unfile(left, offset - left)
            offset = left
        if end == self._tail:
            self._tail = offset
            return
        right = self._starts.get(end)
        if right is not None:
            self._unfile(end, right)
            end += right
        self._file(offset, end - offset)

    @property
    def live(self) -> int:
        """Blocks handed out."""
        return len(self._live)

    @property
    def largest(self) -> int:
        """Bytes of the longest free range."""
        tail = self.nbytes - self._tail
        return max(tail, self._sizes[-1]) if self._sizes else tail

    def free_ranges(self, at_least: int = 1) -> Iterator[tuple[int, int]]:
        """Offset and size of every free range of ``at_least`` bytes, in no order."""
        for size in self._sizes[bisect_left(self._sizes, at_least) :]:
            for start in tuple(self._by_size[size]):
                yield start, size
        if self.nbytes - self._tail >= at_least:
            yield self._tail, self.nbytes - self._tail

    def check(self) -> None:
        """Compare all books.

        Raises:
            AllocatorError: blocks or free ranges overlap, or leave bytes that are neither.
        """
        pieces = [(offset, size, "block") for offset, size in self._live.items()]
        pieces += [(start, size, "free range") for start, size in self.free_ranges()]
        end, before = 0, "start of the segment"
        for offset, size, kind in sorted(pieces):
            name = f"{kind} {offset:,}..{offset + size:,}"
            if offset < end:
                raise AllocatorError(f"overlap: {name} begins inside {before}")
            if offset > end:
                raise AllocatorError(f"lost bytes: nothing lies between {before} and {name}")
            if kind == "free range" and before.startswith(kind):
                raise AllocatorError(f"{before} and {name} were not joined")
            end, before = offset + size, name
        if end != self.nbytes:
            raise AllocatorError(f"lost bytes: nothing lies behind {before}")
        filed = {(s, n) for n, bucket in self._by_size.items() for s in bucket}
        if filed != set(self._starts.items()) or self._sizes != sorted(self._by_size):
            raise AllocatorError("free ranges are filed under a wrong size")
        if {(end, start) for start, size in filed for end in (start + size,)} != set(
            self._ends.items()
        ):
            raise AllocatorError("free ranges are filed under a wrong end")

    def _file(self, start: int, size: int) -> None:
        self._starts[start] = size
        self._ends[start + size] = start
        bucket = self._by_size.get(size)
        if bucket is None:
            self._by_size[size] = {start: None}
            insort(self._sizes, size)
        else:
            bucket[start] = None

    def _unfile(self, start: int, size: int) -> None:
        del self._starts[start]
        del self._ends[start + size]
        bucket = self._by_size[size]
        del bucket[start]
        if not bucket:
            del self._by_size[size]
            del self._sizes[bisect_left(self._sizes, size)]

    def _complaint(self, offset: int) -> str:
        if not 0 <= offset < self.nbytes or offset % self.alignment:
            return f"foreign offset {offset:,}: not one of a segment of {self.nbytes:,} bytes"
        for start, size in self._live.items():  # slow, but only somebody's bug comes here
            if start < offset < start + size:
                return f"offset {offset:,} lies inside the block {start:,}..{start + size:,}"
        return f"double free of offset {offset:,}: it lies in free space"
