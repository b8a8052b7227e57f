"""Pipelines of any shape, and what their drawings have to hold."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from omni_async.cli.config.layers import against
from omni_async.cli.config.layout import Arrow, Node, Picture

Cell = tuple[int, int]

LABELS = st.lists(st.text("abc", min_size=1, max_size=9), max_size=2).map(tuple)


@st.composite
def pipelines(draw: st.DrawFn, most: int = 8) -> tuple[list[Node], list[Arrow]]:
    """Boxes and arrows: forks, joins, circles, several parts."""
    names = [str(i) for i in range(draw(st.integers(1, most)))]
    nodes = [
        Node(name, (f"stage {name}", *draw(st.lists(st.text("xyz", max_size=12), max_size=2))))
        for name in draw(st.permutations(names))
    ]
    pairs = [(a, b) for a in names for b in names if a != b]
    ends = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=14)) if pairs else []
    back = against(names, ends)
    arrows = [
        Arrow(a, b, draw(LABELS), draw(st.sampled_from("kl")), i in back)
        for i, (a, b) in enumerate(ends)
    ]
    return nodes, arrows


NETWORKS = {"NixlConnector": 20000, "MooncakeTransferEngineConnector": 40000}
WORDS = st.text(st.characters(exclude_characters="0123456789$"), min_size=1, max_size=6).filter(
    str.isprintable
)


@st.composite
def deployments(draw: st.DrawFn) -> dict[str, Any]:
    """What a deploy file may hold."""
    numbers = st.integers(0, 12).map(str)
    ids = draw(st.lists(numbers | WORDS, min_size=1, max_size=7, unique=True))
    stages: list[dict[str, Any]] = []
    for i, id in enumerate(ids):
        connectors: list[dict[str, Any]] = [
            {"name": name, "extra": {"zmq_port": port + 100 * i, "port_scheme": "strided"}}
            for name, port in NETWORKS.items()
        ]
        connectors += [{"name": "SharedMemoryConnector"}, {"name": "MooncakeStoreConnector"}]
        others = [other for other in ids if other != id]
        targets = draw(st.lists(st.sampled_from(others), unique=True)) if others else []
        outputs = {f"to_stage_{other}": draw(st.sampled_from(connectors)) for other in targets}
        replicas = draw(st.integers(1, 3))
        stages.append({"stage_id": id, "num_replicas": replicas, "output_connectors": outputs})
    return {"stages": stages}


def way(points: Sequence[Cell]) -> list[Cell]:
    """Every cell of a line, corner to corner; the pieces have to be level or upright."""
    cells = [points[0]]
    for (x, y), (to_x, to_y) in pairwise(points):
        assert (x == to_x) != (y == to_y), points
        while (x, y) != (to_x, to_y):
            x, y = x + (to_x > x) - (to_x < x), y + (to_y > y) - (to_y < y)
            cells.append((x, y))
    return cells


def inside(picture: Picture) -> dict[Cell, str]:
    """The cells of all boxes; no two may have one in common."""
    taken: dict[Cell, str] = {}
    for box in picture.boxes:
        for x in range(box.x, box.x + box.width):
            for y in range(box.y, box.y + box.height):
                assert (x, y) not in taken
                taken[x, y] = box.node.name
    return taken
