"""The pool: limits, back-pressure, quarantine, finding."""

from __future__ import annotations

import asyncio

import pytest

from omni_async.abc import MemorySource
from omni_async.errors import ClosedError, PayloadTooLarge, PoolExhausted, UsageError
from omni_async.pool import State

from .conftest import Pools, Registrar, asked

MIB = 1 << 20


# --- leasing ------------------------------------------------------------------------------------


def test_a_lease_is_aligned_writable_memory(make_pool: Pools, source: MemorySource) -> None:
    pool = make_pool(MIB, source=source)
    leases = [pool.lease_nowait(nbytes) for nbytes in (1, 64, 65, 1000, 0)]
    assert [lease.nbytes for lease in leases] == [1, 64, 65, 1000, 0]
    assert [lease.size for lease in leases] == [64, 64, 128, 1024, 64]
    assert all(lease.address % 64 == 0 for lease in leases)
    assert len({lease.address for lease in leases}) == 5
    for number, lease in enumerate(leases):
        lease.view()[:] = bytes([number]) * lease.nbytes
    for number, lease in enumerate(leases):
        assert bytes(lease.view()) == bytes([number]) * lease.nbytes
    assert (pool.used, pool.live, pool.limit) == (1344, 5, MIB)
    for lease in leases:
        lease.drop()
    assert (pool.used, pool.live) == (0, 0)


def test_generations_grow(make_pool: Pools) -> None:
    pool = make_pool(MIB)
    first = pool.lease_nowait(1000)
    first.drop()
    second = pool.lease_nowait(1000)
    assert second.offset == first.offset
    assert second.generation > first.generation
    second.drop()


def test_the_limit_can_be_used_to_the_last_byte(make_pool: Pools) -> None:
    pool = make_pool(1_000_000)
    lease = pool.lease_nowait(1_000_000)
    with pytest.raises(PoolExhausted):
        pool.lease_nowait(0)
    lease.drop()
    leases = [pool.lease_nowait(100_000) for _ in range(9)]
    leases.append(pool.lease_nowait(100_000 - 9 * 32))  # each of the nine was rounded up by 32
    with pytest.raises(PoolExhausted):
        pool.lease_nowait(65)
    for lease in leases:
        lease.drop()


def test_too_large_is_said_at_once(make_pool: Pools) -> None:
    pool = make_pool(MIB, setting="my_pool_size")
    with pytest.raises(PayloadTooLarge, match=r"1,048,577 .* 1,048,576 .* raise my_pool_size") as e:
        pool.lease_nowait(MIB + 1)
    assert (e.value.nbytes, e.value.limit, e.value.setting) == (MIB + 1, MIB, "my_pool_size")


async def test_too_large_is_said_at_once_even_with_a_line(make_pool: Pools) -> None:
    pool = make_pool(MIB)
    lease = pool.lease_nowait(MIB)
    waiting = asyncio.ensure_future(pool.lease(1))
    await asyncio.sleep(0)
    for ask in (pool.lease_nowait, pool.lease):
        with pytest.raises(PayloadTooLarge):
            await asked(ask(MIB + 1))
    lease.drop()
    (await waiting).drop()


def test_nonsense_is_refused(make_pool: Pools, registrar: Registrar) -> None:
    pool = make_pool(MIB)
    with pytest.raises(UsageError):
        pool.lease_nowait(-1)
    for options in (
        {"limit": 0},
        {"limit": MIB, "segment_nbytes": 0},
        {"limit": MIB, "alignment": 0},
        {"limit": MIB, "alignment": 48},
    ):
        with pytest.raises(UsageError, match="no pool"):
            make_pool(**options)


def test_exhaustion_says_what_is_going_on(make_pool: Pools) -> None:
    pool = make_pool(MIB)
    lease = pool.lease_nowait(MIB)
    lease.pin()
    lease.quarantine()
    with pytest.raises(
        PoolExhausted,
        match=r"no room for 5 bytes: 1,048,576 of 1,048,576 .* 1 leases \(1 in quarantine\), 0 req",
    ) as info:
        pool.lease_nowait(5)
    assert (info.value.nbytes, info.value.limit, info.value.retryable) == (5, MIB, True)
    assert "1 leases" in repr(pool)
    lease.drop()
    lease.unpin()


