"""Where items stand from left to right, and where lines leave and reach them.

In: a grid, what is written on boxes and arrows. Out: columns.
Never: changes the order in a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import floor
from typing import NamedTuple

from .order import Grid, Link
from .text import columns

SWEEPS = 5
"""Passes up and down. An odd number: ending with upper boxes above lower ones makes fewer corners."""
GAP = 2
"""Columns between neighbours."""
_STEP = 4
"""Columns between lines that leave one box."""
_STIFF = 32
"""How much more it counts that a line passes two rows straight than that another does."""
_TOUCH = 2
"""A line meets a box this far from its corner, or further."""


@dataclass
class Item:
    """A box, or a line on its way past a row."""

    width: int
    """Of the box; 1 for a line."""
    reach: int
    """The width with what is written beside the arrows into it."""
    tops: dict[int | None, int] = field(default_factory=dict)
    """Arrow that ends here → columns from the left edge; ``None`` for a line."""
    bottoms: dict[int, int] = field(default_factory=dict)
    """Net that leaves here → columns from the left edge."""
    left: int = 0

    def top(self, link: Link) -> int:
        return self.left + self.tops[link.arrow]

    def bottom(self, link: Link) -> int:
        return self.left + self.bottoms[link.net]


def placed(
    grid: Grid,
    boxes: Mapping[str, Sequence[str]],
    labels: Sequence[Sequence[str]],
    limit: int | None = None,
) -> list[Item]:
    """Items with their places, the leftmost at 0.

    Args:
        boxes: lines of text in each box.
        labels: lines of text beside each arrow.
        limit: keep to this width where the rows allow it.
    """
    items = _items(grid, boxes, labels)
    if limit is not None:
        limit = max(limit, *(_extent([items[i] for i in row]) for row in grid.rows))
    last = len(grid.rows) - 1
    for row in grid.rows:
        _settle([items[i] for i in row], [_Wish(0.0)] * len(row), limit)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 1
        for i in range(1, last + 1) if down else range(last - 1, -1, -1):
            here = [items[item] for item in grid.rows[i]]
            _settle(here, _wishes(grid, items, i, down=down), limit)
    left = min((item.left for item in items), default=0)
    for item in items:
        item.left -= left
    for links in grid.links:
        _straighten(grid, items, links, labels)
    return items


def label_width(lines: Sequence[str]) -> int:
    """What is written beside an arrow, with the blank before it."""
    return max((columns(line) + 1 for line in lines), default=0)


def _items(
    grid: Grid, boxes: Mapping[str, Sequence[str]], labels: Sequence[Sequence[str]]
) -> list[Item]:
    at = {item: position for row in grid.rows for position, item in enumerate(row)}
    ends: dict[tuple[int, int], list[int]] = {}
    for links in grid.links:
        for link in links:
            ends.setdefault((link.upper, link.net), []).append(at[link.lower])
    # Lines between the same two boxes leave the upper in the order in which they reach the lower.
    order = {key: (sum(found) / len(found), key[1]) for key, found in ends.items()}
    below: dict[int, list[int]] = {}
    for upper, net in sorted(order, key=order.__getitem__):
        below.setdefault(upper, []).append(net)
    above: dict[int, list[int | None]] = {}
    for links in grid.links:
        for link in sorted(links, key=lambda link: (at[link.upper], order[link.upper, link.net])):
            above.setdefault(link.lower, []).append(link.arrow)
    items: list[Item] = []
    for i, name in enumerate(grid.names):
        nets = below.get(i, [])
        if name is None:
            items.append(Item(1, 1, {None: 0}, dict.fromkeys(nets, 0)))
            continue
        ahead = [j for j, net in enumerate(nets) if net not in grid.turned]
        forward = ahead[len(ahead) // 2] if ahead else 0
        sides = max(forward, len(nets) - 1 - forward) * _STEP
        arrows = [arrow for arrow in above.get(i, ()) if arrow is not None]
        upside = _upside(boxes[name], [labels[arrow] for arrow in arrows], 2 * sides)
        items.append(
            Item(
                upside.width,
                upside.reach,
                dict(zip(arrows, upside.tops, strict=True)),
                {net: upside.width // 2 + (j - forward) * _STEP for j, net in enumerate(nets)},
            )
        )
    return items


class _Upside(NamedTuple):
    """A box as seen from above."""

    width: int
    reach: int
    tops: list[int]


def _upside(lines: Sequence[str], labels: Sequence[Sequence[str]], span: int = 0) -> _Upside:
    """Where arrows with these labels meet a box that spans some columns at least."""
    tops, end = [0], 0
    for label in labels:
        end = tops[-1] + label_width(label) + 1
        tops.append(end + GAP)
    tops = tops[: len(labels)]
    inside = tops[-1] if tops else 0
    text = max((columns(line) for line in lines), default=0) + 4
    width = max(text, max(span, inside) + 2 * _TOUCH + 1) | 1  # odd, so that it has a middle
    start = width // 2 - inside // 2
    return _Upside(width, max(width, start + end), [start + top for top in tops])


def width_alone(lines: Sequence[str], labels: Sequence[Sequence[str]]) -> int:
    """What a box takes of its row, with the gap behind it."""
    return _upside(lines, labels).reach + GAP


def _extent(row: Sequence[Item]) -> int:
    return sum(item.reach for item in row) + GAP * (len(row) - 1)


class _Wish(NamedTuple):
    """Where an item's left edge should be, and how much that counts when neighbours push."""

    left: float
    weight: int = 1


