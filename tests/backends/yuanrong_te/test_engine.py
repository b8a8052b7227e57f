"""The engine in one loop, on what stands for the vendor: what it lets through, and when a read has ended."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator
from types import ModuleType
from typing import Any

import msgspec
import pytest

from omni_async import EngineFault
from omni_async.abc import RemoteRegion
from omni_async.backends.yuanrong_te import engine as module
from omni_async.backends.yuanrong_te._native import NativeEngine
from omni_async.backends.yuanrong_te.engine import YuanrongTransferEngine, reads
from omni_async.errors import ClosedError, ProtocolError
from omni_async.model import Move, Region
from omni_async.pool.memory import AnonymousMemory
from omni_async.testing.doubles import yuanrong_te as double
from omni_async.testing.doubles.ordered import ORDERED, Fault
from omni_async.testing.leaks import no_leaks

VENDOR: ModuleType = sys.modules[double.__name__]
NBYTES = 1 << 20
PEER = "the owner"


class Counted(NativeEngine):
    """Notes each read of the vendor's, and its thread."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.reads: list[tuple[int, int]] = []
        self.threads: set[str] = set()

    def read(self, session: str, here: Any, there: Any, lengths: Any) -> None:
        self.reads.append((len(lengths), sum(lengths)))
        self.threads.add(threading.current_thread().name)
        super().read(session, here, there, lengths)


