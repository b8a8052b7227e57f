"""A drawing as plain numbers: boxes, lines with corners, places of labels. The unit is one letter.

In: boxes with their text, arrows with their labels, perhaps a width. Out: a Picture.
Never: draws, measures anything but text, knows what a box stands for.

Layered drawing after Sugiyama: boxes in rows (`layers`), rows ordered for few crossings (`order`),
columns chosen for straight lines (`place`), and each net with heights of its own between two rows
(`route`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from . import layers
from .order import Grid, Link, Way, arranged
from .place import Item, label_width, placed, width_alone
from .route import Corner, Pins, routed

_PART_GAP = 4
"""Columns between parts that no arrow joins."""


class Node(NamedTuple):
    """A box to be drawn."""

    name: str
    lines: tuple[str, ...]


class Arrow(NamedTuple):
    """An arrow to be drawn, and what is written beside its lower end."""

    start: str
    end: str
    label: tuple[str, ...] = ()
    kind: str = ""
    """Arrows of one kind from one box run together until they part."""
    back: bool = False
    """It runs against the flow: upwards."""

    @property
    def down(self) -> tuple[str, str]:
        """The box above and the one below."""
        return (self.end, self.start) if self.back else (self.start, self.end)


class Box(NamedTuple):
    """A box with its place; its border counts."""

    node: Node
    x: int
    y: int
    width: int
    height: int


class Line(NamedTuple):
    """An arrow with its way."""

    arrow: Arrow
    points: tuple[Corner, ...]
    """From the border of the box where it begins to that where it ends."""
    label: Corner
    """Where the label's first letter stands."""
    net: int
    """Lines of one net may run together."""


class Picture(NamedTuple):
    """All that is to be drawn."""

    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    width: int
    height: int


def layout(
    nodes: Sequence[Node], arrows: Sequence[Arrow], limit: int | None = None
) -> Picture | None:
    """The picture, or ``None`` when none was found that keeps to the limit.

    Every arrow joins two of the nodes; without those against the flow there is no circle, and
    turned round they close none.
    """
    by_name = {node.name: node for node in nodes}
    pieces: list[Picture] = []
    for names in layers.parts(list(by_name), [arrow.down for arrow in arrows]):
        inside = set(names)
        own = [arrow for arrow in arrows if arrow.start in inside]
        piece = _part([by_name[name] for name in names], own, limit)
        if piece is None:
            return None
        pieces.append(piece)
    return _shelved(pieces, limit)


def _part(nodes: Sequence[Node], arrows: Sequence[Arrow], limit: int | None) -> Picture | None:
    """One part that hangs together; with a limit, rows are made shorter until it fits."""
    if limit is None:
        return _drawn(nodes, arrows, None, None)
    for share in (1.0, 0.8, 0.6, 0.4):
        picture = _drawn(nodes, arrows, limit, int(limit * share))
        if picture.width <= limit:
            return picture
    return None


def _drawn(
    nodes: Sequence[Node], arrows: Sequence[Arrow], limit: int | None, row_limit: int | None
) -> Picture:
    ways = [Way(*arrow.down, arrow.kind, arrow.back) for arrow in arrows]
    labels = [arrow.label for arrow in arrows]
    met: dict[str, list[tuple[str, ...]]] = {node.name: [] for node in nodes}
    for arrow in arrows:
        met[arrow.down[1]].append(arrow.label)
    widths = {node.name: width_alone(node.lines, met[node.name]) for node in nodes}
    down = [arrow.down for arrow in arrows]
    grid = arranged(layers.rows(list(met), down, widths, row_limit), ways)
    items = placed(grid, {node.name: node.lines for node in nodes}, labels, limit)
    return _Assembly(grid, items, arrows).picture({node.name: node for node in nodes})


