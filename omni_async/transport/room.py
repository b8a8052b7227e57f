"""Room: private aligned memory for small payloads that came inside their offers.

In: lengths. Out: a block, and where in it there is room.
Never: hands out the same bytes twice; is used on two threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..model import ALIGNMENT, aligned

Array = np.ndarray[Any, np.dtype[np.uint8]]

_BLOCK = 64 << 10


class Room:
    """Small pieces share a block, which lives as long as any of them."""

    __slots__ = ("_block", "_end", "_view")

    def __init__(self) -> None:
        self._block = _aligned(0)
        self._view = self._block.data
        self._end = 0

    def copy(self, data: memoryview) -> tuple[Array, int]:
        """The same bytes in writable memory: the block they are in, and their offset there."""
        nbytes = len(data)
        size = aligned(nbytes)
        if size > _BLOCK // 4:
            block = _aligned(nbytes)
            block.data[:] = data
            return block, 0
        start, end = self._end, self._end + size
        if end > len(self._view):
            self._block, start, end = _aligned(_BLOCK), 0, size
            self._view = self._block.data
        # Through a memoryview: numpy's assignment is much more code for a few KiB.
        self._view[start : start + nbytes] = data
        self._end = end
        return self._block, start


def _aligned(nbytes: int) -> Array:
    spare = np.empty(nbytes + ALIGNMENT, np.uint8)
    skip = -int(spare.__array_interface__["data"][0]) % ALIGNMENT
    return spare[skip : skip + nbytes]
