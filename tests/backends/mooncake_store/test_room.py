"""A store that is full, with a master of its own: waiting is worth it or not, and nothing goes by itself."""

from __future__ import annotations

import asyncio
import time

import pytest

from omni_async import PayloadTooLarge, PoolExhausted
from omni_async.abc import Gone
from omni_async.cli.servers.mooncake import MooncakeMaster

from .conftest import MIB, Open
from .desk import Desk

SEGMENT = 16 * MIB


@pytest.fixture
def master(own_master: MooncakeMaster) -> MooncakeMaster:
    own_master.start()
    return own_master


@pytest.fixture
async def desk(master: MooncakeMaster, open_desk: Open) -> Desk:
    return await open_desk({**master.extra("sender"), "segment": SEGMENT})


async def test_a_full_store_takes_more_once_something_was_deleted(desk: Desk) -> None:
    for at in range(15):
        await desk.put(f"k{at}", bytes([at]) * MIB)
    with pytest.raises(PoolExhausted, match="no room for the 4,194,304 bytes of more") as caught:
        await desk.put("more", b"m" * 4 * MIB)
    assert (caught.value.nbytes, caught.value.limit) == (4 * MIB, SEGMENT)
    assert caught.value.retryable
    for at in range(15):  # nothing that was put has gone
        assert await desk.get(f"k{at}") == bytes([at]) * MIB
    for at in range(4):
        assert await desk.delete(f"k{at}", own=True) is Gone.DELETED
    await desk.put("more", b"m" * 4 * MIB)
    assert await desk.get("more") == b"m" * 4 * MIB


async def test_a_put_that_found_no_room_leaves_nothing(desk: Desk, master: MooncakeMaster) -> None:
    with pytest.raises(PayloadTooLarge):
        await desk.put_here("large", SEGMENT + 1)
    assert not await desk.there("large")
    assert master.figures()["master_allocated_bytes"] == 0
    await desk.put("large", b"x")


async def test_what_is_larger_than_the_segment(desk: Desk) -> None:
    await desk.put_here("all of it", SEGMENT)
    await desk.delete("all of it", own=True)
    with pytest.raises(PayloadTooLarge, match=r"16,777,217 bytes.* 16,777,216 bytes") as caught:
        await desk.put_here("large", SEGMENT + 1)
    assert (caught.value.nbytes, caught.value.limit) == (SEGMENT + 1, SEGMENT)
    assert caught.value.setting == "segment"


async def test_a_larger_segment_of_somebody_else_takes_it(
    desk: Desk, master: MooncakeMaster, open_desk: Open
) -> None:
    node = await open_desk({**master.extra("sender"), "segment": 2 * SEGMENT})
    await desk.put_here("large", SEGMENT + MIB)
    await node.put_here("small", MIB)
    with pytest.raises(PoolExhausted):  # it is known to fit, once there is room
        await desk.put_here("larger", SEGMENT + MIB)
    await desk.delete("large", own=True)
    await desk.put_here("larger", SEGMENT + MIB)


async def test_nobody_lends_anything(master: MooncakeMaster, open_desk: Open) -> None:
    guest = await open_desk({**master.extra("receiver"), "segment": 0})
    with pytest.raises(PoolExhausted, match="lends 0 bytes"):
        await guest.put("k", b"x")


async def test_evictable_payloads_make_way(master: MooncakeMaster, open_desk: Open) -> None:
    desk = await open_desk({**master.extra("sender"), "segment": SEGMENT, "evictable": True})
    limit = time.monotonic() + 20
    for at in range(40):
        while True:
            try:
                await desk.put(f"k{at}", bytes([at]) * MIB)
                break
            except PoolExhausted:  # the master is just making room
                if time.monotonic() > limit:
                    raise
                await asyncio.sleep(0.01)
    assert await desk.there("k39")
    assert not await desk.there("k0")
