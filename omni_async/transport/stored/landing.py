"""Objects of a store in the own pool.

In: names. Out: the bytes of an object in a slot, or in private memory where they are few.
Never: gives a slot back before the store has ended with it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ...model import EdgeName, aligned
from ...pool import Hold, Lease
from ..room import Array, Room
from .operations import Operation
from .wiring import StoreWiring

SMALL = 64 << 10
"""Bytes up to which an object is fetched before its size is known, and copied out of the slot."""


class Landed(NamedTuple):
    """An object. :meth:`drop` it; views keep its slot."""

    name: str
    nbytes: int
    array: Array
    """Its bytes."""
    lease: Lease | None

    def keep(self) -> None:
        """One more holder, who drops it, too."""
        if self.lease is not None:
            self.lease.hold()

    def drop(self) -> None:
        """What nobody has a view of is free."""
        if self.lease is not None:
            self.lease.drop()


class Landing:
    """Fetches objects."""

    def __init__(self, wiring: StoreWiring) -> None:
        self._wiring = wiring
        self._room = Room()
        self._usual: dict[EdgeName, int] = {}
        """How large the last object of an edge was, where it was not small."""

    async def fetch(
        self, operation: Operation, name: str, edge: EdgeName, least: Callable[[int], float]
    ) -> Landed | None:
        """The object of that name, if there is one.

        Args:
            edge: objects of an edge are of like sizes, more often than not.
            least: seconds that so many bytes may take in any case.

        Raises:
            EngineFault: the store failed.
            PoolExhausted, PayloadTooLarge: as for the pool.

        Cancellation: safe.
        """
        wiring = self._wiring
        room = min(self._usual.get(edge, SMALL), wiring.pool.limit)
        while True:
            lease = await wiring.pool.lease(
                room, deadline=operation.deadline, owner=operation.owner, findable=False
            )
            try:
                patience = least(room)
                timeout = max(patience, wiring.left(operation.deadline))
                work = wiring.store.get(name, lease.address, room, timeout=timeout)
                nbytes = await operation.call(work, [lease], least=patience)
                if nbytes is None:
                    return None
                if nbytes <= SMALL:
                    self._usual.pop(edge, None)
                elif nbytes <= wiring.pool.limit:
                    self._usual[edge] = aligned(nbytes)
                if nbytes <= room and (nbytes <= SMALL or room < 2 * nbytes):
                    return self._landed(name, lease, nbytes)
            finally:
                lease.drop()
            room = aligned(nbytes)

    def _landed(self, name: str, lease: Lease, nbytes: int) -> Landed:
        if nbytes <= SMALL:
            data = (ctypes.c_char * nbytes).from_address(lease.address)
            block, start = self._room.copy(memoryview(data).cast("B"))
            return Landed(name, nbytes, block[start : start + nbytes], None)
        lease.hold()
        lease.hold()
        slot = Hold(lease.address, nbytes, lease.drop, self._wiring.drops, lease.keep)
        return Landed(name, nbytes, np.asarray(slot), lease)
