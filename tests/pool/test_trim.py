"""What an idle pool gives back, and what it keeps."""

from __future__ import annotations

import os

import pytest

from omni_async.pool import Pool
from omni_async.pool.memory import PAGE

from .conftest import Pools, Registrar

MIB = 1 << 20


def _resident(pool: Pool) -> int:
    return sum(os.fstat(region.fd).st_blocks * 512 for region in pool.regions.values())


def _use(pool: Pool, *sizes: int) -> None:
    leases = [pool.lease_nowait(size) for size in sizes]
    for lease in leases:
        lease.view()[:] = b"x" * lease.nbytes
    for lease in leases:
        lease.drop()


def test_pages_of_an_idle_pool_are_given_back(make_pool: Pools) -> None:
    pool = make_pool(64 * MIB, segment_nbytes=64 * MIB)
    _use(pool, 10 * MIB)
    assert _resident(pool) == 10 * MIB
    assert pool.trim() == 10 * MIB
    assert _resident(pool) == 0
    assert len(pool.regions) == 1  # peers know it already, and it costs nothing
    assert pool.trim() == 0
    _use(pool, 3 * MIB)
    assert pool.trim() == 3 * MIB


def test_what_is_leased_keeps_its_bytes(make_pool: Pools) -> None:
    pool = make_pool(8 * MIB)
    leases = [pool.lease_nowait(MIB) for _ in range(8)]
    for number, lease in enumerate(leases):
        lease.view()[:] = bytes([number]) * MIB
    for lease in leases[::2]:
        lease.drop()
    assert pool.trim() == 4 * MIB
    assert _resident(pool) == 4 * MIB
    for number, lease in enumerate(leases):
        if number % 2:
            assert bytes(lease.view()) == bytes([number]) * MIB
            lease.drop()
    # they lay above what was given back, and are not forgotten
    assert pool.trim() == 8 * MIB
    assert _resident(pool) == 0


def test_pages_in_part_leased_stay(make_pool: Pools) -> None:
    pool = make_pool(MIB)
    leases = [pool.lease_nowait(PAGE // 2) for _ in range(16)]
    for lease in leases:
        lease.view()[:] = b"x" * (PAGE // 2)
    for lease in leases[1::2]:
        lease.drop()
    assert pool.trim() == 0
    for lease in leases[0::2]:
        assert bytes(lease.view()) == b"x" * (PAGE // 2)
        lease.drop()
    assert pool.trim() == 8 * PAGE


def test_a_few_bytes_at_a_time(make_pool: Pools) -> None:
    pool = make_pool(64 * MIB, segment_nbytes=64 * MIB)
    _use(pool, 10 * MIB)
    steps = []
    while step := pool.trim(at_most=4 * MIB + 100):
        steps.append(step)
    assert steps == [4 * MIB, 4 * MIB, 2 * MIB]
    assert _resident(pool) == 0


def test_keep(make_pool: Pools) -> None:
    pool = make_pool(64 * MIB, segment_nbytes=64 * MIB)
    _use(pool, 10 * MIB)
    assert pool.trim(keep=20 * MIB) == 0
    assert pool.trim(keep=3 * MIB) == 7 * MIB
    assert _resident(pool) == 3 * MIB
    again = pool.lease_nowait(3 * MIB)
    again.view()[:] = b"y" * (3 * MIB)
    assert _resident(pool) == 3 * MIB  # what was kept is what is used next
    again.drop()


def test_idle_segments_are_closed_newest_first(make_pool: Pools, registrar: Registrar) -> None:
    pool = make_pool(64 * MIB, segment_nbytes=4 * MIB)
    _use(pool, *[4 * MIB] * 4)
    assert len(pool.regions) == 4
    assert pool.trim(keep=14 * MIB) == 2 * MIB  # a whole one would be too much
    assert len(pool.regions) == 4
    _use(pool, *[4 * MIB] * 4)
    pool.trim(keep=8 * MIB)
    assert [region.id for region in registrar.shrunk] == [4, 3]
    assert set(pool.regions) == {1, 2}
    assert pool.trim(at_most=MIB) == 4 * MIB  # in one piece
    assert set(pool.regions) == {1}
    assert pool.trim(at_most=MIB) == MIB
    assert pool.trim() == 3 * MIB
    assert set(pool.regions) == {1}


def test_one_large_idle_segment_a_call(make_pool: Pools) -> None:
    pool = make_pool(64 * MIB, segment_nbytes=4 * MIB)
    _use(pool, *[4 * MIB] * 4)
    assert pool.trim(at_most=6 * MIB) == 6 * MIB  # one closed, and pages of another
    assert len(pool.regions) == 3
    assert pool.trim(at_most=6 * MIB) == 6 * MIB
    assert pool.trim() == 4 * MIB
    assert pool.committed == 4 * MIB


def test_an_idle_segment_between_busy_ones(make_pool: Pools, registrar: Registrar) -> None:
    pool = make_pool(64 * MIB, segment_nbytes=4 * MIB)
    leases = [pool.lease_nowait(4 * MIB) for _ in range(3)]
    leases[0].drop()
    leases[1].drop()
    pool.trim()
    assert set(pool.regions) == {1, 3}
    leases[2].drop()


@pytest.mark.parametrize("keep", [0, 4 * MIB])
def test_memory_that_an_engine_has_pinned_goes_by_whole_segments(
    make_pool: Pools, keep: int
) -> None:
    pool = make_pool(64 * MIB, segment_nbytes=4 * MIB, discard=False)
    _use(pool, *[4 * MIB] * 4)
    lease = pool.lease_nowait(MIB)
    assert pool.trim(keep) == 12 * MIB - keep
    assert _resident(pool) == 4 * MIB + keep  # not one page under the lease's segment was touched
    lease.drop()
    pool.trim()
    assert not pool.regions
    _use(pool, MIB)


def test_trim_of_a_new_or_closed_pool(make_pool: Pools) -> None:
    pool = make_pool(MIB)
    assert pool.trim() == 0
    _use(pool, 100)
    pool.close()
    assert pool.trim() == 0