class _Assembly:
    """Rows put below each other, with the lines between them."""

    def __init__(self, grid: Grid, items: Sequence[Item], arrows: Sequence[Arrow]) -> None:
        self._grid = grid
        self._items = items
        self._arrows = arrows
        self._boxes: dict[int, Box] = {}
        self._passing: dict[int, list[Corner]] = {}
        """Line that passes a row → its corners down to there."""
        self._ended: dict[int, tuple[int, list[Corner]]] = {}
        """Arrow → its net, its corners from top to bottom."""

    def picture(self, nodes: Mapping[str, Node]) -> Picture:
        top = 0
        for i, row in enumerate(self._grid.rows):
            here: list[Box] = []
            for item in row:
                name = self._grid.names[item]
                if name is not None:
                    node, place = nodes[name], self._items[item]
                    box = Box(node, place.left, top, place.width, len(node.lines) + 2)
                    self._boxes[item] = box
                    here.append(box)
            top += max(box.height for box in here)
            if i < len(self._grid.links):
                top = self._lead(self._grid.links[i], top)
        boxes = tuple(self._boxes[item] for item in sorted(self._boxes))
        lines = [self._line(number, arrow) for number, arrow in enumerate(self._arrows)]
        return Picture(boxes, tuple(lines), _width(boxes, lines), top)

    def _lead(self, links: Sequence[Link], top: int) -> int:
        """Lead lines from ``top``, below a row, to where the next one begins; returns that."""
        pins: dict[int, Pins] = {}
        for link in links:
            start, end = self._items[link.upper].bottom(link), self._items[link.lower].top(link)
            known = pins.get(link.net, Pins(start, frozenset()))
            pins[link.net] = Pins(start, known.bottoms | {end})
        ways = routed(pins)
        # An arrow against the flow has its point right under a box; one with it right above.
        turned = self._grid.turned
        points_up = any(link.net in turned and link.upper in self._boxes for link in links)
        labels = [self._arrows[link.arrow].label for link in links if link.arrow is not None]
        written = max(map(len, labels), default=0)
        first = top + points_up
        bottom = max(first + ways.height + max(written, 1), top + 2)
        for link in links:
            end = self._items[link.lower].top(link)
            if link.upper in self._boxes:
                box = self._boxes[link.upper]
                way = [(self._items[link.upper].bottom(link), box.y + box.height - 1)]
            else:
                way = list(self._passing[link.upper])
            way += [(column, first + height) for column, height in ways.corners[link.net, end]]
            way.append((end, bottom))
            if link.arrow is None:
                self._passing[link.lower] = way
            else:
                self._ended[link.arrow] = link.net, way
        return bottom

    def _line(self, number: int, arrow: Arrow) -> Line:
        net, corners = self._ended[number]
        x, y = corners[-1]
        points = _without_waste(corners)
        if arrow.back:
            points = tuple(reversed(points))
        return Line(arrow, points, (x + 2, y - len(arrow.label)), net)


def _without_waste(corners: Sequence[Corner]) -> tuple[Corner, ...]:
    """The corners without those on a straight line."""
    kept = [corners[0]]
    for here, after in zip(corners[1:], [*corners[2:], None], strict=True):
        before = kept[-1]
        straight = after is not None and (
            before[0] == here[0] == after[0] or before[1] == here[1] == after[1]
        )
        if not straight and here != before:
            kept.append(here)
    return tuple(kept)


def _width(boxes: Sequence[Box], lines: Sequence[Line]) -> int:
    ends = [box.x + box.width for box in boxes]
    for line in lines:
        ends += [x + 1 for x, _ in line.points]
        ends.append(line.label[0] - 1 + label_width(line.arrow.label))
    return max(ends, default=0)


def _shelved(pieces: Sequence[Picture], limit: int | None) -> Picture:
    """Parts side by side while there is room, then below."""
    boxes: list[Box] = []
    lines: list[Line] = []
    x = y = width = height = nets = 0
    for piece in pieces:
        if x and limit is not None and x + piece.width > limit:
            x, y = 0, height + 1
        boxes += (box._replace(x=box.x + x, y=box.y + y) for box in piece.boxes)
        for line in piece.lines:
            points = tuple((column + x, row + y) for column, row in line.points)
            label = (line.label[0] + x, line.label[1] + y)
            lines.append(line._replace(points=points, label=label, net=line.net + nets))
        nets += 1 + max((line.net for line in piece.lines), default=0)
        width, height = max(width, x + piece.width), max(height, y + piece.height)
        x += piece.width + _PART_GAP
    return Picture(tuple(boxes), tuple(lines), width, height)
