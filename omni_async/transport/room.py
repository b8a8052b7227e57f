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

    __slots__ = ("_block", "_end")

    def __init__(self) -> None:
        self._block = _aligned(0)
        self._end = 0

    def take(self, nbytes: int) -> tuple[Array, int]:
        """A block, and the offset in it at which ``nbytes`` bytes are the caller's."""
        size = aligned(nbytes)
        if size > _BLOCK // 4:
            return _aligned(nbytes), 0
        start = self._end
        if start + size > len(self._block):
            self._block, start = _aligned(_BLOCK), 0
        self._end = start + size
        return self._block, start

    def copy(self, data: Array) -> Array:
        """Writable memory with the same bytes."""
        block, start = self.take(len(data))
        out = block[start : start + len(data)]
        out[:] = data
        return out


def _aligned(nbytes: int) -> Array:
    spare = np.empty(nbytes + ALIGNMENT, np.uint8)
    skip = -int(spare.__array_interface__["data"][0]) % ALIGNMENT
    return spare[skip : skip + nbytes]