async def test_waiting_for_room(make_pool: Pools) -> None:
    pool = make_pool(MIB)
    lease = await pool.lease(MIB)
    waiting = [asyncio.ensure_future(pool.lease(MIB // 2)) for _ in range(2)]
    await asyncio.sleep(0)
    assert pool.waiting == 2
    with pytest.raises(PoolExhausted, match="2 requests wait"):
        pool.lease_nowait(1)
    lease.drop()
    leases = await asyncio.gather(*waiting)
    assert pool.waiting == 0
    assert pool.used == MIB
    for lease in leases:
        lease.drop()


async def test_nobody_passes_the_head_of_the_line(make_pool: Pools) -> None:
    pool = make_pool(MIB)
    held = [pool.lease_nowait(MIB // 4) for _ in range(3)]
    big = asyncio.ensure_future(pool.lease(MIB))
    await asyncio.sleep(0)
    small = asyncio.ensure_future(pool.lease(1))
    with pytest.raises(PoolExhausted):
        pool.lease_nowait(1)  # there is room, but not for those who come late
    await asyncio.sleep(0)
    for lease in held:
        assert not big.done()
        lease.drop()
    (await big).drop()
    (await small).drop()


async def test_a_deadline(make_pool: Pools) -> None:
    pool = make_pool(MIB)
    loop = asyncio.get_running_loop()
    lease = await pool.lease(MIB, deadline=loop.time() - 1)  # there is room: nobody waits
    with pytest.raises(PoolExhausted, match="no room for 1 bytes"):
        await pool.lease(1, deadline=loop.time() + 0.01)
    with pytest.raises(PoolExhausted):
        await pool.lease(1, deadline=loop.time() - 1)
    assert pool.waiting == 0
    lease.drop()


async def test_cancellation_leaves_nothing(make_pool: Pools) -> None:
    pool = make_pool(MIB)
    lease = pool.lease_nowait(MIB)
    task = asyncio.ensure_future(pool.lease(MIB))
    await asyncio.sleep(0)
    lease.drop()  # granted now
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (pool.used, pool.live, pool.waiting) == (0, 0, 0)
    pool.lease_nowait(MIB).drop()


async def test_cancel_waiters_by_owner(make_pool: Pools) -> None:
    pool = make_pool(MIB)
    lease = pool.lease_nowait(MIB)
    mine = asyncio.ensure_future(pool.lease(1, owner="r1"))
    other = asyncio.ensure_future(pool.lease(1, owner="r2"))
    await asyncio.sleep(0)
    assert pool.cancel_waiters("r1", ClosedError("cleaned up")) == 1
    with pytest.raises(ClosedError, match="cleaned up"):
        await mine
    lease.drop()
    (await other).drop()


# --- quarantine ---------------------------------------------------------------------------------


async def test_a_slot_in_quarantine_is_not_handed_out(make_pool: Pools) -> None:
    pool = make_pool(MIB)
    lease = pool.lease_nowait(MIB)
    lease.pin()
    lease.quarantine()
    lease.drop()
    assert (pool.quarantined, pool.live, pool.used) == (1, 1, MIB)
    waiting = asyncio.ensure_future(pool.lease(MIB))
    await asyncio.sleep(0)
    assert not waiting.done()
    lease.unpin()
    assert pool.quarantined == 0
    (await waiting).drop()


def test_quarantine_ends_in_the_hands_of_a_holder(make_pool: Pools) -> None:
    pool = make_pool(MIB)
    lease = pool.lease_nowait(10)
    lease.pin()
    lease.quarantine()
    lease.unpin()
    assert lease.state is State.HELD
    assert (pool.quarantined, pool.live) == (0, 1)
    lease.drop()


# --- find ---------------------------------------------------------------------------------------


def test_find(make_pool: Pools) -> None:
    pool = make_pool(4 * MIB, segment_nbytes=MIB)
    assert pool.find(12345, 1) is None
    leases = [pool.lease_nowait(nbytes) for nbytes in [1000] * 50 + [MIB // 2] * 4 + [100]]
    assert len(pool.regions) > 2
    for lease in leases:
        for start, nbytes in ((0, lease.nbytes), (0, 1), (lease.nbytes - 1, 1), (10, 50)):
            assert pool.find(lease.address + start, nbytes) is lease
        assert pool.find(lease.address, lease.nbytes + 1) is None  # not even the padding
        assert pool.find(lease.address + lease.nbytes, 1) is not lease
        assert pool.find(lease.address, 0) is None
    last = max(pool.regions.values(), key=lambda region: region.address)
    assert pool.find(last.address + last.nbytes, 1) is None
    for region in pool.regions.values():
        assert pool.find(region.address + region.nbytes - 1, 2) is None
    first = min(pool.regions.values(), key=lambda region: region.address)
    for foreign in (12345, first.address - 1, id(pool), 1 << 63):
        assert pool.find(foreign, 10) is None
    gone = leases.pop(20)
    gone.drop()
    assert pool.find(gone.address, 1) is None
    for lease in leases:
        lease.drop()
    assert pool.find(leases[0].address, 1) is None


def test_find_before_the_first_lease_of_a_segment(make_pool: Pools) -> None:
    pool = make_pool(MIB)
    first, second = pool.lease_nowait(64), pool.lease_nowait(64)
    first.drop()
    assert pool.find(first.address, 1) is None
    second.drop()
