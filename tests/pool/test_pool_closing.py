"""The end of a pool, and what outlives it."""

from __future__ import annotations

import asyncio
import gc
import os

import pytest

from omni_async.errors import ClosedError
from omni_async.pool import Lease, MemfdMemory, Pool, map_fd

from .conftest import Pools, Registrar, asked

MIB = 1 << 20


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
            await asked(ask(1))
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
