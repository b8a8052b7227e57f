"""Places of boxes, lines and labels: nothing lies on anything else."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from omni_async.cli.config.layout import Arrow, Node, Picture, layout
from omni_async.cli.config.route import Pins, routed
from omni_async.cli.config.text import columns

from .pipelines import Cell, inside, pipelines, way

WAYS = st.dictionaries(
    st.integers(0, 9),
    st.tuples(st.integers(0, 20), st.frozensets(st.integers(0, 20), min_size=1, max_size=4)),
    max_size=6,
)


def free_of_each_other(picture: Picture) -> None:
    taken = inside(picture)
    runs: dict[Cell, dict[int, set[str]]] = {}
    for line in picture.lines:
        cells = way(line.points)
        assert taken[cells[0]] == line.arrow.start
        assert taken[cells[-1]] == line.arrow.end
        assert not any(cell in taken for cell in cells[1:-1])
        for (ax, ay), (x, y), (bx, by) in zip(cells, cells[1:], cells[2:], strict=False):
            runs.setdefault((x, y), {}).setdefault(line.net, set()).add(
                "|" if ax == bx else "-" if ay == by else "+"
            )
    for ways in runs.values():  # one net, or two that cross at right angles
        if len(ways) > 1:
            assert sorted(map(sorted, ways.values())) == [["-"], ["|"]]
    for line in picture.lines:
        for row, text in enumerate(line.arrow.label):
            for x in range(columns(text)):
                cell = (line.label[0] + x, line.label[1] + row)
                assert cell not in taken
                assert cell not in runs
                taken[cell] = text
    everything = [*taken, *runs]
    assert all(0 <= x < picture.width and 0 <= y < picture.height for x, y in everything)


@given(pipelines())
def test_nothing_lies_on_anything_else(pipeline: tuple[list[Node], list[Arrow]]) -> None:
    nodes, arrows = pipeline
    picture = layout(nodes, arrows)
    assert picture is not None
    assert {box.node for box in picture.boxes} == set(nodes)
    assert sorted(line.arrow for line in picture.lines) == sorted(arrows)
    free_of_each_other(picture)


@given(pipelines(), st.integers(10, 90))
@example(([Node(str(i), ("wide stage",)) for i in range(9)], []), 30)
def test_a_limit_is_kept(pipeline: tuple[list[Node], list[Arrow]], limit: int) -> None:
    picture = layout(*pipeline, limit)
    if picture is not None:
        assert picture.width <= limit
        free_of_each_other(picture)


def test_a_fork_as_wide_as_the_limit_allows_goes_on_below() -> None:
    nodes = [Node(str(i), (f"stage {i}",)) for i in range(9)]
    arrows = [Arrow("0", str(i), ("shm",)) for i in range(1, 9)]
    picture = layout(nodes, arrows, 60)
    assert picture is not None
    assert len({box.y for box in picture.boxes}) == 3
    assert layout(nodes, arrows, 12) is None


def test_a_row_of_stages_is_a_straight_line() -> None:
    nodes = [Node("0", ("stage 0", "12 replicas × 12 ranks")), Node("1", ("stage 1",))]
    picture = layout(nodes, [Arrow("0", "1", ("shm", "same host"))])
    assert picture is not None
    assert len(picture.lines[0].points) == 2


def test_two_nets_that_change_sides_turn_around_each_other() -> None:
    ways = routed({0: Pins(0, frozenset({4})), 1: Pins(4, frozenset({0}))})
    assert ways.height == 3
    assert len(ways.corners[0, 4]) + len(ways.corners[1, 0]) == 6


@given(WAYS)
def test_nets_never_share_a_piece(drawn: dict[int, tuple[int, frozenset[int]]]) -> None:
    nets: dict[int, Pins] = {}
    tops: set[int] = set()
    ends: set[int] = set()
    for net, (top, bottoms) in drawn.items():
        if top not in tops and not bottoms & ends:
            nets[net] = Pins(top, bottoms)
            tops.add(top)
            ends |= bottoms
    ways = routed(nets)
    upright: dict[Cell, int] = {}
    level: dict[Cell, int] = {}
    for (net, bottom), corners in ways.corners.items():
        points = [(nets[net].top, -1), *corners, (bottom, ways.height)]
        for (x, y), (to_x, to_y) in pairwise(points):
            assert (x == to_x and y < to_y) or y == to_y
            for step in range(min(y, to_y), max(y, to_y) + 1) if x == to_x else ():
                assert upright.setdefault((x, step), net) == net
            for step in range(min(x, to_x), max(x, to_x) + 1) if x != to_x else ():
                assert level.setdefault((step, y), net) == net
