"""The store through its seam, with a real worker: what is put is got, and four outcomes stay apart."""

from __future__ import annotations

import asyncio
import math
import time

import pytest

from omni_async import ClosedError
from omni_async.abc import Gone, Piece
from omni_async.cli.servers.yuanrong import YuanrongWorker

from .conftest import MIB, Open, Vendor, alive
from .desk import YuanrongDesk


@pytest.mark.parametrize(
    ("nbytes", "pieces"),
    [(1, 1), (64, 3), (4096, 1), (300_000, 7), (600_000, 1), (15 * MIB + 1, 1), (15 * MIB + 1, 3)],
)
async def test_what_is_put_is_got(desk: YuanrongDesk, name: str, nbytes: int, pieces: int) -> None:
    data = bytes(range(256)) * (nbytes // 256) + bytes(range(nbytes % 256))
    await desk.put(name, data, pieces)
    assert await desk.there(name)
    assert await desk.get(name) == data
    assert await desk.delete(name, own=True) is Gone.DELETED
    assert not await desk.there(name)
    assert await desk.get(name) is None


async def test_what_is_absent(desk: YuanrongDesk, name: str) -> None:
    assert await desk.get(name) is None
    assert not await desk.there(name)
    assert await desk.delete(name) is not Gone.BUSY
    assert await desk.store.contains([]) == []
    assert await desk.store.delete([]) == []


@pytest.mark.parametrize("nbytes", [5000, 2 * MIB])
async def test_too_little_room_tells_how_much_it_takes(
    desk: YuanrongDesk, name: str, nbytes: int
) -> None:
    await desk.put(name, b"x" * nbytes)
    desk.block.view(0, nbytes)[:] = bytes(nbytes)
    assert await desk.size(name, room=nbytes - 1) == nbytes
    assert await desk.size(name, room=1) == nbytes
    assert bytes(desk.block.view(0, nbytes)) == bytes(nbytes), "nothing was to be written"
    assert await desk.size(name, room=nbytes) == nbytes
    assert bytes(desk.block.view(0, nbytes)) == b"x" * nbytes
    await desk.delete(name)


@pytest.mark.parametrize("second", [100, 3 * MIB])
@pytest.mark.parametrize("first", [100, 3 * MIB])
@pytest.mark.parametrize("pieces", [(1, 1), (2, 1), (1, 2), (2, 2)])
async def test_what_was_put_before_is_replaced(
    desk: YuanrongDesk, name: str, first: int, second: int, pieces: tuple[int, int]
) -> None:
    """However the one and the other was put: the vendor itself refuses some of these."""
    await desk.put(name, b"1" * first, pieces[0])
    await desk.put(name, b"2" * second, pieces[1])
    assert await desk.get(name) == b"2" * second
    await desk.put(name, b"3" * first, pieces[0])
    assert await desk.get(name) == b"3" * first
    await desk.delete(name)


async def test_what_others_have_put_is_got_and_replaced(
    desk: YuanrongDesk, name: str, vendor: Vendor
) -> None:
    """vLLM-Omni puts in the vendor's evicting mode, which the vendor does not mix with another."""
    vendor.set(name, b"theirs")
    assert await desk.get(name) == b"theirs"
    await desk.put(name, b"ours")
    assert vendor.get(name) == b"ours"
    await desk.delete(name)
    vendor.set(name, b"theirs")
    await desk.put(name, b"o" * 2 * MIB, 2)
    assert vendor.get(name) == b"o" * 2 * MIB
    await desk.delete(name)


@pytest.mark.parametrize("pieces", [1, 2])
async def test_another_worker_has_no_old_copy(
    other_worker: YuanrongWorker, desk: YuanrongDesk, name: str, open_desk: Open, pieces: int
) -> None:
    away = await open_desk(other_worker)
    for at in range(10):
        data = bytes([at]) * (2 * MIB)
        await (away if at % 3 == 2 else desk).put(name, data, pieces)
        assert await away.get(name) == data
        assert await desk.get(name) == data
        assert await away.there(name)
    await away.delete(name)
    assert await desk.get(name) is None
    assert await away.get(name) is None


@pytest.mark.parametrize("odd", ["a/b", "ü" * 300, "a b\n%\0", "x" * 1200, "%2F"])
async def test_odd_names(desk: YuanrongDesk, name: str, odd: str) -> None:
    called = desk.store.name(odd + name)
    await desk.put(called, odd.encode())
    assert await desk.get(called) == odd.encode()
    assert await desk.store.contains([called, desk.store.name("~" + odd + name)]) == [True, False]
    await desk.delete(called)


async def test_many_names_in_one_question(desk: YuanrongDesk, name: str) -> None:
    names = [f"{at}-{name}" for at in range(12_000)]
    await desk.put(names[3], b"3")
    await desk.put(names[11_999], b"4")
    there = await desk.store.contains(names)
    assert [at for at, found in enumerate(there) if found] == [3, 11_999]
    assert await desk.store.delete(names) == [Gone.DELETED] * len(names)
    assert not any(await desk.store.contains([names[3], names[11_999]]))


async def test_a_look_up_does_not_wait_for_copies(desk: YuanrongDesk, open_desk: Open) -> None:
    """More calls than one at a time, each with its own answer."""
    names = [f"{at}-{id(desk)}:0_1" for at in range(20)]
    places = [(desk.block.address + at * MIB, 65536 + at) for at in range(20)]
    for at, (address, nbytes) in enumerate(places):
        desk.block.view(address - desk.block.address, nbytes)[:] = bytes([at]) * nbytes
    await asyncio.gather(
        *(
            desk.store.put(name, [Piece(*place)], ttl=60, timeout=10)
            for name, place in zip(names, places, strict=True)
        )
    )
    desk.block.view()[:] = bytes(desk.block.nbytes)
    sizes = await asyncio.gather(
        *(
            desk.store.get(name, address, MIB, timeout=10)
            for name, (address, _) in zip(names, places, strict=True)
        ),
    )
    for at, (address, nbytes) in enumerate(places):
        assert sizes[at] == nbytes
        start = address - desk.block.address
        assert bytes(desk.block.view(start, nbytes)) == bytes([at]) * nbytes
    assert await desk.store.delete(names) == [Gone.DELETED] * 20


async def test_time_limits_of_objects(desk: YuanrongDesk, name: str) -> None:
    desk.block.view(0, 4)[:] = b"abcd"
    piece = [Piece(desk.block.address, 4)]
    began = time.monotonic()
    await desk.store.put(name, piece, ttl=0.2, timeout=5)
    await desk.store.put("for-ever" + name, piece, ttl=math.inf, timeout=5)
    assert await desk.there(name), "at least so long"
    while await desk.there(name):
        assert time.monotonic() < began + 5
        await asyncio.sleep(0.05)
    assert await desk.get(name) is None
    assert time.monotonic() >= began + 0.2
    assert await desk.there("for-ever" + name)
    await desk.delete("for-ever" + name)


async def test_memory_that_is_not_registered(desk: YuanrongDesk, name: str) -> None:
    with pytest.raises(Exception, match="not registered"):
        await desk.store.put(name, [Piece(desk.block.address - 1, 4)], ttl=60, timeout=5)
    desk.store.unregister(desk.region)
    desk.store.unregister(desk.region)
    with pytest.raises(Exception, match="not registered"):
        await desk.put(name, b"x")


async def test_after_closing(desk: YuanrongDesk, name: str) -> None:
    pid = desk.line.pid
    began = time.monotonic()
    await desk.store.close()
    assert time.monotonic() - began < 2
    assert not alive(pid)
    with pytest.raises(ClosedError):
        await desk.there(name)
    await desk.store.close()
    desk.store.abort()
