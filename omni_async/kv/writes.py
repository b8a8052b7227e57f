"""What a producer writes itself, where the engine's verb is WRITE: straight, into landing slots, or gathered.

In: shares, layers of theirs that are ready. Out: word of each end, to the core.
Never: tells an end while a byte may be under way; frees a buffer before the engine has ended with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from .._aio.tasks import spawn
from ..errors import OmniAsyncError
from ..model import Move
from ..transport.guests import GuestLine, Guests
from . import sending
from .caches import Caches
from .given import GivenShare
from .plan import KVPlan
from .words import Room, Spot

Ended = Callable[[GivenShare, int, str | None], None]


class Target(NamedTuple):
    """What a share's plan is: the moves, and where the consumer's tensors lay when it asked."""

    moves: KVPlan
    spots: list[Spot]


class Writes:
    """Those of one producer.

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

    def begin(
        self, share: GivenShare, layer: int, room: Room | None, line: GuestLine | None
    ) -> None:
        """Write a layer to a consumer, into a slot of its or straight; no line where it has gone."""
        self.under_way += 1
        if line is None:
            self._loop.call_soon(self._over, share, layer, "the consumer has gone")
            return
        target: Target = share.plan
        plan = target.moves
        if room is None:
            make = partial(sending.direct, plan, self._caches, layer, target.spots)
            self._move(line, share, layer, make)
        elif room.nbytes < plan.nbytes:
            text = f"a landing slot of {room.nbytes} bytes for {plan.nbytes}"
            self._loop.call_soon(self._over, share, layer, text)
        elif sending.through_buffers(plan):
            spawn(self._gathered(line, share, layer, room), self._tasks)
        else:
            self._move(
                line, share, layer, partial(sending.into_room, plan, self._caches, layer, room)
            )

    def _move(
        self, line: GuestLine, share: GivenShare, layer: int, make: Callable[[], list[Move]]
    ) -> None:
        """Its turn may come long after it was ready."""
        given_up: list[str] = []

        def wanted() -> list[Move]:
            if share.reason is None:
                return make()
            given_up.append("it was given up")
            return []

        def ended(problem: str | None) -> None:
            self._over(share, layer, problem or next(iter(given_up), None))

        line.move(share.plan.moves.nbytes, wanted, ended)

    async def _gathered(self, line: GuestLine, share: GivenShare, layer: int, room: Room) -> None:
        target: Target = share.plan
        plan = target.moves
        try:
            lease = await self._guests.pool.lease(plan.nbytes, findable=False)
        except OmniAsyncError as error:
            self._over(share, layer, f"no buffer to gather it: {error}")
            return
        if share.reason is not None:  # it was given up while there was no room
            lease.drop()
            self._over(share, layer, "it was given up")
            return
        lease.pin()

        def ended(problem: str | None) -> None:
            lease.unpin()
            lease.drop()
            self._over(share, layer, problem)

        try:
            executor = self._guests.wiring.executor
            await executor.finish(sending.gathered, plan, self._caches, layer, lease.address)
        except BaseException as error:
            ended(f"it could not be gathered: {error!r}")
            if isinstance(error, OmniAsyncError):
                return
            raise
        move = Move(lease.address, room.region, room.offset, plan.nbytes)
        line.move(plan.nbytes, lambda: [move], ended)

    def _over(self, share: GivenShare, layer: int, problem: str | None) -> None:
        self.under_way -= 1
        self._ended(share, layer, problem)
