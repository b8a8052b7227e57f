"""Taking memory away from a peer that is lost: by pages, by region, or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from omni_async.abc import Revoke
from omni_async.errors import UsageError
from omni_async.pool import PAGE, AnonymousMemory, Pool

from .conftest import Registrar

MIB = 1 << 20


def _pool(registrar: Registrar, revoke: Revoke, **options: Any) -> Pool:
    options = {"limit": 4 * MIB, "segment_nbytes": 4 * MIB, "alignment": PAGE, **options}
    pool = Pool(
        source=AnonymousMemory(),
        register=registrar.register,
        unregister=registrar.unregister,
        revoke=revoke,
        **options,
    )
    pool.on_grow = registrar.grown.append
    pool.on_shrink = registrar.shrunk.append
    return pool


def _mapped(address: int) -> str:
    """Permissions of the page at an address, or nothing where there is none."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            where, permissions, *_ = line.split()
            start, end = (int(part, 16) for part in where.split("-"))
            if start <= address < end:
                return permissions
    return ""


def test_pages_are_out_of_reach_and_the_room_comes_elsewhere(registrar: Registrar) -> None:
    pool = _pool(registrar, Revoke.PAGES)
    lost, neighbour = pool.lease_nowait(MIB), pool.lease_nowait(MIB)
    neighbour.view()[:] = b"n" * MIB
    lost.pin()
    lost.quarantine()
    assert pool.quarantined == 1
    assert pool.revoke(lost)
    lost.drop()
    assert (pool.quarantined, pool.live, pool.used) == (0, 1, MIB)
    assert _mapped(lost.address) == "---p"
    assert bytes(neighbour.view()) == b"n" * MIB
    others = [pool.lease_nowait(MIB) for _ in range(3)]  # the limit is what it was
    assert all(
        other.address + MIB <= lost.address or other.address >= lost.address + MIB
        for other in others
    )
    assert pool.committed <= 4 * MIB


def test_a_late_write_gets_an_error(registrar: Registrar) -> None:
    """As an engine's thread would write: by a system call."""
    pool = _pool(registrar, Revoke.PAGES)
    lease = pool.lease_nowait(PAGE)
    lease.pin()
    view = lease.view()
    read, write = os.pipe()
    os.write(write, b"late")
    with os.fdopen(read, "rb", buffering=0) as pipe:
        pool.revoke(lease)
        with pytest.raises(OSError, match="Bad address"):
            pipe.readinto(view)
    os.close(write)
    lease.drop()


def test_addresses_are_not_used_again_after_the_pool_is_gone(registrar: Registrar) -> None:
    pool = _pool(registrar, Revoke.PAGES)
    lease, other = pool.lease_nowait(MIB), pool.lease_nowait(MIB)
    address, other_address = lease.address, other.address
    lease.pin()
    pool.revoke(lease)
    lease.drop()
    other.drop()
    pool.close()
    del lease, other, pool
    registrar.registered.clear()
    assert _mapped(address) == "---p"
    assert _mapped(other_address) != "---p"


def test_a_segment_that_lost_room_is_replaced_when_idle(registrar: Registrar) -> None:
    pool = _pool(registrar, Revoke.PAGES)
    lease = pool.lease_nowait(3 * MIB)
    lease.pin()
    pool.revoke(lease)
    lease.drop()
    assert pool.committed == MIB
    pool.trim()
    assert pool.committed == 0
    whole = pool.lease_nowait(4 * MIB)
    assert whole.segment.region.id == 2


def test_a_waiter_gets_the_room_of_what_was_taken_away(registrar: Registrar) -> None:
    pool = _pool(registrar, Revoke.PAGES)
    lease = pool.lease_nowait(4 * MIB)
    lease.pin()
    pool.revoke(lease)
    lease.drop()
    assert pool.lease_nowait(4 * MIB).segment is not lease.segment


