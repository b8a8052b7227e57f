"""Segments of a pool: when they come, when they go, when the system refuses."""

from __future__ import annotations

import asyncio
import time

import pytest

from omni_async.errors import EngineFault, PoolExhausted
from omni_async.pool import MemfdMemory
from omni_async.pool.memory import PAGE, MappedBlock

from .conftest import Pools, Registrar, asked

MIB = 1 << 20


def test_segments_come_on_demand(make_pool: Pools, registrar: Registrar) -> None:
    pool = make_pool(16 * MIB, segment_nbytes=MIB)
    assert pool.committed == 0
    assert not pool.regions
    a = pool.lease_nowait(100)
    assert pool.committed == MIB
    b = pool.lease_nowait(MIB)  # needs another
    assert pool.committed == 2 * MIB
    c = pool.lease_nowait(5 * MIB)  # a segment of its own
    assert 7 * MIB <= pool.committed <= 8 * MIB
    assert registrar.grown == registrar.registered == list(pool.regions.values())
    assert registrar.grown[0].fd >= 0
    for lease in (a, b, c):
        lease.drop()
    assert registrar.shrunk == []  # idle, but warm


def test_the_region_is_announced_before_anything_in_it_is_leased(make_pool: Pools) -> None:
    pool = make_pool(MIB)
    live = []
    pool.on_grow = lambda region: live.append((region.id, pool.live))
    assert pool.on_grow is not None
    pool.on_shrink = None
    assert pool.on_shrink is None
    pool.lease_nowait(1).drop()
    assert live == [(1, 0)]


def test_a_pool_of_one_lazy_segment(make_pool: Pools) -> None:
    pool = make_pool(64 << 30, segment_nbytes=64 << 30)
    start = time.perf_counter()
    lease = pool.lease_nowait(33 << 30)
    lease.view()[-1] = 1
    assert time.perf_counter() - start < 1  # no page but one was touched
    assert pool.committed == 64 << 30
    lease.drop()


def test_large_after_many_small(make_pool: Pools, registrar: Registrar) -> None:
    pool = make_pool(256 * MIB, segment_nbytes=64 * MIB)
    for _ in range(3):
        small = [pool.lease_nowait(50 * MIB) for _ in range(4)]
        for lease in small:
            lease.drop()
        big = pool.lease_nowait(200 * MIB)
        assert pool.committed <= 256 * MIB
        big.drop()
        assert pool.live == 0
    assert set(registrar.shrunk) == set(registrar.unregistered)


