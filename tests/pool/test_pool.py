"""The pool: limits, back-pressure, segments that come and go, quarantine, closing."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Awaitable

import pytest

from omni_async.abc import MemorySource
from omni_async.errors import ClosedError, EngineFault, PayloadTooLarge, PoolExhausted, UsageError
from omni_async.pool import Lease, MemfdMemory, Pool, State, map_fd
from omni_async.pool.memory import PAGE, MappedBlock

from .conftest import Pools, Registrar

MIB = 1 << 20


async def _asked(result: Lease | Awaitable[Lease]) -> Lease:
    """What ``lease_nowait`` and ``lease`` gave, alike."""
    return result if isinstance(result, Lease) else await result


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
            await _asked(ask(MIB + 1))
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


# --- segments -----------------------------------------------------------------------------------


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


# --- when the system or the engine refuses ------------------------------------------------------


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
            await _asked(ask(1))  # at once: nobody holds anything that could come back
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
            await _asked(ask(1))
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


# --- closing ------------------------------------------------------------------------------------


async def test_close_ends_waiting_and_leasing(make_pool: Pools) -> None:
    pool = make_pool(MIB)
    lease = pool.lease_nowait(MIB)
    waiting = asyncio.ensure_future(pool.lease(1))
    await asyncio.sleep(0)
    assert pool.close() == 0
    with pytest.raises(ClosedError):
        await waiting
    for ask in (pool.lease_nowait, pool.lease):
        with pytest.raises(ClosedError):
            await _asked(ask(1))
    assert pool.committed == 0
    lease.view()[:] = b"x" * MIB  # whoever has a lease may still look
    lease.drop()
    assert (pool.live, pool.used) == (0, 0)


def test_close_says_nothing_to_peers(make_pool: Pools, registrar: Registrar) -> None:
    pool = make_pool(MIB)
    pool.lease_nowait(1).drop()
    pool.close()
    assert registrar.shrunk == []
    assert len(registrar.unregistered) == 1


def _mapped(address: int) -> bool:
    with open("/proc/self/maps") as maps:
        for line in maps:
            low, _, high = line.split(" ", 1)[0].partition("-")
            if int(low, 16) <= address < int(high, 16):
                return True
    return False


@pytest.mark.parametrize("quarantined", [False, True])
def test_memory_under_an_operation_outlives_the_pool(
    registrar: Registrar, quarantined: bool
) -> None:
    def make() -> tuple[Pool, Lease, Lease, int]:
        pool = Pool(
            limit=8 * MIB,
            segment_nbytes=2 * MIB,
            source=MemfdMemory(),
            register=registrar.register,
            unregister=registrar.unregister,
        )
        pinned, free = pool.lease_nowait(2 * MIB), pool.lease_nowait(2 * MIB)
        pinned.pin()
        pinned.pin()
        if quarantined:
            pinned.quarantine()
        pinned.drop()
        free.drop()
        return pool, pinned, free, pinned.address

    pool, lease, free, address = make()
    assert pool.close() == 1
    assert pool.close() == 1
    assert [region.address for region in registrar.unregistered] == [free.address]
    assert pool.committed == 2 * MIB
    ends = [lease.unpin, lease.unpin]
    del pool, lease, free
    assert _mapped(address)
    ends.pop()()
    assert len(registrar.unregistered) == 1
    ends.pop()()
    assert len(registrar.unregistered) == 2
    assert not _mapped(address)


def test_peers_with_mappings_of_their_own_hold_nothing_back(
    make_pool: Pools, registrar: Registrar
) -> None:
    pool = make_pool(MIB)
    lease = pool.lease_nowait(5)
    lease.pin()
    lease.view()[:] = b"hello"
    peer = map_fd(os.dup(registrar.registered[0].fd), registrar.registered[0].nbytes)
    lease.quarantine()
    lease.drop()
    assert pool.close() == 1
    assert registrar.unregistered == []
    assert pool.close(mapped=True) == 1
    assert pool.committed == 0
    assert len(registrar.unregistered) == 1
    assert bytes(peer.view(lease.offset, 5)) == b"hello"
    address = lease.address
    lease.unpin()  # late word of the peer
    assert (pool.live, pool.quarantined) == (0, 0)
    del lease
    assert not _mapped(address)


def test_an_operation_that_ends_after_closing_leaves_the_holder_his_view(
    make_pool: Pools, registrar: Registrar
) -> None:
    pool = make_pool(MIB)
    lease = pool.lease_nowait(100)
    lease.pin()
    assert pool.close() == 1
    lease.unpin()
    assert len(registrar.unregistered) == 1
    lease.view()[:] = b"y" * 100
    address = lease.address
    lease.drop()
    del lease
    assert not _mapped(address)


def test_a_lease_that_is_forgotten_after_closing_needs_no_collector(make_pool: Pools) -> None:
    pool = make_pool(MIB)
    lease, other = pool.lease_nowait(100), pool.lease_nowait(100)
    address = lease.address
    pool.close()
    gc.disable()
    try:
        del lease
        assert _mapped(address)
        del other
        assert not _mapped(address)
    finally:
        gc.enable()


def test_a_lease_freed_long_ago_keeps_no_memory(make_pool: Pools) -> None:
    pool = make_pool(MIB)
    lease = pool.lease_nowait(100)
    lease.drop()
    assert _mapped(lease.address)
    pool.close()
    assert not _mapped(lease.address)
