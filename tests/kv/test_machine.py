"""The cores of KV transfers in a world that goes wrong in every way it can.

In: seeds. Out: green, or the shortest story of a broken promise.
Never: sockets, clocks, event loops.
"""

from __future__ import annotations

import pytest

from .stories import KINDS, walk

EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


@EVERY_KIND
def test_random_walks(kind: str) -> None:
    whole = sum(walk(kind, seed, 150) for seed in range(300))
    assert whole > 150, "stories in which hardly a cache arrives show little"


@pytest.mark.soak
@pytest.mark.timeout(3600)
@EVERY_KIND
def test_many_random_walks(kind: str) -> None:
    for seed in range(10_000, 60_000):
        walk(kind, seed, 200)
