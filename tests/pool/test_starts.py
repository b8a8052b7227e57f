"""Predecessor search against a sorted list."""

from __future__ import annotations

from bisect import bisect_right, insort

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_async.pool.starts import StartSet


@pytest.mark.parametrize("nbytes", [64, 4096, 64 << 10, 64 << 20, 1 << 32, 1 << 45])
@given(data=st.data())
def test_floor(nbytes: int, data: st.DataObject) -> None:
    offsets = st.integers(0, nbytes // 64 - 1).map(lambda unit: unit * 64)
    starts, plain = StartSet(nbytes, 64), list[int]()
    for _ in range(data.draw(st.integers(1, 25))):
        offset = data.draw(offsets)
        if offset in plain:
            plain.remove(offset)
            starts.remove(offset)
        else:
            insort(plain, offset)
            starts.add(offset)
        for asked in (offset, data.draw(offsets), data.draw(st.integers(0, nbytes - 1))):
            at = bisect_right(plain, asked)
            assert starts.floor(asked) == (plain[at - 1] if at else None)
    for offset in plain:
        starts.remove(offset)
    assert starts.floor(nbytes - 1) is None
    assert not any(starts._levels)
