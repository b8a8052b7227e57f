"""How nets run between two rows: which height each one turns at, without lying on another.

In: where nets begin above and end below. Out: the corners of each way.
Never: lets two nets share a column or a height where they would be taken for one.
"""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import count
from typing import NamedTuple

Corner = tuple[int, int]
"""Column, height below the row above, counted from 0."""


class Pins(NamedTuple):
    """Where a net begins and ends, in columns."""

    top: int
    bottoms: frozenset[int]

    @property
    def low(self) -> int:
        return min(self.top, *self.bottoms)

    @property
    def high(self) -> int:
        return max(self.top, *self.bottoms)


class Ways(NamedTuple):
    """The corners of each net's way to each of its ends, and how many heights were needed."""

    corners: Mapping[tuple[int, int], tuple[Corner, ...]]
    """(net, column below) → corners from top to bottom, none for a straight line."""
    height: int


def routed(nets: Mapping[int, Pins]) -> Ways:
    """Ways for all nets between two rows.

    A net's first column ends where the net turns, its last ones begin there. So where one net
    begins above the end of another, it has to turn higher up. Where that goes round in a circle,
    one of them turns twice.
    """
    bent = {(net, 0): pins for net, pins in nets.items() if pins.bottoms != {pins.top}}
    taken = {column for pins in nets.values() for column in (pins.top, *pins.bottoms)}
    detours: dict[int, int] = {}
    order = _ordered(bent)
    while isinstance(order, int):
        pins = bent.pop((order, 0))
        detours[order] = column = _free(pins, taken)
        taken.add(column)
        bent[order, 0] = Pins(pins.top, frozenset({column}))
        bent[order, 1] = Pins(column, pins.bottoms)
        order = _ordered(bent)
    heights = _heights(_untangled(order, bent), bent)
    corners: dict[tuple[int, int], tuple[Corner, ...]] = {}
    for net, pins in nets.items():
        for bottom in pins.bottoms:
            way: list[Corner] = []
            at = pins.top
            for part in (0, 1):
                if (net, part) in heights:
                    to = detours.get(net, bottom) if part == 0 else bottom
                    height = heights[net, part]
                    way += [(at, height), (to, height)]
                    at = to
            corners[net, bottom] = tuple(way)
    return Ways(corners, max(heights.values(), default=-1) + 1)


_Part = tuple[int, int]
"""A net, and 1 for what comes after its detour."""


def _ordered(bent: Mapping[_Part, Pins]) -> list[_Part] | int:
    """From top to bottom, or a net that has to turn twice before there is an order."""
    try:
        return list(TopologicalSorter(_higher(bent)).static_order())
    except CycleError as error:
        net: int = error.args[1][0][0]
        return net


def _higher(bent: Mapping[_Part, Pins]) -> dict[_Part, list[_Part]]:
    """Which parts have to turn above each one."""
    begins = {pins.top: part for part, pins in bent.items()}
    return {
        part: [begins[end] for end in sorted(pins.bottoms) if begins.get(end, part)[0] != part[0]]
        for part, pins in bent.items()
    }


def _free(pins: Pins, taken: set[int]) -> int:
    """The nearest column to a net's own that nobody uses."""
    near = (column for far in count(1) for column in (pins.top + far, pins.top - far))
    return next(column for column in near if column >= 0 and column not in taken)


def _untangled(order: list[_Part], bent: Mapping[_Part, Pins]) -> list[_Part]:
    """The order from top to bottom with neighbours swapped as long as that saves crossings."""
    order = list(order)
    swapped = True
    while swapped:
        swapped = False
        for i in range(len(order) - 1):
            upper, lower = bent[order[i]], bent[order[i + 1]]
            same = order[i][0] == order[i + 1][0]
            if not same and _crossed(lower, upper) < _crossed(upper, lower):
                order[i : i + 2] = order[i + 1], order[i]
                swapped = True
    return order


def _crossed(upper: Pins, lower: Pins) -> float:
    """Crossings when one turns above the other; without end where they would lie on each other."""
    if lower.top in upper.bottoms:
        return float("inf")
    ends = sum(lower.low <= end <= lower.high for end in upper.bottoms)
    return ends + (upper.low <= lower.top <= upper.high)


def _heights(order: list[_Part], bent: Mapping[_Part, Pins]) -> dict[_Part, int]:
    """As few heights as the order allows: side by side what does not meet."""
    heights: dict[_Part, int] = {}
    for part in order:
        pins = bent[part]
        heights[part] = max(
            (
                height + 1
                for other, height in heights.items()
                if bent[other].low <= pins.high + 1 and pins.low <= bent[other].high + 1
            ),
            default=0,
        )
    return heights
