"""The engine in one process: what it refuses, many writes at once, cancellation, its peers' words."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator

import msgspec
import pytest

from omni_async.abc import RemoteRegion, Revoke
from omni_async.backends.environment import environment
from omni_async.backends.nixl._native import Agent, Transfer
from omni_async.backends.nixl.contact import AgentWord, MemoryWord, read_agent, read_target
from omni_async.backends.nixl.engine import POST, NixlEngine
from omni_async.errors import EngineFault, ProtocolError
from omni_async.model import Move, Region, Role
from omni_async.pool.memory import AnonymousMemory
from omni_async.testing.leaks import no_leaks
from tests.backends import engine_pair
from tests.backends.engine_agent import read_told
from tests.backends.engine_pair import BAD_MOVES, BAD_REGIONS, MIB, SIZE
from tests.backends.engine_writes import Writes
from tests.backends.nixl.conftest import AGENT
from tests.cases.processes import Processes


def engine(role: Role) -> NixlEngine:
    agent = Agent("test", ["UCX"], 0, answers=role == "receiver")
    return NixlEngine(agent, role, "cpu", ["UCX"], pins=False)


class Both(engine_pair.Both[NixlEngine]):
    """Each knows the other."""

    def __init__(self) -> None:
        super().__init__(engine("sender"), engine("receiver"), refuses=False)
        self.receiver.meet("s", self.sender.describe())


@pytest.fixture
async def both(library: None) -> AsyncIterator[Both]:
    """By what UCX takes within one host."""
    made = Both()
    yield made
    made.close()


@pytest.fixture(params=["default", "tcp"])
async def either(library: None, request: pytest.FixtureRequest) -> AsyncIterator[Both]:
    """The same, and over TCP."""
    with environment({"UCX_TLS": "tcp"} if request.param == "tcp" else {}):
        made = Both()
    yield made
    made.close()


@pytest.fixture
def written(either: Both) -> Both:
    """For the tests of any engine."""
    return either


class TestWrites(Writes):
    pass


# --- what is refused ------------------------------------------------------------------------------


async def test_addresses_the_vendor_never_sees(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    await both.write(both.move(0, 0, 1))
    with monkeypatch.context() as patch:
        patch.setattr(Transfer, "post", None)
        for move, status in BAD_MOVES:
            with pytest.raises(EngineFault) as caught:
                await both.write(both.move(0, 0, 1), both.move(*move))
            assert caught.value.status == status
        with pytest.raises(EngineFault, match="no region 2"):
            await both.write(both.move(0, 0, 1)._replace(region=2))
        await both.write()
        await both.write(both.move(0, 0, 0))
    await both.write(both.move(0, 0, 1))  # nothing is the worse for it


async def test_memory_that_is_registered_no_more(both: Both) -> None:
    both.sender.unregister(both.here)
    both.sender.unregister(both.here)
    with pytest.raises(EngineFault) as caught:
        await both.write(both.move(0, 0, 1))
    assert caught.value.status == "not registered"


def test_regions_that_cannot_be() -> None:
    good = msgspec.msgpack.encode(MemoryWord("DRAM", 0, b"x"))
    assert read_target("r", Region(1, 4096, 10, good, -1)).address == 4096
    for address, nbytes in BAD_REGIONS:
        with pytest.raises(ProtocolError, match="cannot be"):
            read_target("r", Region(1, address, nbytes, good, -1))
    words = (MemoryWord("TAPE", 0, b"x"), MemoryWord("DRAM", -1, b"x"), {"memory": "DRAM"})
    for descriptor in (b"", b"junk", b"\xff\xff", *map(msgspec.msgpack.encode, words)):
        with pytest.raises(ProtocolError, match="is told as"):
            read_target("r", Region(1, 4096, 10, descriptor, -1))


@pytest.mark.parametrize(
    "descriptor",
    [
        b"",
        b"junk",
        b"\xff",
        msgspec.msgpack.encode(AgentWord("", b"x")),
        msgspec.msgpack.encode(AgentWord("x", b"")),
    ],
)
def test_agents_that_are_told_as_nonsense(descriptor: bytes) -> None:
    with pytest.raises(ProtocolError, match="is told as"):
        read_agent(descriptor)


async def test_metadata_that_the_vendor_refuses(either: Both) -> None:
    """What cannot be seen to be nonsense is told to whoever writes."""
    true = read_agent(either.receiver.describe())
    for name, metadata, said in (
        (true.name, b"nixl" * 20, "cannot be used"),
        (true.name, true.connection[:40], "cannot be used"),
        ("somebody-else", true.connection, "not of its own"),
    ):
        either.sender.meet(said + name, msgspec.msgpack.encode(AgentWord(name, metadata)))
        with pytest.raises(EngineFault, match=said):
            await either.sender.write(said + name, [either.move(0, 0, 1)], either.regions)
    word = MemoryWord("DRAM", 0, b"nixl" * 20)
    wrong = either.there._replace(id=2, descriptor=msgspec.msgpack.encode(word))
    move, regions = either.move(0, 0, 1)._replace(region=2), {2: either.sender.attach("r", wrong)}
    with pytest.raises(EngineFault, match="could not write"):
        await either.sender.write("r", [move], regions)
    await either.write(either.move(0, 0, 1))


# --- many at once ---------------------------------------------------------------------------------


# --- peers ----------------------------------------------------------------------------------------


async def test_regions_that_come_and_go(either: Both) -> None:
    """What an agent knows of a region cannot be taken back; a new one at its place counts all the same."""
    half = SIZE // 2
    either.receiver.unregister(either.there)
    for fill in (1, 2, 3):
        for at in (0, half):
            either.source.view(0, 9)[:] = bytes([fill]) * 9
            region = either.receiver.register(either.target.address + at, half)
            regions = {region.id: either.sender.attach("r", region)}
            move = either.move(0, 5, 9)._replace(region=region.id)
            await either.sender.write("r", [move], regions)
            assert bytes(either.target.view(at + 5, 9)) == bytes([fill]) * 9
            either.receiver.unregister(region)
            either.sender.detach(regions[region.id])
    either.sender.detach(RemoteRegion(1, 1, 0, either.regions[1].handle))


async def test_a_connection_that_was_lost(either: Both) -> None:
    """The write that meets it fails; the next one goes over a new one."""
    await either.write(either.move(0, 0, 1))
    contact = either.sender._contacts["r"]
    await either.sender._watch.run(either.sender._agent.forget, contact.name)
    with pytest.raises(EngineFault, match="could not write"):
        await either.write(either.move(0, 0, 1))
    either.source.view(0, 9)[:] = b"\6" * 9
    await either.write(either.move(0, 0, 9))
    assert bytes(either.target.view(0, 9)) == b"\6" * 9


async def test_a_long_write_that_fails_in_its_middle(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes in several posts; its error is told after the end of the last one that began."""
    await both.write(both.move(0, 0, 1))
    agent = both.sender._agent
    native = agent.native
    posted: list[int] = []

    class Failing:
        def __getattr__(self, name: str) -> object:
            return getattr(native, name)

        def postXferReq(self, handle: int, word: bytes) -> object:
            posted.append(handle)
            if len(posted) == 2:
                raise agent.errors[0]("NIXL_ERR_BACKEND")
            return native.postXferReq(handle, word)

    monkeypatch.setattr(agent, "native", Failing())
    both.source.view()[:] = b"\4" * SIZE
    with pytest.raises(EngineFault, match=f"could not write {SIZE:,} bytes") as caught:
        await both.write(both.move(0, 0, SIZE))
    assert caught.value.status == "BACKEND"
    assert len(posted) == 2 < SIZE // POST
    assert not len(both.sender._watch)
    assert not agent._active
    assert bytes(both.target.view(SIZE - POST, POST)) != b"\4" * POST
    await both.write(both.move(0, 0, SIZE))
    assert bytes(both.target.view()) == b"\4" * SIZE


