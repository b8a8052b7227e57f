"""Which block begins at or before an offset: a set of offsets that knows predecessors.

In: offsets. Out: the greatest offset in the set that is not above the one asked for.
Never: depends on how many offsets there are; three levels of bit maps cover 64 PiB.
"""

from __future__ import annotations

__all__ = ["StartSet"]

_BITS = 10
_LOW = (1 << _BITS) - 1


class StartSet:
    """Offsets, multiples of ``unit``.

    Level 0 has one bit per unit, in maps of 1,024; each further level has one bit per map of the
    level below that is not empty.
    """

    __slots__ = ("_levels", "_unit")

    def __init__(self, nbytes: int, unit: int) -> None:
        self._unit = unit
        depth, reach = 1, 1 << _BITS
        while reach * unit < nbytes:
            depth, reach = depth + 1, reach << _BITS
        self._levels: tuple[dict[int, int], ...] = tuple({} for _ in range(depth))

    def add(self, offset: int) -> None:
        """Put ``offset`` into the set."""
        index = offset // self._unit
        for level in self._levels:
            where = index >> _BITS
            bits = level.get(where, 0)
            level[where] = bits | 1 << (index & _LOW)
            if bits:
                return  # the levels above know this map already
            index = where

    def remove(self, offset: int) -> None:
        """Take ``offset``, which is in the set, out of it."""
        index = offset // self._unit
        for level in self._levels:
            where = index >> _BITS
            bits = level[where] ^ 1 << (index & _LOW)
            if bits:
                level[where] = bits
                return
            del level[where]
            index = where

    def floor(self, offset: int) -> int | None:
        """The greatest member that is not above ``offset``."""
        index = offset // self._unit
        mask = (2 << (index & _LOW)) - 1  # on level 0 up to here, above only what lies before
        for height, level in enumerate(self._levels):
            where = index >> _BITS
            bits = level.get(where, 0) & mask
            if bits:
                return self._descend(height, (where << _BITS) + bits.bit_length() - 1)
            index = where
            mask = (1 << (index & _LOW)) - 1
        return None

    def _descend(self, height: int, index: int) -> int:
        for level in reversed(self._levels[:height]):
            index = (index << _BITS) + level[index].bit_length() - 1
        return index * self._unit