def _wishes(grid: Grid, items: Sequence[Item], row: int, *, down: bool) -> list[_Wish]:
    """Where each item's lines would run straight, on average; lines that pass two rows first."""
    wishes: dict[int, list[int]] = {}
    straight: set[int] = set()
    for link in grid.links[row - 1] if down else grid.links[row]:
        upper, lower = items[link.upper], items[link.lower]
        if down:
            wishes.setdefault(link.lower, []).append(upper.bottom(link) - lower.tops[link.arrow])
        else:
            wishes.setdefault(link.upper, []).append(lower.top(link) - upper.bottoms[link.net])
        if grid.names[link.upper] is grid.names[link.lower] is None:
            straight |= {link.upper, link.lower}
    return [
        _Wish(sum(wishes[i]) / len(wishes[i]), _STIFF if i in straight else 1)
        if i in wishes
        else _Wish(items[i].left)
        for i in grid.rows[row]
    ]


def _settle(row: Sequence[Item], wishes: Sequence[_Wish], limit: int | None) -> None:
    """Place a row as near to its wishes as order and gaps allow (least squares).

    Pool adjacent violators: neighbours that push each other become a block that moves as one.
    """
    offsets, offset = [], 0
    blocks: list[tuple[float, int, int]] = []  # mean, weight, members
    for item, wish in zip(row, wishes, strict=True):
        mean, weight, members = wish.left - offset, wish.weight, 1
        while blocks and blocks[-1][0] > mean:
            before, heavy, count = blocks.pop()
            mean = (mean * weight + before * heavy) / (weight + heavy)
            weight, members = weight + heavy, members + count
        blocks.append((mean, weight, members))
        offsets.append(offset)
        offset += item.reach + GAP
    means = [mean for mean, _, members in blocks for _ in range(members)]
    if limit is not None:
        most = limit - (offset - GAP)
        means = [min(max(mean, 0), most) for mean in means]
    for item, mean, start in zip(row, means, offsets, strict=True):
        item.left = floor(mean + 0.5) + start


def _straighten(
    grid: Grid, items: Sequence[Item], links: Sequence[Link], labels: Sequence[Sequence[str]]
) -> None:
    """Let a line meet a box off its middle where it then needs no corner."""
    for link in links:
        upper, lower = items[link.upper], items[link.lower]
        if grid.names[link.lower] is not None and len(lower.tops) == 1:
            assert link.arrow is not None
            offset = upper.bottom(link) - lower.left
            end = min(lower.width - _TOUCH, lower.reach - label_width(labels[link.arrow]))
            if _TOUCH <= offset < end:
                lower.tops[link.arrow] = offset
    nets: dict[int, list[Link]] = {}
    for link in links:
        nets.setdefault(link.net, []).append(link)
    for net, members in nets.items():
        upper = items[members[0].upper]
        if grid.names[members[0].upper] is None or len(upper.bottoms) > 1:
            continue
        ends = {items[link.lower].top(link) for link in members}
        offset = min(ends) - upper.left
        if len(ends) == 1 and _TOUCH <= offset < upper.width - _TOUCH:
            upper.bottoms[net] = offset
