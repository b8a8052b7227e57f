"""Where producers write straight: the mapping of the caches that they are told, and how it is taken from them.

In: shares that begin, that end, whose producer can tell of no end. Out: regions, word that nothing can land.
Never: takes memory away from a share whose producer is still heard of.

One mapping at a time is told to producers. When a share is in doubt, a new one is told from then on; the
old one goes when the shares that it was told for have ended, all but those in doubt.
"""

from __future__ import annotations

from collections.abc import Callable

from ..abc import Revoke
from ..model import Region
from ..pool.memory import MappedBlock
from ..transport.guests import Guests
from .caches import Caches
from .taking import TakenShare


class Mapping:
    """One mapping, its region, and who was told of it."""

    def __init__(self, guests: Guests, caches: Caches) -> None:
        assert caches.memory is not None
        self._guests = guests
        self.block: MappedBlock = caches.memory.mapping()
        self.region: Region = guests.register(self.block.address, self.block.nbytes)
        self.shift = self.block.address - caches.memory.block.address
        """How far its addresses lie from those that the engine uses."""
        self.told: set[TakenShare] = set()
        self.doubtful: set[TakenShare] = set()

    def divert(self) -> None:
        """Whoever writes here from now on writes where nobody looks, or is refused."""
        self._guests.unregister(self.region)
        self.block.divert()

    def close(self) -> None:
        """Nobody writes here any more."""
        self._guests.unregister(self.region)
        self.block.close()


class Mappings:
    """The present one, and those that are about to go.

    Args:
        changed: called when producers have to be told of another one.
        freed: called with each share that nothing can land for any more.
    """

    def __init__(
        self,
        guests: Guests,
        caches: Caches,
        changed: Callable[[], None],
        freed: Callable[[TakenShare], None],
    ) -> None:
        self._guests = guests
        self._caches = caches
        self._changed = changed
        self._freed = freed
        self.present = Mapping(guests, caches)
        self._old: list[Mapping] = []

    @staticmethod
    def can(guests: Guests, caches: Caches) -> bool:
        """Whether memory can be taken away so: it is ours, and writes go by this process's page tables, or by
        a region whose registration can be ended."""
        return caches.memory is not None and guests.wiring.engine.revoke is not Revoke.NOTHING

    def begin(self, share: TakenShare) -> None:
        """Its producer is told of the present mapping."""
        self.present.told.add(share)

    def end(self, share: TakenShare) -> None:
        """Nothing lands for it any more, as its producer has said. Idempotent."""
        for mapping in [self.present, *self._old]:
            if share in mapping.told:
                mapping.told.discard(share)
                mapping.doubtful.discard(share)
        self._sweep()

    def doubt(self, share: TakenShare) -> None:
        """Its producer was lost, and can tell nothing."""
        for mapping in [self.present, *self._old]:
            if share in mapping.told:
                mapping.doubtful.add(share)
        if self.present.doubtful:
            self._old.append(self.present)
            self.present = Mapping(self._guests, self._caches)
            self._changed()
        self._sweep()

    def _sweep(self) -> None:
        for mapping in list(self._old):
            if mapping.told <= mapping.doubtful:
                self._old.remove(mapping)
                if mapping.told:
                    mapping.divert()
                else:
                    mapping.close()
                for share in list(mapping.doubtful):
                    self._freed(share)

    def close(self) -> set[TakenShare]:
        """Give all up; returns the shares for which something might still have landed, and now does not."""
        left: set[TakenShare] = set()
        for mapping in [self.present, *self._old]:
            if mapping.told:
                left |= mapping.told
                mapping.divert()
            else:
                mapping.close()
        self._old.clear()
        return left