async def test_the_same_name_again(both: Both) -> None:
    """A peer that came back under the name of its predecessor is another agent."""
    await both.write(both.move(0, 0, 1))
    with environment({"UCX_TLS": os.environ.get("UCX_TLS", "all")}):
        second = engine("receiver")
    word = read_agent(both.receiver.describe())
    both.sender.part("r")
    both.receiver.close()
    target = AnonymousMemory().allocate(MIB)
    region = second.register(target.address, MIB)
    told = read_agent(second.describe())
    assert told.name != word.name
    both.sender.meet("r", second.describe())
    both.source.view(0, 9)[:] = b"\5" * 9
    await both.sender.write("r", [both.move(0, 0, 9)], {1: both.sender.attach("r", region)})
    assert bytes(target.view(0, 9)) == b"\5" * 9
    second.close()


async def test_the_end_of_a_line_ends_writes_at_once(processes: Processes) -> None:
    """A receiver stands still, and is given up: its slots here are free again, whatever it does later."""
    peer = processes.start(AGENT, role="receiver", nbytes=SIZE, tls="tcp")
    descriptor, region = read_told(await peer.do("tell"))
    with environment({"UCX_TLS": "tcp"}):
        sender = engine("sender")
    source = AnonymousMemory().allocate(SIZE)
    sender.register(source.address, SIZE)
    sender.meet("x", descriptor)
    regions = {1: sender.attach("x", region)}
    await sender.write("x", [Move(source.address, 1, 0, 1)], regions)
    peer.signal(signal.SIGSTOP)
    writing = asyncio.create_task(sender.write("x", [Move(source.address, 1, 0, SIZE)], regions))
    await asyncio.sleep(0.2)
    assert not writing.done()
    begun = time.monotonic()
    sender.part("x")
    with pytest.raises(EngineFault, match="could not write"):
        await writing
    assert time.monotonic() - begun < 2
    sender.close()
    peer.signal(signal.SIGCONT)