def test_idle_segments_stay_when_giving_them_up_would_not_help(
    make_pool: Pools, registrar: Registrar
) -> None:
    pool = make_pool(8 * MIB, segment_nbytes=MIB)
    leases = [pool.lease_nowait(MIB // 2) for _ in range(12)]
    leases += [pool.lease_nowait(MIB) for _ in range(2)]
    assert pool.committed == 8 * MIB
    for lease in leases[1::2]:
        lease.drop()
    with pytest.raises(PoolExhausted):
        pool.lease_nowait(3 * MIB)  # 4 of 8 are in use, but stranded in seven segments
    assert registrar.shrunk == []
    for lease in leases[::2]:
        lease.drop()
    pool.lease_nowait(8 * MIB).drop()


def test_no_more_idle_segments_go_than_have_to(make_pool: Pools, registrar: Registrar) -> None:
    pool = make_pool(4 * MIB, segment_nbytes=MIB)
    for lease in [pool.lease_nowait(MIB) for _ in range(4)]:
        lease.drop()
    pool.lease_nowait(2 * MIB).drop()
    assert [region.id for region in registrar.shrunk] == [4, 3]


def test_186_mb_again_and_again_in_the_same_place(make_pool: Pools, registrar: Registrar) -> None:
    for options in ({}, {"segment_nbytes": 256 * MIB}):
        pool = make_pool(256 * MIB, **options)
        header = pool.lease_nowait(4096)
        addresses = set()
        for _ in range(50):
            lease = pool.lease_nowait(186_000_000)
            addresses.add(lease.address)
            lease.drop()
        assert len(addresses) == 1
        header.drop()


def test_growing_payloads_do_not_each_need_a_segment(make_pool: Pools) -> None:
    pool = make_pool(1 << 30, segment_nbytes=MIB)
    for nbytes in range(100 * MIB, 104 * MIB, PAGE):
        pool.lease_nowait(nbytes).drop()
    assert len(pool.regions) == 1


def test_segments_stay_few(make_pool: Pools) -> None:
    pool = make_pool(16 << 30, segment_nbytes=MIB)
    leases = [pool.lease_nowait(512 << 10) for _ in range(10_000)]
    assert len(pool.regions) < 60
    for lease in leases:
        lease.drop()


def test_old_segments_first(make_pool: Pools) -> None:
    pool = make_pool(8 * MIB, segment_nbytes=MIB)
    first, second = pool.lease_nowait(MIB), pool.lease_nowait(MIB)
    first.drop()
    second.drop()
    again = pool.lease_nowait(1000)
    assert again.address == first.address
    again.drop()


class Stingy(MemfdMemory):
    """Gives so many blocks."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.blocks = blocks
        self.given: list[MappedBlock] = []

    def allocate(self, nbytes: int) -> MappedBlock:
        if not self.blocks:
            raise MemoryError("not today")
        self.blocks -= 1
        self.given.append(super().allocate(nbytes))
        return self.given[-1]


async def test_a_system_without_memory(make_pool: Pools) -> None:
    source = Stingy(0)
    pool = make_pool(8 * MIB, segment_nbytes=MIB, source=source)
    for ask in (pool.lease_nowait, pool.lease):
        with pytest.raises(PoolExhausted, match="the system refused it: not today"):
            await asked(ask(1))  # at once: nobody holds anything that could come back
    source.blocks = 1
    lease = await pool.lease(MIB)
    waiting = asyncio.ensure_future(pool.lease(MIB))
    await asyncio.sleep(0)
    assert not waiting.done()
    lease.drop()
    lease = await waiting
    waiting = asyncio.ensure_future(pool.lease(2 * MIB))
    await asyncio.sleep(0)
    lease.drop()  # now it is clear that it will never come
    with pytest.raises(PoolExhausted, match="not today"):
        await waiting


async def test_an_engine_that_cannot_register(
    make_pool: Pools, registrar: Registrar, capfd: pytest.CaptureFixture[str]
) -> None:
    pool = make_pool(8 * MIB, segment_nbytes=MIB)
    lease = pool.lease_nowait(8 * MIB)
    waiting = asyncio.ensure_future(pool.lease(1))
    patient = asyncio.ensure_future(pool.lease(1))
    await asyncio.sleep(0)
    lease.drop()
    (await waiting).drop()
    (await patient).drop()
    pool.lease_nowait(MIB).drop()

    registrar.fail = EngineFault("no more handles", status=12)
    lease = pool.lease_nowait(1)
    waiting = asyncio.ensure_future(pool.lease(8 * MIB))
    await asyncio.sleep(0)
    lease.drop()  # the segment fits already: nothing is registered
    (await waiting).drop()
    source = Stingy(2)
    other = make_pool(MIB, source=source)
    for ask in (other.lease_nowait, other.lease):
        with pytest.raises(EngineFault, match="no more handles"):
            await asked(ask(1))
    assert (other.committed, other.live, other.used) == (0, 0, 0)
    assert [block.fd for block in source.given] == [-1, -1]
    registrar.fail = None
    source.blocks = 1
    other.lease_nowait(1).drop()


async def test_who_gives_back_does_not_hear_of_a_waiters_error(
    make_pool: Pools, registrar: Registrar
) -> None:
    pool = make_pool(4 * MIB, segment_nbytes=MIB)
    small = [pool.lease_nowait(MIB) for _ in range(4)]
    waiting = asyncio.ensure_future(pool.lease(4 * MIB))
    await asyncio.sleep(0)
    registrar.fail = EngineFault("no more handles")
    for lease in small:
        lease.drop()
    with pytest.raises(EngineFault):
        await waiting
    registrar.fail = None
    assert (pool.live, pool.waiting) == (0, 0)
    pool.lease_nowait(4 * MIB).drop()
