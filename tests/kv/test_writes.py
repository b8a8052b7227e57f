"""Layers that are ready together: a few in each turn of the loop, each told when it is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

from omni_async.kv import KVLayout
from omni_async.kv.plan import KVPlan
from omni_async.kv.words import Spot
from omni_async.kv.writes import A_TURN, Target, Writes
from omni_async.model import Move

LAYOUT = KVLayout(
    layers=10, num_blocks=4, block_size=2, kv_heads=1, head_size=8, dtype="float16", form="paired"
)


class Line:
    """Notes what is moved over it."""

    def __init__(self) -> None:
        self.moves: list[Sequence[Move]] = []
        self.ends: list[Callable[[str | None], None]] = []

    def move(self, moves: Sequence[Move], ended: Callable[[str | None], None]) -> None:
        self.moves.append(moves)
        self.ends.append(ended)


class Desk:
    def __init__(self) -> None:
        self.told: list[tuple[int, str | None]] = []
        caches = SimpleNamespace(bases=lambda layer: [layer << 20])
        self.writes = Writes(cast("Any", None), cast("Any", caches), self._ended)
        self.line = Line()
        plan = KVPlan.of(LAYOUT, [0, 1], LAYOUT, [2, 3])
        spots = [Spot(1, layer << 12) for layer in range(LAYOUT.layers)]
        self.share: Any = SimpleNamespace(plan=Target(plan, spots), reason=None)

    def _ended(self, share: object, layer: int, problem: str | None) -> None:
        self.told.append((layer, problem))

    def begin(self, layers: range, *, line: bool = True) -> None:
        for layer in layers:
            self.writes.begin(self.share, layer, None, cast("Any", self.line) if line else None)


async def test_others_on_the_loop_get_their_turn() -> None:
    desk = Desk()
    desk.begin(range(10))
    begun = [len(desk.line.moves)]
    while begun[-1] < 10:
        await asyncio.sleep(0)
        begun.append(len(desk.line.moves))
        assert begun[-1] <= begun[-2] + A_TURN
    assert begun[0] == A_TURN
    assert desk.writes.under_way == 10
    assert [moves[0].local >> 20 for moves in desk.line.moves] == list(range(10))
    for ended in desk.line.ends:
        ended(None)
    assert desk.told == [(layer, None) for layer in range(10)]
    assert desk.writes.under_way == 0


async def test_a_turn_later_as_many_may_begin_again() -> None:
    desk = Desk()
    desk.begin(range(A_TURN))
    await asyncio.sleep(0)
    desk.begin(range(A_TURN, A_TURN + 2))
    assert len(desk.line.moves) == A_TURN + 2


async def test_what_is_given_up_meanwhile_is_not_written() -> None:
    desk = Desk()
    desk.begin(range(A_TURN + 2))
    desk.share.reason = "aborted"
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(desk.line.moves) == A_TURN
    assert desk.told == [(A_TURN, "it was given up"), (A_TURN + 1, "it was given up")]
    assert desk.writes.under_way == A_TURN


async def test_a_consumer_that_has_gone_is_told_of_in_the_next_turn() -> None:
    desk = Desk()
    desk.begin(range(2), line=False)
    assert desk.told == []
    await asyncio.sleep(0)
    assert desk.told == [(0, "the consumer has gone"), (1, "the consumer has gone")]
    assert desk.writes.under_way == 0
