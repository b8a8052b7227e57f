"""The engine in one process: what it refuses, many writes at once, cancellation, its peers' words."""

from __future__ import annotations

import asyncio
import base64
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
from omni_async.backends.nixl.engine import NixlEngine
from omni_async.errors import EngineFault, ProtocolError
from omni_async.model import Move, Region, Role
from omni_async.pool.memory import AnonymousMemory, MappedBlock
from omni_async.testing.leaks import no_leaks
from tests.backends.nixl.conftest import AGENT
from tests.cases.processes import Processes

MIB = 1 << 20
SIZE = 64 * MIB


def engine(role: Role) -> NixlEngine:
    agent = Agent("test", ["UCX"], 0, answers=role == "receiver")
    return NixlEngine(agent, role, "cpu", ["UCX"], pins=False)


class Both:
    """A sender's engine and a receiver's, with memory."""

    def __init__(self) -> None:
        self.sender, self.receiver = engine("sender"), engine("receiver")
        self.source: MappedBlock = AnonymousMemory().allocate(SIZE)
        self.target: MappedBlock = AnonymousMemory(refuses=False).allocate(SIZE)
        self.here = self.sender.register(self.source.address, SIZE)
        self.there = self.receiver.register(self.target.address, SIZE)
        self.sender.meet("r", self.receiver.describe())
        self.receiver.meet("s", self.sender.describe())
        self.regions = {1: self.sender.attach("r", self.there._replace(id=1))}

    def move(self, source: int, target: int, nbytes: int) -> Move:
        return Move(self.source.address + source, 1, target, nbytes)

    async def write(self, *moves: Move) -> None:
        await self.sender.write("r", moves, self.regions)


@pytest.fixture
async def both(library: None) -> AsyncIterator[Both]:
    """By what UCX takes within one host."""
    made = Both()
    yield made
    made.sender.close()
    made.receiver.close()


@pytest.fixture(params=["default", "tcp"])
async def either(library: None, request: pytest.FixtureRequest) -> AsyncIterator[Both]:
    """The same, and over TCP."""
    with environment({"UCX_TLS": "tcp"} if request.param == "tcp" else {}):
        made = Both()
    yield made
    made.sender.close()
    made.receiver.close()


# --- what is refused ------------------------------------------------------------------------------


async def test_addresses_the_vendor_never_sees(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    await both.write(both.move(0, 0, 1))
    with monkeypatch.context() as patch:
        patch.setattr(Transfer, "post", None)
        for move, status in (
            ((0, 0, SIZE + 1), "out of bounds"),
            ((0, SIZE - 9, 10), "out of bounds"),
            ((0, -1, 10), "out of bounds"),
            ((0, 1 << 63, 10), "out of bounds"),
            ((0, 0, -1), "out of bounds"),
            ((-1, 0, 10), "not registered"),
            ((SIZE - 9, 0, 10), "not registered"),
            ((1 << 40, 0, 10), "not registered"),
        ):
            with pytest.raises(EngineFault) as caught:
                await both.write(both.move(0, 0, 1), both.move(*move))
            assert caught.value.status == status
        with pytest.raises(EngineFault, match="no region 2"):
            await both.write(both.move(0, 0, 1)._replace(region=2))
        await both.write()
        await both.write(both.move(0, 0, 0))
    await both.write(both.move(0, 0, 1))  # nothing is the worse for it


async def test_peers_that_are_not_known(both: Both) -> None:
    with pytest.raises(EngineFault, match="not known"):
        await both.sender.write("somebody", [both.move(0, 0, 1)], both.regions)
    both.sender.part("r")
    with pytest.raises(EngineFault, match="not known"):
        await both.write(both.move(0, 0, 1))


async def test_memory_that_is_registered_no_more(both: Both) -> None:
    both.sender.unregister(both.here)
    both.sender.unregister(both.here)
    with pytest.raises(EngineFault) as caught:
        await both.write(both.move(0, 0, 1))
    assert caught.value.status == "not registered"


def test_regions_that_cannot_be() -> None:
    good = msgspec.msgpack.encode(MemoryWord("DRAM", 0, b"x"))
    assert read_target("r", Region(1, 4096, 10, good, -1)).address == 4096
    for address, nbytes in ((0, 10), (-5, 10), (4096, 0), (4096, -1), ((1 << 64) - 9, 10)):
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


async def test_256_at_once(either: Both) -> None:
    """Every one arrives, in its place, and nothing is left to be asked about."""
    step = SIZE // 256
    for number in range(256):
        either.source.view(number * step, step)[:] = bytes([number]) * step

    async def one(number: int) -> None:
        await either.write(either.move(number * step, (255 - number) * step, step))

    await asyncio.gather(*map(one, range(256)))
    for number in range(256):
        assert bytes(either.target.view((255 - number) * step, step)) == bytes([number]) * step
    assert len(either.sender._watch) == 0


async def test_the_loop_goes_on_meanwhile(either: Both) -> None:
    either.source.view()[:] = b"\1" * SIZE
    turns = 0
    writing = asyncio.gather(
        *(either.write(either.move(n * 16 * MIB, n * 16 * MIB, 16 * MIB)) for n in range(4))
    )
    while not writing.done():
        await asyncio.sleep(0.001)
        turns += 1
    await writing
    assert turns > 3  # a call that blocked would let it have one
    assert bytes(either.target.view()) == b"\1" * SIZE


async def test_a_cancelled_write_goes_on(either: Both) -> None:
    """Whoever waited is free at once; the engine's own books are closed in the end."""
    either.source.view()[:] = b"\2" * SIZE
    task = asyncio.create_task(either.write(either.move(0, 0, SIZE)))
    await asyncio.sleep(0)  # it has begun
    assert len(either.sender._watch) == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    while len(either.sender._watch):  # noqa: ASYNC110 - nobody is told of it
        await asyncio.sleep(0.001)
    assert bytes(either.target.view()) == b"\2" * SIZE


# --- peers ----------------------------------------------------------------------------------------


async def test_a_second_line_to_a_peer(both: Both) -> None:
    """A receiver dials again before the end of its old line was noticed."""
    contact = both.sender._contacts["r"]
    both.sender.meet("r", both.receiver.describe())
    both.sender.part("r")
    await both.write(both.move(0, 0, 1))
    assert both.sender._contacts["r"] is contact


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
    descriptor, memory, address, nbytes = await peer.do("tell")
    with environment({"UCX_TLS": "tcp"}):
        sender = engine("sender")
    source = AnonymousMemory().allocate(SIZE)
    sender.register(source.address, SIZE)
    sender.meet("x", base64.b64decode(descriptor))
    region = Region(1, address, nbytes, base64.b64decode(memory), -1)
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
    descriptor, memory, address, nbytes = await peer.do("tell")
    async with no_leaks():
        with environment({"UCX_TLS": "tcp"}):
            sender = engine("sender")
        source = AnonymousMemory().allocate(SIZE)
        sender.register(source.address, SIZE)
        sender.meet("x", base64.b64decode(descriptor))
        region = Region(1, address, nbytes, base64.b64decode(memory), -1)
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
