"""What a producer writes itself, where the engine's verb is WRITE: straight, into landing slots, or gathered.

In: shares, layers of theirs that are ready. Out: word of each end, to the core.
Never: tells an end while a byte may be under way; frees a buffer before the engine has ended with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
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

A_TURN = 4
"""Layers whose moves are made in one turn of the loop: the engine begins with them meanwhile, and others on the loop
get their turn."""

Ended = Callable[[GivenShare, int, str | None], None]


_Layer = tuple[GivenShare, int, Room | None, GuestLine]


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
        self._rest: deque[_Layer] = deque()
        self._begun = 0
        """In this turn of the loop."""
        self.under_way = 0

    def begin(
        self, share: GivenShare, layer: int, room: Room | None, line: GuestLine | None
    ) -> None:
        """Write a layer to a consumer, into a slot of its or straight; no line where it has gone."""
        self.under_way += 1
        if line is None:
            self._loop.call_soon(self._over, share, layer, "the consumer has gone")
            return
        self._rest.append((share, layer, room, line))
        if not self._begun:
            self._loop.call_soon(self._next_turn)
        self._begin_some()

    def _next_turn(self) -> None:
        self._begun = 0
        if self._rest:
            self._loop.call_soon(self._next_turn)
            self._begin_some()

    def _begin_some(self) -> None:
        while self._rest and self._begun < A_TURN:
            self._begun += 1
            self._begin(*self._rest.popleft())

    def _begin(self, share: GivenShare, layer: int, room: Room | None, line: GuestLine) -> None:
        if share.reason is not None:
            self._loop.call_soon(self._over, share, layer, "it was given up")
            return
        target: Target = share.plan
        plan = target.moves
        if room is None:
            moves = sending.direct(plan, self._caches, layer, target.spots)
            line.move(moves, partial(self._over, share, layer))
        elif room.nbytes < plan.nbytes:
            text = f"a landing slot of {room.nbytes} bytes for {plan.nbytes}"
            self._loop.call_soon(self._over, share, layer, text)
        elif sending.through_buffers(plan):
            spawn(self._gathered(line, share, layer, room), self._tasks)
        else:
            moves = sending.into_room(plan, self._caches, layer, room)
            line.move(moves, partial(self._over, share, layer))

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
        line.move([Move(lease.address, room.region, room.offset, plan.nbytes)], ended)

    def _over(self, share: GivenShare, layer: int, problem: str | None) -> None:
        self.under_way -= 1
        self._ended(share, layer, problem)
