"""Where what comes to a consumer lands, straight or in slots, and how that is taken away from who writes there.

In: shares that are asked for, begin, arrive, end, or are in doubt. Out: word that nothing can land for them any more.
Never: lets a block be free before a write to it that had begun has ended, or lands elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from ..abc import Revoke
from ..errors import UsageError
from ..model import Verb
from ..transport.guests import Guests
from .caches import Caches
from .mappings import Mapping, Mappings
from .slots import Slots
from .taking import TakenShare, Taking
from .words import AnyWord

GRACE = 1.0
"""Seconds between taking memory away from a lost producer and giving its blocks to others. A copy that the
kernel had begun for a process of this host may have looked the pages up before."""


class Landing:
    """Of one consumer.

    Args:
        how: ``auto``, ``direct`` or ``staged``, see :class:`KVConsumer`.
        say: tells the producer of a share.
        flush: called after the core was told something.
        remap: called when producers have to be told of another mapping.

    Raises:
        UsageError: another ``how``.
    """

    def __init__(
        self,
        guests: Guests,
        caches: Caches,
        core: Taking,
        how: str,
        *,
        say: Callable[[TakenShare, AnyWord], None],
        flush: Callable[[], None],
        remap: Callable[[], None],
    ) -> None:
        self._guests = guests
        self._caches = caches
        self._core = core
        self._flush = flush
        self._remap = remap
        self._loop = asyncio.get_running_loop()
        self._writes = guests.verb is Verb.WRITE
        self.staged = self._stages(how)
        """Whether producers write into slots only."""
        self._slots = Slots(guests, caches, core, say, flush)
        self._mappings: Mappings | None = None

    def _stages(self, how: str) -> bool:
        if how not in ("auto", "direct", "staged"):
            raise UsageError(f"landing is 'auto', 'direct' or 'staged', not {how!r}")
        if how != "auto" or not self._writes:
            return self._writes and how == "staged"
        slots_help = self._guests.wiring.engine.revoke is not Revoke.NOTHING
        on_host = self._caches.device == "cpu"
        return slots_help and on_host and not Mappings.can(self._guests, self._caches)

    # --- what producers are told ------------------------------------------------------------------

    def lay_out(self) -> bool:
        """Make ready; whether that is all, and nobody is to reach the caches where they are."""
        if self.staged or self._guests.verb is Verb.MAP:
            return True  # they are copied into from here
        if self._writes and Mappings.can(self._guests, self._caches):
            self._mappings = Mappings(self._guests, self._caches, self._remap, self._taken)
        return self._mappings is not None

    @property
    def mapping(self) -> Mapping | None:
        """What producers are told now, where it is a mapping that can be taken away."""
        return None if self._mappings is None else self._mappings.present

    # --- shares -----------------------------------------------------------------------------------

    def asked(self, share: TakenShare) -> None:
        """Its producer may write to the present mapping from now on."""
        if self._mappings is not None:
            self._mappings.begin(share)

    def begin(self, share: TakenShare) -> None:
        """(staged) Its producer wants slots."""
        self._slots.begin(share, share.plan)

    def arrived(self, share: TakenShare, layers: list[int], slots: list[int]) -> None:
        """(staged) Layers were written to slots."""
        self._slots.arrived(share, layers, slots)

    def end(self, share: TakenShare) -> None:
        """Nothing lands for it any more. Idempotent."""
        self._slots.end(share)
        if self._mappings is not None:
            self._mappings.end(share)

    def doubt(self, share: TakenShare) -> None:
        """Its producer can tell of no end any more: take the memory away, where that can be done."""
        if share.staged:
            if self._slots.doubt(share):
                self._taken(share)
        elif self._mappings is not None:
            self._mappings.doubt(share)

    def _taken(self, share: TakenShare) -> None:
        self._loop.call_later(GRACE, self._free, share)

    def _free(self, share: TakenShare) -> None:
        self._core.free(share)
        self._flush()

    # --- closing ----------------------------------------------------------------------------------

    async def close(self, shares: Iterable[TakenShare]) -> None:
        """Take the memory away from all who may still write for these, and wait until that holds."""
        taken = self.take_away(shares)
        if taken:
            await asyncio.sleep(GRACE)
        for share in taken:
            self._core.free(share)

    def take_away(self, shares: Iterable[TakenShare]) -> list[TakenShare]:
        """Take it away without waiting; returns the shares for which that could be done. Idempotent."""
        mapped: set[TakenShare] = set()
        if self._mappings is not None:
            mapped = self._mappings.close()
            self._mappings = None
        return [
            share
            for share in shares
            if (self._slots.doubt(share) if share.staged else share in mapped)
        ]
