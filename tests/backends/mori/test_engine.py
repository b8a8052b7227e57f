"""The engine in one process, on the double: what it refuses, what a failure leaves, what ends with it."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
import time

import pytest

from omni_async.abc import Revoke
from omni_async.errors import EngineFault, ProtocolError
from omni_async.model import Region
from omni_async.testing.doubles.mori import MISUSE, install, uninstall
from omni_async.testing.doubles.mori.words import MemoryDesc
from omni_async.testing.doubles.ordered import ORDERED, Fault
from omni_async.testing.leaks import no_leaks
from tests.backends.mori.conftest import MIB, SIZE, Both


async def test_bytes_arrive(both: Both) -> None:
    both.fill(7)
    await both.write(both.move(0, 0, 100), both.move(MIB, 2 * MIB, 3 * MIB))
    assert both.count(7) == 100 + 3 * MIB
    await both.write(both.move(0, 0, 0))
    assert both.count(7) == 100 + 3 * MIB


async def test_many_writes_at_once(both: Both) -> None:
    both.fill(3)
    await asyncio.gather(*(both.write(both.move(n * MIB, n * MIB, MIB)) for n in range(16)))
    assert both.count(3) == SIZE


async def test_between_gpus(on_gpus: Both) -> None:
    on_gpus.fill(5)
    await on_gpus.write(on_gpus.move(MIB, 0, 3 * MIB))
    assert on_gpus.count(5) == 3 * MIB
    assert on_gpus.sender.protocol == "xgmi"
    assert on_gpus.sender.revoke is Revoke.PAGES


@pytest.mark.parametrize("way", ["rdma", "xgmi"])
async def test_the_older_interface(way: str) -> None:
    """It wakes nobody. All of these tests run on it in the soak."""
    install("1.0")
    try:
        gpus = {"backend_type": "xgmi", "memory_pool_device": "cuda", "device": "cuda:0"}
        pair = Both(**(gpus if way == "xgmi" else {}))
        pair.fill(5)
        ORDERED.order(Fault("slow", seconds=0.02), Fault("failing"))
        await pair.write(pair.move(MIB, 0, 3 * MIB))
        with pytest.raises(EngineFault):
            await pair.write()
        await pair.write(pair.move(0, 4 * MIB, MIB))
        assert pair.count(5) == 4 * MIB
        pair.close()
    finally:
        uninstall()
    assert not MISUSE


async def test_what_it_says_of_itself(both: Both) -> None:
    assert (both.sender.protocol, both.sender.revoke) == ("rdma", Revoke.REGION)
    assert both.sender.health() == {"engine_key": both.made[0].key}
    assert both.receiver.health() == {"engine_key": both.made[1].key}
    assert both.made[0].key != both.made[1].key


# --- what never reaches the vendor ----------------------------------------------------------------


async def refuses_ranges(pair: Both) -> None:
    """Before the vendor sees them, which checks none."""
    begun = ORDERED.begun
    for move, status in (
        (pair.move(0, SIZE - 10, 11), "out of bounds"),
        (pair.move(0, -1, 10), "out of bounds"),
        (pair.move(SIZE - 10, 0, 11), "not registered"),
        (pair.move(0, 0, 10)._replace(region=2), "unknown region"),
    ):
        with pytest.raises(EngineFault) as caught:
            await pair.write(pair.move(0, 0, 10), move)
        assert caught.value.status == status
    assert ORDERED.begun == begun
    await pair.write()


async def test_ranges_that_a_card_would_refuse(both: Both) -> None:
    """And let the connection die for them."""
    await refuses_ranges(both)


async def test_ranges_that_a_gpu_would_write_to(on_gpus: Both) -> None:
    """And tell of success."""
    await refuses_ranges(on_gpus)


async def test_a_peer_that_is_not_known(both: Both) -> None:
    with pytest.raises(EngineFault, match="not known"):
        await both.sender.write("x", [both.move(0, 0, 1)], both.regions)
    both.sender.part("r")
    with pytest.raises(EngineFault, match="not known"):
        await both.write()


@pytest.mark.parametrize("descriptor", [b"", b"\xff", b"\x93\x01\x02\x03", b"\x96" + b"\xa0" * 6])
async def test_nonsense_is_refused(both: Both, descriptor: bytes) -> None:
    with pytest.raises(ProtocolError, match="a region is told as"):
        both.attached(both.there._replace(descriptor=descriptor))
    with pytest.raises(ProtocolError, match="engine is told as"):
        both.sender.meet("x", descriptor)


async def test_memory_of_a_gpu_that_cannot_be_shared(
    on_gpus: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vendor tells its log only, and every write to it would fail."""
    monkeypatch.setattr(MemoryDesc, "_handle_of", lambda *_: bytes(64))
    with pytest.raises(EngineFault, match="expandable segments"):
        on_gpus.receiver.register(on_gpus.target.address, MIB)


