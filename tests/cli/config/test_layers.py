"""Rows, parts and feedback, by hand and for any graph."""

from __future__ import annotations

import itertools
from graphlib import TopologicalSorter

from hypothesis import given
from hypothesis import strategies as st

from omni_async.cli.config.layers import against, parts, rows

NAMES = list("abcdef")
ARROWS = st.lists(st.sampled_from(list(itertools.permutations(NAMES, 2))), unique=True, max_size=15)


def test_an_arrow_to_an_earlier_stage_is_feedback_only_in_a_circle() -> None:
    assert against(["0", "1", "2"], [("0", "1"), ("1", "2"), ("2", "0")]) == {2}
    assert against(["0", "1", "2"], [("2", "1"), ("1", "0")]) == set()


def test_rows_are_as_few_as_can_be_and_late_joiners_start_late() -> None:
    arrows = [("a", "b"), ("b", "c"), ("d", "c"), ("a", "c")]
    assert rows(list("abcd"), arrows) == [["a"], ["b", "d"], ["c"]]


def test_a_full_row_goes_on_below_those_with_the_longest_way_first() -> None:
    arrows = [("a", "b"), ("a", "c"), ("a", "d"), ("d", "e")]
    widths = dict.fromkeys("abcde", 10)
    assert rows(list("abcde"), arrows, widths, 20) == [["a"], ["b", "d"], ["c", "e"]]
    assert rows(list("abcde"), arrows, widths, 1) == [["a"], ["d"], ["b"], ["c"], ["e"]]


def test_parts_keep_the_order() -> None:
    assert parts(list("abcde"), [("d", "a"), ("e", "b")]) == [["a", "d"], ["b", "e"], ["c"]]


@given(ARROWS)
def test_without_feedback_there_is_no_circle_and_none_of_it_is_superfluous(
    arrows: list[tuple[str, str]],
) -> None:
    back = against(NAMES, arrows)
    kept = [arrow for i, arrow in enumerate(arrows) if i not in back]
    assert not circle(kept)
    assert all(circle([*kept, arrows[i]]) for i in back)
    assert not circle([*kept, *((arrows[i][1], arrows[i][0]) for i in back)])


@given(ARROWS, st.none() | st.integers(0, 60))
def test_every_name_has_one_row_and_every_arrow_leads_down(
    arrows: list[tuple[str, str]], limit: int | None
) -> None:
    back = against(NAMES, arrows)
    down = [(b, a) if i in back else (a, b) for i, (a, b) in enumerate(arrows)]
    found = rows(NAMES, down, {name: 9 + i for i, name in enumerate(NAMES)}, limit)
    row_of = {name: i for i, row in enumerate(found) for name in row}
    assert sorted(itertools.chain(*found)) == NAMES
    assert all(row_of[above] < row_of[below] for above, below in down)
    assert all(found)


def circle(arrows: list[tuple[str, str]]) -> bool:
    """Whether the standard library finds one."""
    before: dict[str, list[str]] = {}
    for start, end in arrows:
        before.setdefault(end, []).append(start)
    try:
        TopologicalSorter(before).prepare()
    except ValueError:
        return True
    return False
