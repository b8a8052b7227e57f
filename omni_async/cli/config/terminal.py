"""A picture as text: box-drawing letters, or ASCII where the terminal has no others.

In: nodes and arrows, a width. Out: lines of text.
Never: prints, colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .layout import Arrow, Line, Node, Picture, layout
from .text import cells, columns

_NORTH, _EAST, _SOUTH, _WEST = 1, 2, 4, 8


class Glyphs(NamedTuple):
    """What lines are made of."""

    joints: str
    """By which of north (1), east (2), south (4), west (8) they join."""
    back: str
    """Of a line against the flow: upright, level."""
    down: str
    up: str
    right: str


UNICODE = Glyphs(" ╵╶└╷│┌├╴┘─┴┐┤┬┼", "┆┄", "▼", "▲", "▶")
ASCII = Glyphs(" |-+||++-+-+++++", ":.", "v", "^", ">")


def glyphs_for(encoding: str) -> Glyphs:
    """The better ones, if this encoding has them."""
    try:
        "".join(UNICODE).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


def drawn(
    nodes: Sequence[Node], arrows: Sequence[Arrow], glyphs: Glyphs, width: int
) -> list[str] | None:
    """The drawing, or ``None`` when it does not fit.

    Labels give up all but their first line before the drawing does not fit.
    """
    short = [arrow._replace(label=arrow.label[:1]) for arrow in arrows]
    for tried in (arrows, short):
        picture = layout(nodes, tried, width)
        if picture is not None:
            return rendered(picture, glyphs)
    return None


def rendered(picture: Picture, glyphs: Glyphs) -> list[str]:
    """A picture as lines of text, without blanks at their ends."""
    canvas: dict[tuple[int, int], str] = {}
    for line in picture.lines:
        for row, text in enumerate(line.arrow.label):
            _write(canvas, line.label[0], line.label[1] + row, text)
    _draw_lines(canvas, picture.lines, glyphs)
    edge = glyphs.joints
    for box in picture.boxes:
        right, bottom = box.x + box.width - 1, box.y + box.height - 1
        for x in range(box.x, right + 1):
            canvas[x, box.y] = canvas[x, bottom] = edge[_EAST | _WEST]
        for y in range(box.y, bottom + 1):
            canvas[box.x, y] = canvas[right, y] = edge[_NORTH | _SOUTH]
        canvas[box.x, box.y], canvas[right, box.y] = edge[_EAST | _SOUTH], edge[_WEST | _SOUTH]
        canvas[box.x, bottom], canvas[right, bottom] = edge[_EAST | _NORTH], edge[_WEST | _NORTH]
        for row, text in enumerate(box.node.lines):
            start = box.x + (box.width - columns(text)) // 2
            _write(canvas, start, box.y + 1 + row, text)
    for line in picture.lines:  # where a line leaves a box, the border opens
        opens = _NORTH if line.arrow.back else _SOUTH
        canvas[line.points[0]] = edge[_EAST | _WEST | opens]
    return [
        "".join(canvas.get((x, y), " ") for x in range(picture.width)).rstrip()
        for y in range(picture.height)
    ]


def listed(nodes: Sequence[Node], arrows: Sequence[Arrow], glyphs: Glyphs, width: int) -> list[str]:
    """The same pipeline as boxes below each other, each with the arrows that leave it."""
    edge, text = glyphs.joints, []
    titles = {node.name: node.lines[0] for node in nodes}
    for node in nodes:
        inside = list(node.lines)
        for arrow in arrows:
            if arrow.start == node.name:
                level = glyphs.back[1] if arrow.back else edge[_EAST | _WEST]
                start = f"{level}{glyphs.right} {titles[arrow.end]}  "
                whole = start + ", ".join(arrow.label)
                fits = columns(whole) + 4 <= width
                inside.append(whole if fits else start + "".join(arrow.label[:1]))
        wide = max(columns(line) for line in inside)
        level, upright = edge[_EAST | _WEST] * (wide + 2), edge[_NORTH | _SOUTH]
        text.append(f"{edge[_EAST | _SOUTH]}{level}{edge[_WEST | _SOUTH]}")
        text += (f"{upright} {line}{' ' * (wide - columns(line))} {upright}" for line in inside)
        text.append(f"{edge[_EAST | _NORTH]}{level}{edge[_WEST | _NORTH]}")
    return text


def _write(canvas: dict[tuple[int, int], str], x: int, y: int, text: str) -> None:
    for offset, cell in enumerate(cells(text)):
        canvas[x + offset, y] = cell


def _draw_lines(canvas: dict[tuple[int, int], str], lines: Sequence[Line], glyphs: Glyphs) -> None:
    """Lines join only within their net; where two nets cross, the upright one passes over."""
    joined: dict[tuple[int, int], dict[int, int]] = {}
    against: set[int] = set()
    for line in lines:
        if line.arrow.back:
            against.add(line.net)
        for (x, y), (to_x, to_y) in zip(line.points, line.points[1:], strict=False):
            step_x, step_y = (to_x > x) - (to_x < x), (to_y > y) - (to_y < y)
            out, back = {
                (0, 1): (_SOUTH, _NORTH),
                (0, -1): (_NORTH, _SOUTH),
                (1, 0): (_EAST, _WEST),
                (-1, 0): (_WEST, _EAST),
            }[step_x, step_y]
            while (x, y) != (to_x, to_y):
                here = joined.setdefault((x, y), {})
                here[line.net] = here.get(line.net, 0) | out
                x, y = x + step_x, y + step_y
                there = joined.setdefault((x, y), {})
                there[line.net] = there.get(line.net, 0) | back
    for place, nets in joined.items():
        net, ways = max(nets.items(), key=lambda item: item[1] & (_NORTH | _SOUTH))
        dashed = {_NORTH | _SOUTH: glyphs.back[0], _EAST | _WEST: glyphs.back[1]}
        joint = glyphs.joints[ways]
        canvas[place] = dashed.get(ways, joint) if net in against else joint
    for line in lines:
        x, y = line.points[-1]
        canvas[x, y + 1 if line.arrow.back else y - 1] = (
            glyphs.up if line.arrow.back else glyphs.down
        )
