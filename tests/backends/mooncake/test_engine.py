"""The engine in one process: what it refuses, many writes at once, cancellation, its peers' words."""

from __future__ import annotations

import asyncio
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
from omni_async.model import Region
from tests.backends import engine_pair
from tests.backends.engine_agent import read_told
from tests.backends.engine_pair import BAD_MOVES, BAD_REGIONS, MIB
from tests.backends.engine_writes import Writes
from tests.backends.mooncake.conftest import AGENT
from tests.cases.processes import Processes


class Both(engine_pair.Both[MooncakeEngine]):
    """Over TCP, by one engine of the vendor's."""

    def __init__(self, native: NativeEngine) -> None:
        sender, receiver = (
            MooncakeEngine(native, role, "cpu", pins=False) for role in ("sender", "receiver")
        )
        super().__init__(sender, receiver)


@pytest.fixture
async def both(native: NativeEngine) -> AsyncIterator[Both]:
    made = Both(native)
    yield made
    made.close()


@pytest.fixture
def written(both: Both) -> Both:
    """For the tests of any engine."""
    return both


class TestWrites(Writes):
    pass


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(("move", "status"), BAD_MOVES)
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


@pytest.mark.parametrize(("address", "nbytes"), BAD_REGIONS)
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


# --- peers ----------------------------------------------------------------------------------------


async def test_a_peer_is_known_before_it_is_written_to(both: Both) -> None:
    contact = both.sender._contacts["r"]
    await contact.wait_ready()
    assert contact.ready
    assert not both.receiver._contacts  # it has nothing to write


async def test_writes_wait_for_one_contact(native: NativeEngine) -> None:
    both = Both(native)
    await asyncio.gather(*(both.write(both.move(n, n, 1)) for n in range(10)))
    both.close()


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
    descriptor, told = read_told(await peer.do("tell"))
    reach, stopping = NativeEngine.reach, [signal.SIGSTOP]

    def stop_then(self: NativeEngine, session: str) -> None:
        reach(self, session)
        if stopping:
            peer.signal(stopping.pop())
            time.sleep(0.1)  # until all of its threads stand still

    monkeypatch.setattr(NativeEngine, "reach", stop_then)
    both.sender.meet("x", descriptor)
    region = both.sender.attach("x", told)
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
