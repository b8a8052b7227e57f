"""Drawings in a terminal, read back as a person would read them."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from omni_async.cli.config.layout import Arrow, Node, Picture, layout
from omni_async.cli.config.terminal import ASCII, UNICODE, drawn, glyphs_for, listed, rendered
from omni_async.cli.config.text import columns

from .pipelines import Cell, inside, pipelines

STEPS = {"N": (0, -1), "E": (1, 0), "S": (0, 1), "W": (-1, 0)}
OPPOSITE = dict(zip("NESW", "SWNE", strict=True))
JOINTS = dict(
    zip(
        "│┌├┘─┴┐┤┬┼└┆┄",
        ["NS", "ES", "NES", "NW", "EW", "NEW", "SW", "NSW", "ESW", "NESW", "NE", "NS", "EW"],
        strict=True,
    )
)


def ends(text: list[str], at: Cell, heading: str) -> set[Cell]:
    """Where the points of arrows are that begin at a cell, as the eye follows them.

    What leaves a box upwards is dashed, what leaves it downwards is not.
    """
    solid = heading == "S"
    found: set[Cell] = set()
    waiting, seen = [(at, heading)], {(at, heading)}
    while waiting:
        (x, y), heading = waiting.pop()
        x, y = x + STEPS[heading][0], y + STEPS[heading][1]
        letter = text[y][x]
        if letter in "▼▲":
            found.add((x, y + (1 if letter == "▼" else -1)))
            continue
        ways = JOINTS[letter]
        if OPPOSITE[heading] not in ways:  # an upright line crosses ours: on the other side of it
            assert letter in "│┆"
            onward = heading
        else:
            onward = ways.replace(OPPOSITE[heading], "")
            assert letter not in ("┆┄" if solid else "│─")
        fresh = {((x, y), way) for way in onward} - seen
        seen |= fresh
        waiting += fresh
    return found


def read_back(text: list[str], picture: Picture) -> list[tuple[str, str]]:
    """The arrows that a drawing shows, found by following every line that leaves a box."""
    boxes = inside(picture)
    text = [f"{line:<{picture.width}}" for line in text]
    arrows: set[tuple[str, str]] = set()
    for box in picture.boxes:
        for y, joint, heading in ((box.y, "┴", "N"), (box.y + box.height - 1, "┬", "S")):
            for x in range(box.x, box.x + box.width):
                if text[y][x] == joint:
                    reached = ends(text, (x, y), heading)
                    arrows |= {(box.node.name, boxes[end]) for end in reached}
    return sorted(arrows)


TWO_PARTS = (
    [Node(name, (f"stage {name}",)) for name in "01234"],
    [Arrow("0", "1"), Arrow("1", "0", back=True), Arrow("2", "3"), Arrow("3", "4")],
)


@given(pipelines(), st.none() | st.integers(30, 100))
@example(TWO_PARTS, None)
def test_following_the_lines_finds_every_edge_and_no_other(
    pipeline: tuple[list[Node], list[Arrow]], limit: int | None
) -> None:
    picture = layout(*pipeline, limit)
    if picture is not None:
        text = rendered(picture, UNICODE)
        assert max(map(len, text)) <= picture.width
        assert read_back(text, picture) == sorted((a.start, a.end) for a in pipeline[1])
        assert all(line == line.rstrip() for line in text)


@given(pipelines(), st.integers(10, 100))
def test_a_drawing_is_never_wider_than_asked(
    pipeline: tuple[list[Node], list[Arrow]], width: int
) -> None:
    nodes, arrows = pipeline
    text = drawn(nodes, arrows, UNICODE, width)
    if text is not None:
        assert max(map(columns, text)) <= width
        assert all("".join(text).count(f"stage {node.name}") == 1 for node in nodes)
    text = listed(nodes, arrows, UNICODE, width)
    labels = [f"─▶ stage {a.end}  {''.join(a.label[:1])}" for a in arrows]
    widest = max(columns(line) for line in [*labels, *(line for node in nodes for line in node[1])])
    assert max(map(columns, text)) <= max(width, widest + 4)
    assert "".join(text).count("▶") == len(arrows)


def test_a_fork_a_join_and_feedback() -> None:
    nodes = [Node(name, (f"stage {name}",)) for name in "0123"]
    shm = ("shm", "same host")
    arrows = [
        Arrow("0", "1", shm, "shm"),
        Arrow("0", "2", ("nixl", "node-a:50071"), "nixl"),
        Arrow("1", "3", shm, "shm"),
        Arrow("2", "3", shm, "shm"),
        Arrow("3", "0", shm, "shm", back=True),
    ]
    assert drawn(nodes, arrows, UNICODE, 80) == [
        "                ┌───────────┐",
        "                │  stage 0  │",
        "                └─┬───┬─────┘",
        "                  │   │   ▲",
        "     ┌────────────┘   │   └┄┄┄┄┄┄┄┄┄┄┄┄┐",
        "     │ shm            │ nixl           ┆",
        "     ▼ same host      ▼ node-a:50071   ┆",
        "┌─────────┐       ┌─────────┐          ┆",
        "│ stage 1 │       │ stage 2 │          ┆",
        "└────┬────┘       └───┬─────┘          ┆",
        "     └───┐            │            ┌┄┄┄┘",
        "         │ shm        │ shm        ┆ shm",
        "         ▼ same host  ▼ same host  ┆ same host",
        "       ┌───────────────────────────┴─┐",
        "       │           stage 3           │",
        "       └─────────────────────────────┘",
    ]


def test_ascii_where_there_is_nothing_better() -> None:
    nodes = [Node("0", ("stage 0",)), Node("1", ("stage 1",)), Node("2", ("stage 2",))]
    arrows = [Arrow("0", "1", ("shm",)), Arrow("0", "2", ("shm",)), Arrow("1", "0", (), back=True)]
    assert drawn(nodes, arrows, ASCII, 80) == [
        "     +-----------+",
        "     |  stage 0  |",
        "     +-----+-----+",
        "       ^   |",
        "    +..+   |",
        "    :  +---+-------+",
        "    :  v shm       v shm",
        "+---+-----+   +---------+",
        "| stage 1 |   | stage 2 |",
        "+---------+   +---------+",
    ]
    assert all(line.isascii() for line in listed(nodes, arrows, ASCII, 80))


def test_which_letters_an_encoding_has() -> None:
    assert glyphs_for("utf-8") is UNICODE
    assert glyphs_for("latin-1") is ASCII
    assert glyphs_for("no such encoding") is ASCII


def test_labels_get_shorter_before_a_drawing_is_given_up() -> None:
    nodes = [Node(str(i), (str(i),)) for i in range(4)]
    arrows = [Arrow(str(i), "3", ("shm", "a.long.host.name:50051")) for i in range(3)]
    wide, narrow = drawn(nodes, arrows, UNICODE, 90), drawn(nodes, arrows, UNICODE, 30)
    assert wide is not None
    assert narrow is not None
    assert "long" in "".join(wide)
    assert "long" not in "".join(narrow)
    assert "".join(narrow).count("shm") == 3
    assert drawn(nodes, arrows, UNICODE, 8) is None


def test_wide_letters_keep_the_border_straight() -> None:
    text = drawn([Node("0", ("stage 語音",))], [], UNICODE, 80)
    assert text == [
        "┌────────────┐".replace("────────────", "─" * 13),
        "│ stage 語音  │",
        "└" + "─" * 13 + "┘",
    ]
