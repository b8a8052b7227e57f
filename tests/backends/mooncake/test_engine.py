"""The engine in one process: what it refuses, many writes at once, cancellation, its peers' words."""

from __future__ import annotations

import asyncio
import base64
import signal
import threading
import time
from collections.abc import AsyncIterator

import pytest

from omni_async.abc import RemoteRegion, Revoke
from omni_async.backends.mooncake import contact as contact_module
from omni_async.backends.mooncake._native import NativeEngine
from omni_async.backends.mooncake.contact import EngineWord, read_word
from omni_async.backends.mooncake.engine import MooncakeEngine, revoke_of
from omni_async.errors import EngineFault, ProtocolError
from omni_async.model import Move, Region
from omni_async.pool.memory import AnonymousMemory, MappedBlock
from tests.backends.mooncake.conftest import AGENT
from tests.cases.processes import Processes

MIB = 1 << 20
SIZE = 64 * MIB


class Both:
    """A sender's engine and a receiver's, with memory."""

    def __init__(self, native: NativeEngine) -> None:
        self.sender = MooncakeEngine(native, "sender", "cpu", pins=False)
        self.receiver = MooncakeEngine(native, "receiver", "cpu", pins=False)
        self.source: MappedBlock = AnonymousMemory().allocate(SIZE)
        self.target: MappedBlock = AnonymousMemory().allocate(SIZE)
        self.here = self.sender.register(self.source.address, SIZE)
        self.there = self.receiver.register(self.target.address, SIZE)
        self.sender.meet("r", self.receiver.describe())
        self.regions = {1: self.sender.attach("r", self.there._replace(id=1))}

    def move(self, source: int, target: int, nbytes: int) -> Move:
        return Move(self.source.address + source, 1, target, nbytes)

    async def write(self, *moves: Move) -> None:
        await self.sender.write("r", moves, self.regions)


@pytest.fixture
async def both(native: NativeEngine) -> AsyncIterator[Both]:
    made = Both(native)
    yield made
    made.sender.close()
    made.receiver.close()


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("move", "status"),
    [
        ((0, 0, SIZE + 1), "out of bounds"),
        ((0, SIZE - 9, 10), "out of bounds"),
        ((0, -1, 10), "out of bounds"),
        ((0, 1 << 63, 10), "out of bounds"),
        ((0, 0, -1), "out of bounds"),
        ((-1, 0, 10), "not registered"),
        ((SIZE - 9, 0, 10), "not registered"),
        ((1 << 40, 0, 10), "not registered"),
    ],
)
async def test_addresses_the_vendor_never_sees(
    both: Both, monkeypatch: pytest.MonkeyPatch, move: tuple[int, int, int], status: str
) -> None:
    await both.write(both.move(0, 0, 1))

    def seen(*args: object) -> None:
        raise AssertionError("the vendor was told")

    with monkeypatch.context() as patch:
        patch.setattr(NativeEngine, "submit", seen)
        with pytest.raises(EngineFault) as caught:
            await both.write(both.move(0, 0, 1), both.move(*move))
    assert caught.value.status == status
    await both.write(both.move(0, 0, 1))  # nothing is the worse for it


async def test_regions_and_peers_that_are_not_known(both: Both) -> None:
    with pytest.raises(EngineFault, match="no region 2"):
        await both.write(both.move(0, 0, 1)._replace(region=2))
    with pytest.raises(EngineFault, match="not known"):
        await both.sender.write("somebody", [both.move(0, 0, 1)], both.regions)
    both.sender.part("r")
    both.sender.part("r")
    with pytest.raises(EngineFault, match="not known"):
        await both.write(both.move(0, 0, 1))


@pytest.mark.parametrize(
    ("address", "nbytes"), [(0, 10), (-5, 10), (4096, 0), (4096, -1), ((1 << 64) - 9, 10)]
)
async def test_regions_that_cannot_be(both: Both, address: int, nbytes: int) -> None:
    with pytest.raises(ProtocolError, match="cannot be"):
        both.sender.attach("r", Region(1, address, nbytes, b"", -1))


async def test_memory_is_registered_once(both: Both) -> None:
    with pytest.raises(EngineFault, match="cannot register"):
        both.sender.register(both.source.address, 4096)
    both.sender.unregister(both.here)
    both.sender.unregister(both.here)
    with pytest.raises(EngineFault) as caught:
        await both.write(both.move(0, 0, 1))
    assert caught.value.status == "not registered"


