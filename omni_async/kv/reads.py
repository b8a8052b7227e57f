"""What a consumer carries itself, where producers do not write: READ by the engine, MAP by copies.

In: shares whose layers may be read. Out: word of each end, to the core.
Never: believes that what it read was there all the time; reads beyond what a producer has announced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from .._aio.tasks import spawn
from ..model import Move, Verb
from ..transport.guests import Guests
from . import sending
from .caches import Caches
from .end import Peer
from .mapped import carry_layers
from .taking import TakenShare

Ended = Callable[[TakenShare, list[int], str | None], None]


class Reads:
    """Those of one consumer.

    Args:
        ended: called when no byte of it can be under way any more, with what went wrong.
    """

    def __init__(self, guests: Guests, caches: Caches, ended: Ended) -> None:
        self._guests = guests
        self._caches = caches
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self.under_way = 0

    def begin(self, share: TakenShare, layers: list[int], peer: Peer | None) -> None:
        """Read layers from a producer; none where it has gone."""
        self.under_way += 1
        if peer is None:
            self._loop.call_soon(self._over, share, layers, "the producer has gone")
        elif self._guests.verb is Verb.MAP:
            spawn(self._carry(peer, share, layers), self._tasks)
        else:
            make = partial(self._moves, share, layers, peer)
            nbytes = share.plan.nbytes * len(layers)
            peer.line.move(nbytes, make, partial(self._over, share, layers))

    def _moves(self, share: TakenShare, layers: list[int], peer: Peer) -> list[Move]:
        return [
            move
            for layer in layers
            for move in sending.reading(share.plan, self._caches, layer, peer.meet.spots)
        ]

    async def _carry(self, peer: Peer, share: TakenShare, layers: list[int]) -> None:
        problem: str | None = "it was cancelled"
        try:
            problem = await carry_layers(
                self._guests.wiring.executor,
                share.plan,
                self._caches,
                layers,
                peer.meet.spots,
                peer.line,
            )
        finally:
            self._over(share, layers, problem)

    def _over(self, share: TakenShare, layers: list[int], problem: str | None) -> None:
        self.under_way -= 1
        self._ended(share, layers, problem)
