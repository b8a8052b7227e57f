"""Layers that are ready together: each is worked out when its turn comes, and told when it is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

from omni_async.kv import KVLayout
from omni_async.kv.plan import KVPlan
from omni_async.kv.words import Spot
from omni_async.kv.writes import Target, Writes
from omni_async.model import Move

LAYOUT = KVLayout(
    layers=10, num_blocks=4, block_size=2, kv_heads=1, head_size=8, dtype="float16", form="paired"
)


class Line:
    """Notes what is to be moved over it."""

    def __init__(self) -> None:
        self.makes: list[Callable[[], Sequence[Move]]] = []
        self.nbytes: list[int] = []
        self.ends: list[Callable[[str | None], None]] = []

    def move(
        self,
        nbytes: int,
        make: Callable[[], Sequence[Move]],
        ended: Callable[[str | None], None],
    ) -> None:
        self.nbytes.append(nbytes)
        self.makes.append(make)
        self.ends.append(ended)


class Desk:
    def __init__(self) -> None:
        self.told: list[tuple[int, str | None]] = []
        self.bases: list[int] = []
        """Layers of which somebody asked where they are."""
        caches = SimpleNamespace(bases=self._bases)
        self.writes = Writes(cast("Any", None), cast("Any", caches), self._ended)
        self.line = Line()
        plan = KVPlan.of(LAYOUT, [0, 1], LAYOUT, [2, 3])
        spots = [Spot(1, layer << 12) for layer in range(LAYOUT.layers)]
        self.share: Any = SimpleNamespace(plan=Target(plan, spots), reason=None)

    def _bases(self, layer: int) -> list[int]:
        self.bases.append(layer)
        return [layer << 20]

    def _ended(self, share: object, layer: int, problem: str | None) -> None:
        self.told.append((layer, problem))

    def begin(self, layers: range, *, line: bool = True) -> None:
        for layer in layers:
            self.writes.begin(self.share, layer, None, cast("Any", self.line) if line else None)


async def test_each_layer_is_worked_out_when_its_turn_comes() -> None:
    desk = Desk()
    desk.begin(range(10))
    assert desk.bases == []
    assert desk.writes.under_way == 10
    for layer, (nbytes, make) in enumerate(zip(desk.line.nbytes, desk.line.makes, strict=True)):
        moves = make()
        assert desk.bases == list(range(layer + 1))
        assert {move.local >> 20 for move in moves} == {layer}
        assert sum(move.nbytes for move in moves) == nbytes
    for ended in desk.line.ends:
        ended(None)
    assert desk.told == [(layer, None) for layer in range(10)]
    assert desk.writes.under_way == 0


async def test_what_is_given_up_meanwhile_is_not_written() -> None:
    desk = Desk()
    desk.begin(range(3))
    assert desk.line.makes[0]()
    desk.share.reason = "aborted"
    assert not desk.line.makes[1]()
    assert not desk.line.makes[2]()
    for ended, problem in zip(desk.line.ends, [None, None, "the line has ended"], strict=True):
        ended(problem)
    assert desk.told == [(0, None), (1, "it was given up"), (2, "the line has ended")]
    assert desk.writes.under_way == 0


async def test_a_consumer_that_has_gone_is_told_of_in_the_next_turn() -> None:
    desk = Desk()
    desk.begin(range(2), line=False)
    assert desk.told == []
    await asyncio.sleep(0)
    assert desk.told == [(0, "the consumer has gone"), (1, "the consumer has gone")]
    assert desk.writes.under_way == 0