async def test_memory_of_the_host_is_refused_between_gpus(on_gpus: Both) -> None:
    memory = on_gpus.made[0].register(on_gpus.target.address, MIB, -1)
    region = Region(1, on_gpus.target.address, MIB, memory.pack(), -1)
    with pytest.raises(ProtocolError, match="which xgmi does not reach"):
        on_gpus.attached(region)


async def test_a_descriptor_of_another_region_is_refused(both: Both) -> None:
    for wrong in (
        both.there._replace(nbytes=SIZE + 1),
        both.there._replace(address=both.there.address - 1),
        Region(1, both.target.address, 0, both.there.descriptor, -1),
    ):
        with pytest.raises(ProtocolError, match="is described as"):
            both.attached(wrong)


# --- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["failing", "out_of_bounds"])
async def test_a_failure_is_told_and_the_next_write_goes_well(both: Both, kind: str) -> None:
    """Though the vendor's connection stays dead: another engine takes its place."""
    both.fill(9)
    await both.write()
    key = both.sender.health()["engine_key"]
    ORDERED.order(Fault(kind, landed=0.5))
    with pytest.raises(
        EngineFault, match="could not write 1,048,576 bytes to omni-async-"
    ) as caught:
        await both.write()
    assert caught.value.status == "ERR_RDMA_OP"
    for offset in (0, 3 * MIB):
        await both.write(both.move(0, offset, MIB))
    assert both.count(9) == 2 * MIB
    assert both.sender.health()["engine_key"] != key
    assert len(both.made) == 3


async def test_no_byte_comes_after_a_failure_was_told(both: Both) -> None:
    """Where the vendor tells of one piece's failure, others of the write may be under way."""
    both.fill(9)
    await both.write(both.move(0, 8 * MIB, MIB))
    ORDERED.order(Fault("late", landed=0.25))
    with pytest.raises(EngineFault):
        await both.write(both.move(0, 0, 4 * MIB))
    assert both.count(9) == 2 * MIB
    ORDERED.release()
    await both.write(both.move(0, 8 * MIB, MIB))
    assert both.count(9) == 2 * MIB
    assert bytes(both.target.view(MIB, 3 * MIB)).count(9) == 0


async def test_others_end_before_the_engine_does(both: Both) -> None:
    both.fill(4)
    ORDERED.order(Fault("stuck"), Fault("failing"))
    good = asyncio.ensure_future(both.write(both.move(0, 0, MIB)))
    await ORDERED.until_stuck()
    bad = asyncio.ensure_future(both.write(both.move(0, MIB, MIB)))
    await asyncio.sleep(0.1)
    assert not bad.done()
    again = asyncio.ensure_future(both.write(both.move(0, 2 * MIB, MIB)))
    await again  # by the engine that took its place
    ORDERED.release()
    await good
    with pytest.raises(EngineFault):
        await bad
    assert both.count(4) == 2 * MIB


async def test_nobody_is_waited_for_without_end(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omni_async.backends.mori.engine.PATIENCE", 0.1)
    ORDERED.order(Fault("stuck"), Fault("failing"))
    stuck = asyncio.ensure_future(both.write())
    await ORDERED.until_stuck()
    with pytest.raises(EngineFault, match=r"retry exceeded"):
        await both.write()
    with pytest.raises(EngineFault, match="the engine was ended"):
        await stuck


async def test_memory_that_comes_meanwhile_is_registered_with_the_next_engine(both: Both) -> None:
    ORDERED.order(Fault("stuck"), Fault("failing"))
    stuck = asyncio.ensure_future(both.write())
    await ORDERED.until_stuck()
    bad = asyncio.ensure_future(both.write())
    while both.sender._life.ending is None:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.001)
    region = both.sender.register(both.target.address, MIB)
    both.sender.unregister(region)
    region = both.sender.register(both.source.address, MIB)
    await both.write(both.move(0, 0, MIB))
    ORDERED.release()
    await asyncio.wait([stuck, bad])
    assert isinstance(bad.exception(), EngineFault)
    both.sender.unregister(region)


