"""Moves cut into batches: the same bytes in the same order, and none larger than it may be."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from omni_async.model import Move, batches

MOVES = st.lists(
    st.builds(
        Move,
        local=st.integers(0, 1000),
        region=st.integers(1, 3),
        offset=st.integers(0, 1000),
        nbytes=st.integers(0, 60),
    ),
    max_size=12,
)


def _bytes(moves: list[Move]) -> list[tuple[int, int, int]]:
    """Where each single byte is, and where it goes."""
    return [
        (local + n, region, offset + n)
        for local, region, offset, nbytes in moves
        for n in range(nbytes)
    ]


@given(moves=MOVES, nbytes=st.integers(1, 70), most=st.integers(1, 5) | st.just(sys.maxsize))
def test_every_byte_once_in_order(moves: list[Move], nbytes: int, most: int) -> None:
    made = list(batches(moves, nbytes, most))
    assert _bytes([move for batch in made for move in batch]) == _bytes(moves)
    for batch in made:
        assert 0 < len(batch) <= most
        assert all(move.nbytes for move in batch)
        assert sum(move.nbytes for move in batch) <= nbytes
    for batch in made[:-1]:
        assert sum(move.nbytes for move in batch) == nbytes or len(batch) == most


def test_a_move_that_fits_is_not_made_anew() -> None:
    move = Move(1, 2, 3, 4)
    [[same]] = batches([move], 4)
    assert same is move
