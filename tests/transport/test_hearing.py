"""A peer that goes while bytes are moved over connections of their own: its end is told, not what it broke.

In: a move that fails in the moment in which its peer goes; the line's end, held back. Out: PeerLost, not EngineFault.
Never: takes a failure for a loss where the peer stays.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from omni_async.abc import Engine, Options, RemoteRegion, Revoke
from omni_async.errors import EngineFault, PeerLost
from omni_async.model import Move, Role, Verb
from omni_async.registry import register_backend
from omni_async.testing.doubles.addressed import LoopbackZmq
from omni_async.testing.doubles.loopback import LoopbackEngine
from omni_async.transport.hearing import HEARD_OUT
from omni_async.transport.link import Link
from omni_async.transport.receivers import Receivers
from tests.ends import Ends, ends
from tests.kv.pairs import SOURCE, TARGET, joined, pair

PAYLOAD = bytes(range(250)) * 400


class Gate:
    """Holds moves until their peer is going; then they fail, for as long as it is shut."""

    def __init__(self) -> None:
        self.shut = True
        self.reached = asyncio.Event()
        self.going = asyncio.Event()

    async def pass_by(self) -> None:
        if self.shut:
            self.reached.set()
            await self.going.wait()
            raise EngineFault("connect failed", status=5)


class GatedEngine(LoopbackEngine):
    gate: Gate

    async def read(
        self, peer: str, moves: Sequence[Move], regions: dict[int, RemoteRegion]
    ) -> None:
        await self.gate.pass_by()
        await super().read(peer, moves, regions)

    async def write(
        self, peer: str, moves: Sequence[Move], regions: dict[int, RemoteRegion]
    ) -> None:
        await self.gate.pass_by()
        await super().write(peer, moves, regions)


class GatedWrite(LoopbackZmq):
    name = "GatedWriteDouble"
    alias = "gated-write"

    def engine(self, options: Options, role: Role) -> Engine:
        return GatedEngine(self.verb, self.revoke)


class GatedRead(GatedWrite):
    name = "GatedReadDouble"
    alias = "gated-read"
    verb = Verb.READ
    revoke = Revoke.NOTHING


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Gate]:
    """Made within the loop."""
    register_backend(GatedWrite())
    register_backend(GatedRead())

    def made() -> Gate:
        gate = Gate()
        monkeypatch.setattr(GatedEngine, "gate", gate, raising=False)
        return gate

    return made


Kill = Callable[[Any], None]


@pytest.fixture
def kill(monkeypatch: pytest.MonkeyPatch) -> Kill:
    """Ends a transport of this process as a kill would: it says nothing more, and its end is heard a moment later."""

    def killed(peer: Any) -> None:
        for handler in (Link, Receivers):
            monkeypatch.setattr(handler, "received", lambda *_: None)
            monkeypatch.setattr(handler, "ended", _later(handler.ended))
        with warnings.catch_warnings():  # nothing is waited for, so an engine may still use a slot
            warnings.simplefilter("ignore", ResourceWarning)
            peer.abort()

    return killed


def _later(heard: Callable[..., None]) -> Callable[..., None]:
    def ended(*arguments: Any) -> None:
        asyncio.get_running_loop().call_later(0.05, heard, *arguments)

    return ended


async def _lost(
    gate: Gate, waiting: Coroutine[Any, Any, Any], kill: Kill, peer: Any
) -> BaseException | None:
    """What comes of it when the peer goes and the move fails at once."""
    outcome = asyncio.ensure_future(waiting)
    await asyncio.wait_for(gate.reached.wait(), 5)
    kill(peer)
    gate.going.set()
    await asyncio.wait([outcome], timeout=5)
    return outcome.exception()


def _reading(namespace: str) -> Any:
    return ends("gated-read", namespace, memory_pool_size=4 << 20)


async def _twice(where: Ends, gate: Gate) -> None:
    """The first get fails, and its payload is there for the next one."""
    async with where.open("sender", "0") as tx, where.open("receiver", "1") as rx:
        await tx.put("0", "1", "k", PAYLOAD)
        gate.going.set()
        began = asyncio.get_running_loop().time()
        with pytest.raises(EngineFault, match="connect failed"):
            await rx.get("0", "1", "k", timeout=5)
        assert asyncio.get_running_loop().time() - began < HEARD_OUT + 1
        gate.shut = False
        assert (await rx.get("0", "1", "k", timeout=5)).value == PAYLOAD


async def test_a_failure_under_a_peer_that_stays_is_told(
    namespace: str, gate: Callable[[], Gate]
) -> None:
    with _reading(namespace) as where:
        await _twice(where, gate())


async def test_a_get(namespace: str, gate: Callable[[], Gate], kill: Kill) -> None:
    with _reading(namespace) as where:
        async with where.open("sender", "0") as tx, where.open("receiver", "1") as rx:
            await tx.put("0", "1", "k", PAYLOAD)
            error = await _lost(gate(), rx.get("0", "1", "k", timeout=5), kill, tx)
            assert isinstance(error, PeerLost), error
            assert rx.health().quarantined == 0


async def test_a_stream(namespace: str, gate: Callable[[], Gate], kill: Kill) -> None:
    with _reading(namespace) as where:
        async with where.open("sender", "0") as tx, where.open("receiver", "1") as rx:
            writer = tx.edge("0", "1").writer("s")
            await writer.__aenter__()
            async with rx.edge("0", "1").reader("s") as reader:
                await writer.send(PAYLOAD)
                error = await _lost(gate(), reader.read(timeout=5), kill, tx)
                assert isinstance(error, PeerLost), error


async def test_a_read_of_caches(namespace: str, gate: Callable[[], Gate], kill: Kill) -> None:
    source, target = pair()
    with _reading(namespace) as where:
        async with joined(where, source, target) as (producer, consumer):
            progress = await consumer.receive("r", TARGET)
            session = await producer.write_to("r", SOURCE)
            await session.seal()
            error = await _lost(gate(), progress.all(timeout=5), kill, producer.transport)
            assert isinstance(error, PeerLost), error
            await progress.released(timeout=5)


async def test_a_write_of_caches(namespace: str, gate: Callable[[], Gate], kill: Kill) -> None:
    source, target = pair()
    with ends("gated-write", namespace, memory_pool_size=4 << 20) as where:
        async with joined(where, source, target) as (producer, consumer):
            await consumer.receive("r", TARGET)
            session = await producer.write_to("r", SOURCE)
            await session.seal()
            error = await _lost(gate(), session.delivered(timeout=5), kill, consumer.transport)
            assert isinstance(error, PeerLost), error
