"""Which box stands in which row of a drawing, and which arrows run against the flow.

In: names and arrows between them. Out: a row for each name, the arrows that close a circle.
Never: knows what a stage is, recurses (a pipeline may be long).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from graphlib import TopologicalSorter

Arrow = tuple[str, str]
"""From, to; in a drawing: above, below."""


def against(names: Sequence[str], arrows: Sequence[Arrow]) -> set[int]:
    """Positions of the arrows without which nothing runs in a circle; none of them is superfluous.

    An arrow is one of them when it leads to an earlier name and there is a way back from there, by
    arrows to later names or by such as close no circle either.
    """
    position = {name: i for i, name in enumerate(names)}
    kept: dict[str, list[str]] = {name: [] for name in names}
    doubtful: list[int] = []
    for i, (start, end) in enumerate(arrows):
        if position[start] < position[end]:
            kept[start].append(end)
        else:
            doubtful.append(i)
    back: set[int] = set()
    for i in doubtful:
        start, end = arrows[i]
        if _leads(kept, end, start):
            back.add(i)
        else:
            kept[start].append(end)
    return back


def _leads(ways: Mapping[str, Sequence[str]], start: str, end: str) -> bool:
    seen, waiting = {start}, [start]
    while waiting:
        here = waiting.pop()
        if here == end:
            return True
        fresh = [other for other in ways[here] if other not in seen]
        seen.update(fresh)
        waiting += fresh
    return False


def parts(names: Sequence[str], arrows: Iterable[Arrow]) -> list[list[str]]:
    """The names in groups that no arrow joins, each in the order given."""
    group = {name: [name] for name in names}
    for start, end in arrows:
        into, other = group[start], group[end]
        if into is not other:
            into.extend(other)
            group.update(dict.fromkeys(other, into))
    position = {name: i for i, name in enumerate(names)}
    unique = {id(members): members for members in group.values()}
    return [sorted(members, key=position.__getitem__) for members in unique.values()]


def rows(
    names: Sequence[str],
    arrows: Sequence[Arrow],
    widths: Mapping[str, int] | None = None,
    limit: int | None = None,
) -> list[list[str]]:
    """Rows from top to bottom; every arrow leads down. The arrows must not run in a circle.

    As few rows as there can be. With ``widths`` and a ``limit``, a row takes no more than fits, those
    with the longest way still to go first, and the rest goes further down.
    """
    before: dict[str, list[str]] = {name: [] for name in names}
    after: dict[str, list[str]] = {name: [] for name in names}
    for start, end in arrows:
        before[end].append(start)
        after[start].append(end)
    order = list(TopologicalSorter(before).static_order())
    depth: dict[str, int] = {}
    for name in order:
        depth[name] = max((depth[other] + 1 for other in before[name]), default=0)
    ahead: dict[str, int] = {}
    for name in reversed(order):
        ahead[name] = max((ahead[other] + 1 for other in after[name]), default=0)
        if after[name] and not before[name]:  # what joins late starts late: shorter arrows
            depth[name] = min(depth[other] for other in after[name]) - 1
    row_of: dict[str, int] = {}
    found: list[list[str]] = []
    waiting = sorted(names, key=lambda name: -ahead[name])
    while waiting:
        here: list[str] = []
        left = limit
        for name in waiting:
            ready = depth[name] <= len(found) and all(other in row_of for other in before[name])
            width = widths[name] if widths else 0
            if ready and (left is None or not here or width <= left):
                here.append(name)
                left = None if left is None else left - width
        row_of.update(dict.fromkeys(here, len(found)))
        found.append([name for name in names if name in set(here)])
        waiting = [name for name in waiting if name not in row_of]
    return found
