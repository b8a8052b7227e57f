"""Filling: a slot into which a large payload is still being copied, while its first bytes travel already.

In: how far the copy has come, from its threads. Out: whether a range is there, and word of progress.
Never: copies, frees; counts bytes as there before all bytes before them are.
"""

from __future__ import annotations

from collections.abc import Callable

from .._aio.copying import Piece
from ..model import Move
from ..pool import Lease


class Filling:
    """Progress of one copy into the first ``nbytes`` of a slot, from the front to the back.

    Args:
        pieces: what is to be copied, destinations ascending.
    """

    __slots__ = ("_address", "_end", "_last", "_watchers", "failure", "lease", "nbytes", "pieces")

    def __init__(self, lease: Lease, nbytes: int, pieces: list[Piece]) -> None:
        self.lease = lease
        self.nbytes = nbytes
        self.pieces = pieces
        self._address = lease.address
        self._end = lease.address
        self._last = max(to + size for to, _, size in pieces)
        self.failure: str | None = None
        """Why the rest will never be there."""
        self._watchers: list[Callable[[], None]] = []

    @property
    def full(self) -> bool:
        return self._end >= self._last

    def covers(self, move: Move) -> bool:
        """Whether the source of a move is there: in the filled part, or somewhere else altogether."""
        if not self._address <= move.local < self._address + self.nbytes:
            return True
        return self.full or move.local + move.nbytes <= self._end

    def watch(self, call: Callable[[], None]) -> None:
        """Be called, on the loop, whenever more is there, and when no more will be."""
        self._watchers.append(call)

    def reached(self, end: int) -> None:
        """All bytes up to this address are there."""
        self._end = max(self._end, end)
        self._tell()

    def fail(self, reason: str) -> None:
        """The copy has ended before its end."""
        self.failure = reason
        self._tell()

    def _tell(self) -> None:
        for call in self._watchers:
            call()
        if self.full or self.failure is not None:
            self._watchers.clear()