def test_a_region_is_never_registered_again(registrar: Registrar) -> None:
    """Engines repeat what has failed, and look up again what is registered at an address."""
    pool = _pool(registrar, Revoke.REGION)
    lost, held = pool.lease_nowait(MIB), pool.lease_nowait(MIB)
    held.view()[:] = b"h" * MIB
    lost.pin()
    assert pool.revoke(lost)
    assert [region.id for region in registrar.unregistered] == [1]
    assert [region.id for region in registrar.shrunk] == [1]
    assert (len(pool.regions), pool.committed) == (0, 0)
    lost.drop()
    assert (pool.quarantined, pool.live) == (0, 1)
    assert bytes(held.view()) == b"h" * MIB
    block = lost.segment.block
    assert block is not None
    others = [pool.lease_nowait(MIB) for _ in range(3)]  # the limit is what it was
    assert not any(
        block.address <= other.address < block.address + block.nbytes for other in others
    )
    assert [region.id for region in registrar.grown] == [1, 2]
    address = held.address
    held.drop()  # nobody leases there any more: its memory goes back, and its addresses stay
    assert _mapped(address) == "---p"
    assert lost.segment.block is None
    for other in others:
        other.drop()
    assert pool.used == 0
    pool.close()
    assert [region.id for region in registrar.unregistered] == [1, 2]
    assert _mapped(address) == "---p"


def test_a_pool_may_close_over_a_retired_segment(registrar: Registrar) -> None:
    pool = _pool(registrar, Revoke.REGION)
    lost, held = pool.lease_nowait(MIB), pool.lease_nowait(MIB)
    view = held.view()
    lost.pin()
    pool.revoke(lost)
    lost.drop()
    pool.trim()
    assert pool.close() == 0
    view[:] = b"v" * MIB  # views of it stay
    held.drop()
    assert [region.id for region in registrar.unregistered] == [1]


def test_a_region_waits_for_what_others_write_there(registrar: Registrar) -> None:
    pool = _pool(registrar, Revoke.REGION, limit=8 * MIB)
    lost, busy = pool.lease_nowait(MIB), pool.lease_nowait(MIB)
    lost.pin()
    busy.pin()
    assert pool.revoke(lost)
    lost.drop()
    assert pool.quarantined == 1
    assert registrar.unregistered == []
    elsewhere = pool.lease_nowait(MIB)  # what is condemned takes nothing new, or it would never end
    assert elsewhere.segment is not busy.segment
    busy.unpin()
    assert pool.quarantined == 0
    assert [region.id for region in registrar.unregistered] == [1]
    assert pool.live == 2


def test_without_means_it_stays_in_quarantine(registrar: Registrar) -> None:
    pool = _pool(registrar, Revoke.NOTHING)
    lease = pool.lease_nowait(MIB)
    lease.pin()
    lease.quarantine()
    assert not pool.revoke(lease)
    assert pool.quarantined == 1
    lease.unpin()
    lease.drop()


def test_pages_need_leases_of_whole_pages(registrar: Registrar) -> None:
    with pytest.raises(UsageError, match="pages are taken away whole"):
        _pool(registrar, Revoke.PAGES, alignment=64)


def test_a_touch_of_withdrawn_memory_is_noticed() -> None:
    """It kills the process that does it rather than hand over somebody else's bytes."""
    code = (
        "from omni_async.pool import AnonymousMemory, PAGE\n"
        "block = AnonymousMemory().allocate(2 * PAGE)\n"
        "view = block.view()\n"
        "block.withdraw(0, PAGE)\n"
        "view[PAGE] = 1\n"
        "print('still here', flush=True)\n"
        "view[0] = 1\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stdout == "still here\n"
    assert run.returncode == -11


@pytest.mark.parametrize(("offset", "nbytes"), [(1, PAGE), (0, 1), (PAGE, 2 * PAGE)])
def test_only_whole_pages_inside(offset: int, nbytes: int) -> None:
    block = AnonymousMemory().allocate(2 * PAGE)
    with pytest.raises(ValueError, match=r"pages|inside"):
        block.withdraw(offset, nbytes)
