"""Boxes and the lines that pass them, row by row, in an order with few crossings.

In: rows of names, arrows. Out: items in rows and the links between neighbouring rows.
Never: knows how wide anything is.

All arrows of a kind that leave a box with the flow are one net: they share a trunk until they part.
An arrow against the flow is a net of its own, turned round, so that every net leads down.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

SWEEPS = 12
"""Passes down and up; what is in sight of a pipeline's size settles in a few."""


class Link(NamedTuple):
    """A piece of a net between a row and the next."""

    net: int
    upper: int
    """Item in the row above."""
    lower: int
    arrow: int | None
    """Which arrow ends at ``lower``; ``None`` where the net goes on further down."""


@dataclass(frozen=True)
class Grid:
    """What stands where."""

    names: list[str | None]
    """Of each item; ``None`` for a line that passes a row."""
    rows: list[list[int]]
    """Items from left to right."""
    links: list[list[Link]]
    """``links[i]`` join ``rows[i]`` and ``rows[i + 1]``."""
    turned: frozenset[int]
    """Nets that run against the flow."""


class Way(NamedTuple):
    """What is to be known of an arrow."""

    top: str
    """The box above; the arrow's end where it runs against the flow."""
    bottom: str
    kind: str
    turned: bool
    """It runs against the flow."""


def arranged(rows: Sequence[Sequence[str]], ways: Sequence[Way]) -> Grid:
    """The grid with the fewest crossings that a few sweeps find."""
    grid = _grid(rows, ways)
    best, fewest = [list(row) for row in grid.rows], _crossings(grid)
    for sweep in range(SWEEPS):
        if not fewest:
            break
        _sweep(grid, down=sweep % 2 == 0)
        crossings = _crossings(grid)
        if crossings < fewest:
            best, fewest = [list(row) for row in grid.rows], crossings
    return Grid(grid.names, best, grid.links, grid.turned)


def _grid(rows: Sequence[Sequence[str]], ways: Sequence[Way]) -> Grid:
    names: list[str | None] = [name for row in rows for name in row]
    item_of = {name: item for item, name in enumerate(names)}
    row_of = {name: i for i, row in enumerate(rows) for name in row}
    nets: dict[tuple[str, str | int], list[tuple[str, int]]] = {}
    for i, way in enumerate(ways):
        nets.setdefault((way.top, i if way.turned else way.kind), []).append((way.bottom, i))
    grid = Grid(
        names,
        [[item_of[name] for name in row] for row in rows],
        [[] for _ in rows[1:]],
        frozenset(net for net, (_, own) in enumerate(nets) if isinstance(own, int)),
    )
    for net, ((top, _), ends) in enumerate(nets.items()):
        at = item_of[top]
        for row in range(row_of[top], max(row_of[end] for end, _ in ends)):
            for end, arrow in ends:
                if row_of[end] == row + 1:
                    grid.links[row].append(Link(net, at, item_of[end], arrow))
            if any(row_of[end] > row + 1 for end, _ in ends):
                names.append(None)
                grid.rows[row + 1].append(len(names) - 1)
                grid.links[row].append(Link(net, at, len(names) - 1, None))
                at = len(names) - 1
    return grid


def _sweep(grid: Grid, *, down: bool) -> None:
    """Each row by the middle of what its items are joined to in the row before it."""
    for i in range(1, len(grid.rows)) if down else range(len(grid.rows) - 2, -1, -1):
        links = grid.links[i - 1] if down else grid.links[i]
        fixed = grid.rows[i - 1] if down else grid.rows[i + 1]
        at = {item: position for position, item in enumerate(fixed)}
        met: dict[int, list[int]] = {}
        for link in links:
            here, there = (link.lower, link.upper) if down else (link.upper, link.lower)
            met.setdefault(here, []).append(at[there])
        grid.rows[i].sort(key=_middle(met, grid.rows[i]))


def _middle(met: dict[int, list[int]], row: Sequence[int]) -> Callable[[int], float]:
    """The mean of the neighbours' places; who has none keeps its own."""
    keys = {
        item: sum(met[item]) / len(met[item]) if item in met else position
        for position, item in enumerate(row)
    }
    return keys.__getitem__


def _crossings(grid: Grid) -> int:
    at = {item: position for row in grid.rows for position, item in enumerate(row)}
    count = 0
    for links in grid.links:
        ends: list[int] = []
        for _, end in sorted((at[link.upper], at[link.lower]) for link in links):
            count += len(ends) - bisect_right(ends, end)
            insort(ends, end)
    return count