async def test_the_engine_that_cannot_be_had_again(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    ORDERED.order(Fault("failing"))
    with pytest.raises(EngineFault):
        await both.write()
    with monkeypatch.context() as patch:
        patch.setenv("MORI_RDMA_DEVICES", "gone_0")
        with pytest.raises(EngineFault, match="no active RDMA device"):
            await both.write()
    await both.write()


async def test_a_peer_that_is_gone(both: Both) -> None:
    both.receiver.close()
    await asyncio.sleep(0.1)
    with pytest.raises(EngineFault, match=r"did not begin"):
        await both.write()


async def test_a_region_that_was_taken_back_takes_nothing(both: Both) -> None:
    """What ends a lost peer's access over RDMA."""
    both.fill(8)
    await both.write()
    ORDERED.order(Fault("stuck", landed=0.25))
    late = asyncio.ensure_future(both.write(both.move(0, 0, 4 * MIB)))
    await ORDERED.until_stuck()
    both.receiver.unregister(both.there)
    both.target.view()[:] = bytes(SIZE)
    ORDERED.release()
    with pytest.raises(EngineFault, match="remote access error"):
        await late
    assert both.count(8) == 0


# --- close ----------------------------------------------------------------------------------------


async def test_closing_ends_what_is_under_way(both: Both) -> None:
    both.fill(6)
    ORDERED.order(Fault("stuck"))
    stuck = asyncio.ensure_future(both.write())
    await ORDERED.until_stuck()
    both.sender.close()
    both.sender.close()
    with pytest.raises(EngineFault, match="the engine was ended"):
        await stuck
    assert both.count(6) == 0
    with pytest.raises(EngineFault):
        await both.write()


@pytest.mark.usefixtures("api")
async def test_nothing_is_left() -> None:
    """Neither of engines that went well, nor of one that was ended, nor of one that closes under a write."""
    async with no_leaks():
        pair = Both()
        await pair.write()
        ORDERED.order(Fault("failing"), Fault("stuck"))
        with pytest.raises(EngineFault):
            await pair.write()
        stuck = asyncio.ensure_future(pair.write())
        await ORDERED.until_stuck()
        pair.close()
        with pytest.raises(EngineFault):
            await stuck


async def test_lines_that_come_and_go(both: Both) -> None:
    both.sender.meet("r", both.receiver.describe())
    both.sender.part("r")
    await both.write()
    both.sender.part("r")
    both.sender.meet("r", both.receiver.describe())
    await both.write()
    both.sender.meet("t", both.receiver.describe())
    both.sender.part("t")
    await both.write()


async def test_a_peer_that_does_not_answer_holds_up_nobody(both: Both) -> None:
    """Its first connection blocks in the vendor's call."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        told = both.made[1]._engine.get_engine_desc()
        told.key, told.port = "deaf", deaf.getsockname()[1]
        both.sender.meet("deaf", told.pack())
        memory = both.made[1].register(both.target.address, MIB, -1)
        memory.engine_key = "deaf"
        region = Region(1, both.target.address, MIB, memory.pack(), -1)
        waiting = asyncio.ensure_future(
            both.sender.write("deaf", [both.move(0, 0, 1)], {1: both.sender.attach("deaf", region)})
        )
        begun = time.monotonic()
        await asyncio.gather(*(both.write() for _ in range(12)))
        assert time.monotonic() - begun < 5
        assert not waiting.done()
        line, _ = deaf.accept()
        line.close()
        with pytest.raises(EngineFault, match="did not begin"):
            await waiting


async def test_memory_is_unregistered_when_nobody_hands_over_a_write(both: Both) -> None:
    """The vendor's session would be gone under the thread that uses it."""
    native, card = both.made[0], both.made[0]._engine._rdma.card
    memory = native.register(both.source.address, 4096, -1)
    with native._entered():
        native.unregister(memory)
        assert memory.id in card._regions
    assert memory.id not in card._regions
    native.unregister(native.register(both.source.address, 4096, -1))
    assert len(card._regions) == 1


async def test_registration_is_one_at_a_time(both: Both) -> None:
    """The vendor's map of it is not locked."""
    native, numbers = both.made[0], itertools.count()

    def register() -> None:
        while next(numbers) < 400:
            native.unregister(native.register(both.source.address, 4096, -1))

    threads = [threading.Thread(target=register) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not MISUSE