# --- the end --------------------------------------------------------------------------------------


@pytest.mark.parametrize("tls", ["", "tcp"], ids=["default", "tcp"])
async def test_nothing_is_left(library: None, tls: str) -> None:
    for _ in range(
        2
    ):  # the vendor's library itself keeps a few descriptors from its first agent on
        async with no_leaks():
            with environment({"UCX_TLS": tls} if tls else {}):
                both = Both()
            await both.write(both.move(0, 0, SIZE))
            both.sender.close()
            both.sender.close()
            both.receiver.close()
            with pytest.raises(EngineFault, match="not known"):
                await both.write(both.move(0, 0, 1))
            del both


async def test_closing_ends_what_is_under_way(processes: Processes) -> None:
    peer = processes.start(AGENT, role="receiver", nbytes=SIZE, tls="tcp")
    descriptor, region = read_told(await peer.do("tell"))
    async with no_leaks():
        with environment({"UCX_TLS": "tcp"}):
            sender = engine("sender")
        source = AnonymousMemory().allocate(SIZE)
        sender.register(source.address, SIZE)
        sender.meet("x", descriptor)
        regions = {1: sender.attach("x", region)}
        await sender.write("x", [Move(source.address, 1, 0, 1)], regions)
        peer.signal(signal.SIGSTOP)
        writing = asyncio.create_task(
            sender.write("x", [Move(source.address, 1, 0, SIZE)], regions)
        )
        await asyncio.sleep(0.2)
        sender.close()
        with pytest.raises(EngineFault, match="could not write"):
            await writing
        del sender, regions, writing
    peer.signal(signal.SIGCONT)


async def test_a_handle_that_cannot_be_released_yet(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is kept, and tried again with the next one."""
    agent = both.sender._agent
    native, stuck = agent.native, [True]

    class Holding:
        def __getattr__(self, name: str) -> object:
            return getattr(native, name)

        def releaseXferReq(self, handle: int) -> object:
            if stuck:
                raise agent.errors[0]("NIXL_ERR_REPOST_ACTIVE")
            return native.releaseXferReq(handle)

    monkeypatch.setattr(agent, "native", Holding())
    await both.write(both.move(0, 0, 1))
    await both.write(both.move(0, 0, 1))
    assert len(agent._active) == 2
    stuck.clear()
    await both.write(both.move(0, 0, 1))
    assert not agent._active


def test_what_it_says_of_itself() -> None:
    assert NixlEngine.revoke is Revoke.PAGES
    assert not NixlEngine.recall