class Two:
    """A reader, and an owner whose memory it knows."""

    def __init__(self) -> None:
        self.native = Counted(VENDOR, "127.0.0.1", None, "npu:0")
        self.reader = YuanrongTransferEngine(self.native, double.HostNpu())
        there = NativeEngine(VENDOR, "127.0.0.1", None, "npu:1")
        self.owner = YuanrongTransferEngine(there, double.HostNpu(), "10.86.1.81")
        self.here, self.there = (AnonymousMemory().allocate(NBYTES) for _ in range(2))
        self.reader.register(self.here.address, NBYTES)
        self.region = self.owner.register(self.there.address, NBYTES)
        self.reader.meet(PEER, self.owner.describe())
        self.regions = {1: self.reader.attach(PEER, self.region)}
        self.there.view()[:] = bytes(range(256)) * (NBYTES // 256)

    def move(self, at: int = 0, offset: int = 0, nbytes: int = NBYTES, region: int = 1) -> Move:
        return Move(self.here.address + at, region, offset, nbytes)

    async def read(self, *moves: Move) -> None:
        await self.reader.read(PEER, moves, self.regions)

    def same(self) -> bool:
        return bytes(self.here.view()) == bytes(self.there.view())


@pytest.fixture
async def two(namespace: str) -> AsyncIterator[Two]:
    async with no_leaks(mark=namespace):
        two = Two()
        yield two
        ORDERED.clear()
        two.reader.close()
        two.owner.close()
        await asyncio.sleep(0)


# --- what is moved --------------------------------------------------------------------------------


async def test_bytes_move(two: Two) -> None:
    await two.read(two.move())
    assert two.same()
    assert two.native.reads == [(1, NBYTES)]
    assert two.native.threads == {"yuanrong-te-0"}


async def test_many_pieces_are_one_read(two: Two) -> None:
    part = NBYTES // 8
    moves = [two.move(i * part, i * part, part) for i in range(8)]
    await two.read(*moves, two.move(nbytes=0))
    assert two.same()
    assert two.native.reads == [(8, NBYTES)]
    await two.read(two.move(nbytes=0))  # nothing is asked for it
    assert len(two.native.reads) == 1


async def test_what_takes_long_is_read_in_pieces(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """The vendor keeps the interpreter's lock: between two pieces the event loop has its turn."""
    monkeypatch.setattr(module, "PIECE", NBYTES // 4)
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    turning = asyncio.create_task(turn())
    await two.read(two.move())
    turning.cancel()
    assert two.same()
    assert two.native.reads == [(1, NBYTES // 4)] * 4
    assert turns >= 4


def test_how_it_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", 100)
    monkeypatch.setattr(module, "MOST", 3)
    regions = {1: RemoteRegion(1, 1 << 20, 0, 5000), 2: RemoteRegion(2, 1 << 20, 0, 9000)}
    moves = [Move(10, 1, 7, 150), Move(500, 2, 0, 20), *(Move(600, 1, n, 1) for n in range(4))]
    cut = [[tuple(piece) for piece in batch] for batch in reads(moves, regions)]
    assert cut == [
        [(10, 5007, 100)],
        [(110, 5107, 50), (500, 9000, 20), (600, 5000, 1)],
        [(600, 5001, 1), (600, 5002, 1), (600, 5003, 1)],
    ]


async def test_two_reads_at_once_take_turns(two: Two) -> None:
    """The vendor would mix them up."""
    ORDERED.order(Fault("stuck"))
    half, before = NBYTES // 2, ORDERED.begun
    first = asyncio.create_task(two.read(two.move(0, 0, half)))
    await ORDERED.until_stuck()
    second = asyncio.create_task(two.read(two.move(half, half, half)))
    await asyncio.sleep(0.05)
    assert ORDERED.begun == before + 1
    ORDERED.release()
    await asyncio.gather(first, second)
    assert two.same()


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("move", "status"),
    [
        ({"region": 9}, "unknown region"),
        ({"offset": 1}, "out of bounds"),
        ({"offset": -1}, "out of bounds"),
        ({"nbytes": -1}, "out of bounds"),
        ({"at": 1}, "not registered"),
        ({"at": -1, "nbytes": 5}, "not registered"),
    ],
)
async def test_bounds_are_checked_before_the_vendor_sees_them(
    two: Two, move: dict[str, int], status: str
) -> None:
    with pytest.raises(EngineFault) as caught:
        await two.read(two.move(nbytes=16), two.move(**move))
    assert caught.value.status == status
    assert two.native.reads == []


async def test_what_the_owner_has_taken_back_is_refused_by_it(two: Two) -> None:
    two.owner.unregister(two.region)
    two.owner.unregister(two.region)
    with pytest.raises(EngineFault, match="remote range is not registered") as caught:
        await two.read(two.move())
    assert caught.value.status == "kNotAuthorized"
    assert "hccn_tool -i N -ping -g address 10.86.1.81" in str(caught.value)


async def test_peers_come_and_go(two: Two) -> None:
    two.reader.meet(PEER, two.owner.describe())  # before the end of the old line was noticed
    two.reader.part(PEER)
    await two.read(two.move())
    two.reader.part(PEER)
    with pytest.raises(EngineFault, match="not known"):
        await two.read(two.move())


async def test_who_has_gone_is_not_asked_for_the_rest(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE", NBYTES // 4)
    ORDERED.order(Fault("stuck"))
    reading = asyncio.create_task(two.read(two.move()))
    await ORDERED.until_stuck()
    two.reader.part(PEER)
    ORDERED.release()
    with pytest.raises(EngineFault, match="not known"):
        await reading
    assert len(two.native.reads) == 1


@pytest.mark.parametrize(
    "told",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"session": "127.0.0.1"}),
        msgspec.msgpack.encode({"session": "127.0.0.1:0"}),
        msgspec.msgpack.encode({"session": "127.0.0.1:70000"}),
        msgspec.msgpack.encode({"session": "::1:5000"}),
        msgspec.msgpack.encode({"session": "name:5000"}),
        msgspec.msgpack.encode({"session": 5}),
        msgspec.msgpack.encode({"npu": "10.0.0.1"}),
    ],
)
async def test_nonsense_of_a_peer(two: Two, told: bytes) -> None:
    with pytest.raises(ProtocolError, match="engine is told as"):
        two.reader.meet("another", told)


@pytest.mark.parametrize(("address", "nbytes"), [(0, 10), (-5, 10), ((1 << 64) - 5, 10), (9, 0)])
async def test_a_region_that_cannot_be(two: Two, address: int, nbytes: int) -> None:
    with pytest.raises(ProtocolError, match="cannot be"):
        two.reader.attach(PEER, Region(1, address, nbytes, b"", -1))


# --- failures, and the end of a read --------------------------------------------------------------


async def test_a_failure_is_told_and_the_next_read_is_whole(two: Two) -> None:
    ORDERED.order(Fault("failing", landed=0.5, status=107019))
    with pytest.raises(EngineFault, match=r"acl rc=107019 \(kRuntimeError\)") as caught:
        await two.read(two.move())
    assert caught.value.peer == two.owner._native.session
    await two.read(two.move())
    assert two.same()


async def test_a_read_has_not_ended_while_its_bytes_may_come(two: Two) -> None:
    """The vendor says that it has failed; the device has yet to do what it was told to."""
    ORDERED.order(Fault("late", landed=0.25))
    reading = asyncio.create_task(two.read(two.move()))
    await ORDERED.until_stuck()
    done, _ = await asyncio.wait({reading}, timeout=0.2)
    assert not done
    ORDERED.release()
    with pytest.raises(EngineFault, match="aclrtSynchronizeEventWithTimeout"):
        await reading
    assert two.same()  # all that came late is there now, and nothing more will come


async def test_cancelling_does_not_end_it(two: Two) -> None:
    ORDERED.order(Fault("stuck", landed=0.5))
    reading = asyncio.create_task(two.read(two.move()))
    await ORDERED.until_stuck()
    reading.cancel()
    done, _ = await asyncio.wait({reading}, timeout=0.1)
    assert not done
    ORDERED.release()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert two.same()


async def test_a_slow_read_holds_up_nobody(two: Two) -> None:
    """As far as the double can tell: the vendor's own calls keep the interpreter's lock."""
    ORDERED.order(Fault("slow", seconds=0.2))
    reading = asyncio.create_task(two.read(two.move()))
    await asyncio.sleep(0.02)
    assert not reading.done()
    await reading
    assert two.same()


async def test_an_owner_that_has_closed(two: Two) -> None:
    two.owner.close()
    await asyncio.wrap_future(_closed(two.owner))
    with pytest.raises(EngineFault, match="connect failed"):
        await two.read(two.move())


async def test_closing(two: Two) -> None:
    two.reader.close()
    two.reader.close()
    with pytest.raises((EngineFault, ClosedError)):
        await two.read(two.move())


def _closed(engine: YuanrongTransferEngine) -> Any:
    """Done when the vendor's engine has ended."""
    import concurrent.futures

    future: concurrent.futures.Future[None] = concurrent.futures.Future()

    def wait() -> None:
        for thread in engine._executor._threads:
            thread.join()
        future.set_result(None)

    threading.Thread(target=wait, daemon=True).start()
    return future


def test_health_names_the_port_and_the_npu() -> None:
    native = NativeEngine(VENDOR, "127.0.0.1", None, "npu:3")
    engine = YuanrongTransferEngine(native, double.HostNpu())
    assert engine.health() == {"rpc_port": native.port, "device_name": "npu:3"}
    native.close()
