"""A picture as SVG: one file, no fonts or scripts from elsewhere, in the reader's light or dark.

In: a Picture, words for it. Out: the text of the file.
Never: writes the file, trusts a text not to be markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import copysign
from xml.etree import ElementTree as ET

from .layout import Line, Picture
from .text import columns

_CELL_X, _CELL_Y = 9, 18
_MARGIN = 24
_CORNER = 7
# Okabe and Ito's colours, apart for the colour-blind too; brighter ones on dark ground.
_COLOURS = (
    ("#0068a8", "#56b4e9"),
    ("#b84a00", "#f0a050"),
    ("#007a5a", "#3ccfa0"),
    ("#9c4a80", "#e6a0cc"),
    ("#7a6a00", "#d8c840"),
    ("#505a64", "#aab4be"),
)
_STYLE = """
text { font: 14px ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #1c2228 }
.ground { fill: #ffffff }
.box { fill: #f2f5f8; stroke: #3c4650; stroke-width: 1.5 }
.title { font-weight: bold }
.minor { fill: #4c565f }
.way { fill: none; stroke-width: 2 }
.gap { fill: none; stroke: #ffffff; stroke-width: 7 }
.back { stroke-dasharray: 7 5 }
"""
_DARK = """
text { fill: #e8ecf0 }
.ground { fill: #14181c }
.box { fill: #222a31; stroke: #9aa6b0 }
.minor { fill: #b0bac2 }
.gap { stroke: #14181c }
"""


def svg(
    picture: Picture,
    *,
    title: str,
    description: str,
    legend: Sequence[str],
    tips: Sequence[str],
) -> str:
    """The file.

    Args:
        picture: what is drawn.
        title: what the whole is called; above the drawing, and for screen readers.
        description: the whole in words, for screen readers.
        legend: what the words in the drawing mean, below it.
        tips: of each line, what is told when pointing at it.
    """
    kinds = dict.fromkeys(line.arrow.kind for line in picture.lines)
    colours = {kind: f"k{i % len(_COLOURS)}" for i, kind in enumerate(kinds)}
    wide = max([picture.width, columns(title), *map(columns, legend)])
    top = _MARGIN + 2 * _CELL_Y
    width = wide * _CELL_X + 2 * _MARGIN
    height = top + (picture.height + len(legend) + 1) * _CELL_Y + _MARGIN
    root = ET.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {width} {height}",
            "width": str(width),
            "height": str(height),
            "role": "img",
            "aria-labelledby": "title description",
        },
    )
    ET.SubElement(root, "title", id="title").text = title
    ET.SubElement(root, "desc", id="description").text = description
    ET.SubElement(root, "style").text = _style(colours)
    ET.SubElement(root, "rect", {"class": "ground", "width": "100%", "height": "100%"})
    _text(root, title, _MARGIN, _MARGIN + _CELL_Y // 2, "title")
    drawing = ET.SubElement(root, "g", transform=f"translate({_MARGIN} {top})")
    _lines(drawing, picture.lines, colours, tips)
    for box in picture.boxes:
        group = ET.SubElement(drawing, "g")
        x, y = _middle((box.x, box.y))
        wide, high = (box.width - 1) * _CELL_X, (box.height - 1) * _CELL_Y
        place = {"x": f"{x:g}", "y": f"{y:g}", "width": str(wide), "height": str(high), "rx": "6"}
        ET.SubElement(group, "rect", {"class": "box", **place})
        for row, text in enumerate(box.node.lines, 1):
            name = "minor" if row > 1 else "title"
            _text(group, text, x + wide / 2, y + row * _CELL_Y, name, centred=True)
    for line in picture.lines:
        for row, text in enumerate(line.arrow.label):
            x, y = _middle((line.label[0], line.label[1] + row))
            name = "minor" if row else f"t{colours[line.arrow.kind]}"
            _text(drawing, text, x - _CELL_X / 2, y, name)
    for row, text in enumerate(legend):
        _text(root, text, _MARGIN, top + (picture.height + 1.5 + row) * _CELL_Y, "minor")
    ET.indent(root, "")
    return ET.tostring(root, encoding="unicode") + "\n"


def _style(colours: Mapping[str, str]) -> str:
    rules = ["", ""]
    for name in dict.fromkeys(colours.values()):
        for i, colour in enumerate(_COLOURS[int(name[1:])]):
            rules[i] += f".{name} {{ stroke: {colour} }}\n"
            rules[i] += f".t{name}, .p{name} {{ fill: {colour} }}\n"
    return f"{_STYLE}{rules[0]}@media (prefers-color-scheme: dark) {{{_DARK}{rules[1]}}}\n"


def _lines(
    parent: ET.Element, lines: Sequence[Line], colours: Mapping[str, str], tips: Sequence[str]
) -> None:
    """Net by net, each with a gap around it: where two cross, one runs below the other."""
    nets: dict[int, list[int]] = {}
    for i, line in enumerate(lines):
        nets.setdefault(line.net, []).append(i)
    for members in nets.values():
        for i in members:
            points = [_middle(point) for point in lines[i].points]
            if len(points) > 2:
                ET.SubElement(parent, "path", {"class": "gap", "d": _path(points[1:-1])})
        for i in members:
            line, colour = lines[i], colours[lines[i].arrow.kind]
            group = ET.SubElement(parent, "g")
            ET.SubElement(group, "title").text = tips[i]
            points = [_middle(point) for point in line.points]
            (x, y), down = points[-1], -1 if line.arrow.back else 1
            points[-1] = (x, y - 6 * down)  # the line ends in its point, not beyond it
            name = f"way {colour}{' back' if line.arrow.back else ''}"
            ET.SubElement(group, "path", {"class": name, "d": _path(points)})
            tip = f"M{x:g} {y - down:g}l-5.5 {-11 * down}h11z"
            ET.SubElement(group, "path", {"class": f"p{colour}", "d": tip})


def _path(points: Sequence[tuple[float, float]]) -> str:
    """Straight pieces with round corners."""
    path = f"M{points[0][0]:g} {points[0][1]:g}"
    for (ax, ay), (x, y), (bx, by) in zip(points, points[1:], points[2:], strict=False):
        near, far = _toward(x, y, ax, ay), _toward(x, y, bx, by)
        path += f"L{near[0]:g} {near[1]:g}Q{x:g} {y:g} {far[0]:g} {far[1]:g}"
    return f"{path}L{points[-1][0]:g} {points[-1][1]:g}"


def _toward(x: float, y: float, to_x: float, to_y: float) -> tuple[float, float]:
    """A step from a corner along a level or upright piece, at most to its middle."""
    across, down = (to_x - x) / 2, (to_y - y) / 2
    return (
        x + copysign(min(_CORNER, abs(across)), across),
        y + copysign(min(_CORNER, abs(down)), down),
    )


def _middle(cell: tuple[int, int]) -> tuple[float, float]:
    return (cell[0] + 0.5) * _CELL_X, (cell[1] + 0.5) * _CELL_Y


def _text(
    parent: ET.Element, text: str, x: float, y: float, name: str, *, centred: bool = False
) -> None:
    place = {"x": f"{x:g}", "y": f"{y + 5:g}", "class": name}
    if centred:
        place["text-anchor"] = "middle"
    ET.SubElement(parent, "text", place).text = text