async def test_no_bytes_are_no_write(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    await both.write(both.move(0, 0, 1))
    monkeypatch.setattr(NativeEngine, "submit", None)
    await both.write()
    await both.write(both.move(0, 0, 0))


# --- many at once ---------------------------------------------------------------------------------


async def test_256_at_once(both: Both) -> None:
    """Every one arrives, in its place, and nothing is left to be asked about."""
    step = SIZE // 256
    for number in range(256):
        both.source.view(number * step, step)[:] = bytes([number]) * step

    async def one(number: int) -> None:
        await both.write(both.move(number * step, (255 - number) * step, step))

    await asyncio.gather(*map(one, range(256)))
    for number in range(256):
        assert bytes(both.target.view((255 - number) * step, step)) == bytes([number]) * step
    assert len(both.sender._watch) == 0


async def test_more_than_the_engine_queues(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation of thousands of pieces is fed to the engine: of what exceeds its queue it fails all."""
    pieces, step = 6000, 2
    wanted = bytes(number % 251 for number in range(pieces * step))
    both.source.view(0, len(wanted))[:] = wanted
    under_way: list[int] = []
    begin = contact_module.Batch._begin

    def seen(batch: contact_module.Batch) -> None:
        begin(batch)
        under_way.append(len(batch._left))

    monkeypatch.setattr(contact_module.Batch, "_begin", seen)
    await both.write(*(both.move(n * step, n * step, step) for n in range(pieces)))
    assert bytes(both.target.view(0, len(wanted))) == wanted
    assert max(under_way) == contact_module.AT_ONCE


async def test_what_is_closed_begins_no_more_pieces(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    await both.write(both.move(0, 0, 1))
    monkeypatch.setattr(contact_module, "AT_ONCE", 2)
    writing = asyncio.ensure_future(both.write(*(both.move(n, n, 1) for n in range(100))))
    await asyncio.sleep(0)  # it has begun
    monkeypatch.setattr(NativeEngine, "knows", lambda *_: False)  # no last word of the contact's
    monkeypatch.setattr(NativeEngine, "submit", None)
    both.sender.part("r")
    with pytest.raises(EngineFault) as caught:
        await writing
    assert caught.value.status == "closed"


async def test_after_a_piece_that_failed_no_more_are_begun(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    await both.write(both.move(0, 0, 1))
    monkeypatch.setattr(contact_module, "AT_ONCE", 1)
    begun: list[object] = []
    submit = NativeEngine.submit

    def third_fails(self: NativeEngine, session: str, *target: int) -> object:
        begun.append(target)
        nowhere = 4096 if len(begun) == 3 else target[1]
        return submit(self, session, target[0], nowhere, target[2])

    monkeypatch.setattr(NativeEngine, "submit", third_fails)
    with pytest.raises(EngineFault, match="status -1"):
        await both.write(*(both.move(n, n, 1) for n in range(100)))
    assert len(begun) == 3


async def test_the_loop_goes_on_meanwhile(both: Both) -> None:
    both.source.view()[:] = b"\1" * SIZE
    turns = 0
    writing = asyncio.gather(
        *(both.write(both.move(n * 16 * MIB, n * 16 * MIB, 16 * MIB)) for n in range(4))
    )
    while not writing.done():
        await asyncio.sleep(0.001)
        turns += 1
    await writing
    assert turns > 3  # a call that blocked would let it have one
    assert bytes(both.target.view()) == b"\1" * SIZE


async def test_a_cancelled_write_goes_on(both: Both) -> None:
    """Whoever waited is free at once; the engine's own books are closed in the end."""
    both.source.view()[:] = b"\2" * SIZE
    await both.write(both.move(0, 0, 1))
    task = asyncio.create_task(both.write(both.move(0, 0, SIZE)))
    await asyncio.sleep(0)  # it has begun
    assert len(both.sender._watch) == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    while len(both.sender._watch):  # noqa: ASYNC110 - nobody is told of it
        await asyncio.sleep(0.001)
    assert bytes(both.target.view()) == b"\2" * SIZE


# --- peers ----------------------------------------------------------------------------------------


async def test_a_peer_is_known_before_it_is_written_to(both: Both) -> None:
    contact = both.sender._contacts["r"]
    await contact.wait_ready()
    assert contact.ready
    assert not both.receiver._contacts  # it has nothing to write


async def test_a_second_line_to_a_peer(both: Both) -> None:
    """A receiver dials again before the end of its old line was noticed."""
    contact = both.sender._contacts["r"]
    both.sender.meet("r", both.receiver.describe())
    both.sender.part("r")
    await both.write(both.move(0, 0, 1))
    assert both.sender._contacts["r"] is contact


async def test_writes_wait_for_one_contact(native: NativeEngine) -> None:
    both = Both(native)
    await asyncio.gather(*(both.write(both.move(n, n, 1)) for n in range(10)))
    both.sender.close()
    both.receiver.close()


@pytest.mark.parametrize("session", ["127.0.0.1:1", "no.such.host.invalid:1"])
async def test_a_peer_that_is_not_there(both: Both, session: str) -> None:
    both.sender.meet("x", session.encode())
    for _ in range(2):
        with pytest.raises(EngineFault, match="no answer"):
            await both.sender.write("x", [both.move(0, 0, 1)], both.regions)


async def test_a_peer_of_whom_only_the_session_is_told(both: Both) -> None:
    """One that speaks another wire has no page to try the way with."""
    session = read_word(both.receiver.describe()).session
    both.sender.meet("x", session.encode())
    both.source.view(0, 9)[:] = b"\3" * 9
    await both.sender.write("x", [both.move(0, 0, 9)], both.regions)
    assert bytes(both.target.view(0, 9)) == b"\3" * 9


async def test_closing_ends_a_wait_for_a_peer(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = threading.Event()
    monkeypatch.setattr(NativeEngine, "reach", lambda *args: hanging.wait(20))
    monkeypatch.setattr(NativeEngine, "knows", lambda *args: False)
    both.sender.meet("x", both.receiver.describe())
    waiting = asyncio.create_task(both.sender.write("x", [both.move(0, 0, 1)], both.regions))
    await asyncio.sleep(0.01)
    both.sender.close()
    with pytest.raises(EngineFault, match="was closed"):
        await waiting
    hanging.set()


async def test_a_peer_that_is_stopped_while_it_is_opened(
    both: Both, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vendor lets all writes wait for it, a minute long; here it is two seconds."""
    await both.write(both.move(0, 0, 1))
    peer = processes.start(AGENT, role="receiver", nbytes=MIB)
    descriptor, address, nbytes = await peer.do("tell")
    reach, stopping = NativeEngine.reach, [signal.SIGSTOP]

    def stop_then(self: NativeEngine, session: str) -> None:
        reach(self, session)
        if stopping:
            peer.signal(stopping.pop())
            time.sleep(0.1)  # until all of its threads stand still

    monkeypatch.setattr(NativeEngine, "reach", stop_then)
    both.sender.meet("x", base64.b64decode(descriptor))
    region = both.sender.attach("x", Region(1, address, nbytes, b"", -1))
    waiting = asyncio.create_task(both.sender.write("x", [both.move(0, 0, 9)], {1: region}))
    while not both.sender._native.waits:  # noqa: ASYNC110 - nobody is told of it
        await asyncio.sleep(0.001)
    begun = time.monotonic()
    await both.write(both.move(0, 0, 1))
    assert 1 < time.monotonic() - begun < 5
    assert not waiting.done()
    peer.signal(signal.SIGCONT)
    await asyncio.wait_for(waiting, 10)


async def test_while_a_peer_is_opened_others_start_off_the_loop(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever starts a write then waits for the vendor's lock: a thread may, the loop may not."""
    await both.write(both.move(0, 0, 1))
    threads: list[object] = []
    submit = NativeEngine.submit

    def seen(self: NativeEngine, *args: object) -> object:
        threads.append(threading.current_thread())
        return submit(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(NativeEngine, "submit", seen)
    await both.write(both.move(0, 0, 1))
    monkeypatch.setattr(NativeEngine, "waits", True)
    await both.write(both.move(0, 0, 1))
    assert threads[0] is threading.main_thread()
    assert threads[1] is not threading.main_thread()


async def test_a_way_that_stays_broken(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    await both.write(both.move(0, 0, 1))
    contact = both.sender._contacts["r"]
    monkeypatch.setattr(contact, "_word", EngineWord(contact.session, 4096))  # nothing is there
    monkeypatch.setattr(contact, "_sound", False)
    monkeypatch.setattr(contact_module, "ROUNDS", 1)
    with pytest.raises(EngineFault, match="takes no writes"):
        await both.write(both.move(0, 0, 1))


# --- words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "descriptor",
    [b"", b"{", b"{}", b'{"session": 5}', b"host", b"host:", b":5", b"host:x", b"\xff:5"],
)
async def test_a_peer_that_tells_nonsense(both: Both, descriptor: bytes) -> None:
    with pytest.raises(ProtocolError):
        both.sender.meet("x", descriptor)


@pytest.mark.parametrize(
    ("protocol", "device", "revoke"),
    [
        ("tcp", "cpu", Revoke.PAGES),
        ("tcp", "cuda:0", Revoke.NOTHING),
        ("rdma", "cpu", Revoke.REGION),
        ("rdma", "cuda", Revoke.REGION),
        ("nvlink", "cuda", Revoke.NOTHING),
    ],
)
def test_what_ends_access(protocol: str, device: str, revoke: Revoke) -> None:
    assert revoke_of(protocol, device) is revoke


async def test_a_region_is_forgotten_without_ado(both: Both) -> None:
    both.sender.detach(RemoteRegion(1, 1, 0, 0))
