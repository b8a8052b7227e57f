"""One layer of one share on its way to a consumer: which moves, from where, through which buffer.

In: caches, a plan, a consumer's spots or landing slots. Out: moves for the engine.
Never: frees a buffer before the engine has ended with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import repeat

from ..model import Move
from .caches import Caches
from .gather import gather, places
from .plan import KVPlan, Offsets
from .words import Room, Spot

GATHERED = 32 << 10
"""Bytes of a piece on average below which pieces are gathered into one: that copy costs less than a piece
of the engine's for each. See docs/explanation/kv.md for the measurement."""

_move: partial[Move] = partial(tuple.__new__, Move)
"""A tuple's own way: a cache has thousands of them, and Move's is a call of Python's for each."""


def through_buffers(plan: KVPlan) -> bool:
    """Whether it is faster to gather the pieces, write them as one and lay them out at the other side."""
    return len(plan) > 1 and plan.piece_nbytes < GATHERED


def direct(plan: KVPlan, caches: Caches, layer: int, spots: list[Spot]) -> list[Move]:
    """From the blocks here to the blocks there."""
    local = plan.source_addresses(caches.bases(layer))
    theirs = _spots_of(layer, spots, plan.target_tensors)
    offsets = plan.target_addresses([spot.offset for spot in theirs])
    return _moves(plan, local, _regions(theirs, plan.target, plan.target_tensors), offsets)


def reading(plan: KVPlan, caches: Caches, layer: int, spots: list[Spot]) -> list[Move]:
    """The same from the other side: from the blocks there to the blocks here."""
    local = plan.target_addresses(caches.bases(layer))
    theirs = _spots_of(layer, spots, plan.source_tensors)
    offsets = plan.source_addresses([spot.offset for spot in theirs])
    return _moves(plan, local, _regions(theirs, plan.source, plan.source_tensors), offsets)


def into_room(plan: KVPlan, caches: Caches, layer: int, room: Room) -> list[Move]:
    """From the blocks here to one landing slot, piece after piece."""
    local = plan.source_addresses(caches.bases(layer))
    return _moves(plan, local, repeat(room.region), places(plan, room.offset))


def gathered(plan: KVPlan, caches: Caches, layer: int, address: int) -> None:
    """Copy one layer's pieces into a buffer. Blocks; for a thread."""
    gather(plan, caches.bases(layer), address)


def _spots_of(layer: int, spots: list[Spot], tensors: tuple[int, ...]) -> list[Spot]:
    """Those of one layer's tensors."""
    return spots[layer * len(tensors) : (layer + 1) * len(tensors)]


def _moves(plan: KVPlan, local: Offsets, regions: Iterable[int], offsets: Offsets) -> list[Move]:
    columns = zip(local.tolist(), regions, offsets.tolist(), plan.sizes.tolist(), strict=False)
    return list(map(_move, columns))


def _regions(spots: list[Spot], offsets: Offsets, tensors: tuple[int, ...]) -> Iterable[int]:
    """Of the tensor in which each offset lies."""
    if len(tensors) == 1:
        return repeat(spots[0].region)
    return [spots[second].region for second in (offsets >= tensors[0]).tolist()]
