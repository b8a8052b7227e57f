"""Landing slots in the pool, for caches into which nobody may write directly, and for pieces too small to.

In: shares that begin, layers that have arrived. Out: slots to write to, layers copied to their blocks.
Never: gives a slot back while a producer may write there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .._aio.tasks import spawn
from ..errors import OmniAsyncError
from ..pool import Lease
from ..transport.guests import Guests
from .caches import Caches
from .gather import scatter
from .plan import KVPlan
from .taking import TakenShare, Taking
from .words import AnyWord, Room

AT_ONCE = 4
"""Slots of one share: while one is copied to its blocks, the next are being written."""


class _Share:
    def __init__(self, share: TakenShare, plan: KVPlan, layers: int) -> None:
        self.share = share
        self.plan = plan
        self.left = layers
        """Layers for which no slot was told."""
        self.written: dict[int, Lease] = {}
        """Slots that the producer may write to."""
        self.last = 0
        self.leasing: set[asyncio.Task[None]] = set()
        self.copying: set[asyncio.Task[None]] = set()


class Slots:
    """All of one consumer.

    Args:
        say: tells the producer of a share.
        flush: called after the core was told something.
    """

    def __init__(
        self,
        guests: Guests,
        caches: Caches,
        core: Taking,
        say: Callable[[TakenShare, AnyWord], None],
        flush: Callable[[], None],
    ) -> None:
        self._guests = guests
        self._caches = caches
        self._core = core
        self._say = say
        self._flush = flush
        self._shares: dict[TakenShare, _Share] = {}

    def begin(self, share: TakenShare, plan: KVPlan) -> None:
        """Tell a producer of the first slots."""
        own = self._shares[share] = _Share(share, plan, self._caches.layout.layers)
        for _ in range(min(AT_ONCE, own.left)):
            spawn(self._lease(own), own.leasing)

    def arrived(self, share: TakenShare, layers: list[int], slots: list[int]) -> None:
        """Layers were written to slots: lay them out."""
        own = self._shares.get(share)
        told = own.written if own is not None else {}
        if own is None or len({*slots}) != len(layers) or not told.keys() >= {*slots}:
            self._core.copied(share, layers, f"slots {slots} were not told")
            return
        for layer, slot in zip(layers, slots, strict=True):
            lease = own.written.pop(slot)
            lease.unpin()
            spawn(self._copy(own, layer, lease), own.copying)

    def end(self, share: TakenShare) -> None:
        """Nothing lands for it any more. Idempotent."""
        own = self._shares.pop(share, None)
        if own is not None:
            own.left = 0
            for task in own.leasing:  # it need not stand in line any more
                task.cancel()
            for lease in own.written.values():
                lease.unpin()
                lease.drop()
            own.written.clear()

    def doubt(self, share: TakenShare) -> bool:
        """Take the slots away from a producer that can tell nothing any more; whether that could be done."""
        own = self._shares.get(share)
        if own is None:
            return True
        own.left = 0
        pool = self._guests.pool
        for slot, lease in list(own.written.items()):
            if pool.revoke(lease):
                del own.written[slot]
                lease.drop()
        return not own.written

    async def _lease(self, own: _Share) -> None:
        try:
            lease = await self._guests.pool.lease(own.plan.nbytes, findable=False)
        except OmniAsyncError as error:
            self._core.cancel(own.share, error)
            self._flush()
            return
        if not own.left or self._shares.get(own.share) is not own:
            lease.drop()
            return
        self._tell(own, lease)

    def _tell(self, own: _Share, lease: Lease) -> None:
        own.left -= 1
        own.last += 1
        own.written[own.last] = lease
        lease.pin()
        region = lease.segment.region.id
        self._say(own.share, Room(own.share.ticket, own.last, region, lease.offset, lease.nbytes))

    async def _copy(self, own: _Share, layer: int, lease: Lease) -> None:
        problem: str | None = "it was cancelled"
        try:
            await self._guests.wiring.executor.finish(
                scatter, own.plan, self._caches.bases(layer), lease.address
            )
            problem = None
        except OmniAsyncError as error:
            problem = str(error)
        finally:
            if own.left and problem is None and self._shares.get(own.share) is own:
                self._tell(own, lease)
            else:
                lease.drop()
            self._core.copied(own.share, [layer], problem)
            self._flush()
