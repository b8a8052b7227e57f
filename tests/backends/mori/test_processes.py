"""Whole transports in two processes, on the double: each fault that can be ordered, and not one wrong byte."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import pytest

import omni_async
from omni_async.errors import EngineFault, PeerLost, TransferTimeout
from omni_async.testing.doubles.mori import MISUSE, uninstall
from omni_async.testing.leaks import quiet
from omni_async.testing.processes import PeerProcess
from omni_async.testing.recipes import pattern, pattern_array
from omni_async.testing.rig import settle
from omni_async.testing.sides import RemoteSide
from tests.ends import Ends, ends, led

MIB = 1 << 20
NBYTES = 4 * MIB
POOL = 64 * MIB
ORDERED = "omni_async.testing.doubles.ordered"


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    yield
    uninstall()
    assert not MISUSE


class Far(NamedTuple):
    """A sender in a process of its own, which writes; the receiver is here."""

    here: Ends
    peer: PeerProcess
    tx: RemoteSide
    rx: omni_async.Transport

    async def order(self, kind: str, **fault: Any) -> None:
        await self.use("order", kind=kind, **fault)

    async def use(self, what: str, **arguments: Any) -> Any:
        return await self.peer.call("use", target=f"{ORDERED}:{what}", **arguments)

    async def arrives(self, *seeds: int) -> list[Any]:
        """Payloads with these patterns, each right."""
        for seed in seeds:
            await self.tx.put(f"k{seed}", pattern(NBYTES, seed))
        held = [await self.rx.get("0", "1", f"k{seed}", timeout=10) for seed in seeds]
        for seed, delivery in zip(seeds, held, strict=True):
            assert (delivery.value == pattern_array(NBYTES, seed)).all()
        return held


@contextlib.asynccontextmanager
async def far(namespace: str, **extra: Any) -> AsyncIterator[Far]:
    with ends("mori-on-double", namespace, memory_pool_size=POOL, **extra) as here:
        async with led() as peer, here.open("receiver", "1") as rx:
            tx = await here.away(peer, "sender", "0")
            yield Far(here, peer, tx, rx)
            if peer.alive:
                await peer.call("use", target=f"{ORDERED}:clear")
                await tx.close()


@pytest.mark.soak
async def test_slow(namespace: str) -> None:
    async with far(namespace) as pair:
        await pair.order("slow", seconds=0.2)
        await pair.arrives(1)


@pytest.mark.parametrize("kind", [pytest.param("failing", marks=pytest.mark.soak), "out_of_bounds"])
async def test_failing(namespace: str, kind: str) -> None:
    async with far(namespace) as pair:
        await pair.arrives(1)
        await pair.order(kind, landed=0.5)
        await pair.tx.put("k", pattern(NBYTES, 2))
        with pytest.raises(EngineFault, match="could not write"):
            await pair.rx.get("0", "1", "k", timeout=10)
        await quiet(pair.rx)
        delivery = await pair.rx.get("0", "1", "k", timeout=10)  # it stayed on offer
        assert (delivery.value == pattern_array(NBYTES, 2)).all()


@pytest.mark.parametrize("how", ["timeout", pytest.param("cancel", marks=pytest.mark.soak)])
async def test_stuck_until_everybody_has_given_up(namespace: str, how: str) -> None:
    """No slot is freed early: what comes meanwhile gets others."""
    async with far(namespace) as pair:
        await pair.order("stuck", landed=0.5)
        await pair.tx.put("late", pattern(NBYTES, 1))
        limit = 1.0 if how == "timeout" else 20.0
        getting = asyncio.create_task(pair.rx.get("0", "1", "late", timeout=limit))
        await pair.use("until_stuck")
        if how == "cancel":
            getting.cancel()
        await asyncio.wait({getting})
        if how == "timeout":
            assert isinstance(getting.exception(), TransferTimeout)
        assert pair.rx.health().quarantined == 1
        held = await pair.arrives(2, 3, 4, 5)
        await pair.use("release")
        await quiet(pair.rx, pool_used=None, in_flight=None)
        for seed, delivery in enumerate(held, 2):
            assert (delivery.value == pattern_array(NBYTES, seed)).all()
        held.clear()
        late = await pair.rx.get("0", "1", "late", timeout=10)
        assert (late.value == pattern_array(NBYTES, 1)).all()
        await settle(pair.tx)


async def test_a_failure_whose_bytes_would_come_later(namespace: str) -> None:
    """The slot is free as soon as the failure is told, and the rest never comes."""
    async with far(namespace) as pair:
        await pair.order("late", landed=0.25)
        await pair.tx.put("late", pattern(NBYTES, 1))
        with pytest.raises(EngineFault):
            await pair.rx.get("0", "1", "late", timeout=10)
        await quiet(pair.rx)
        held = await pair.arrives(2, 3, 4)
        await pair.use("release")
        held += await pair.arrives(5)
        for seed, delivery in enumerate(held, 2):
            assert (delivery.value == pattern_array(NBYTES, seed)).all()


@pytest.mark.parametrize("end", [pytest.param("kill", marks=pytest.mark.soak), "stop"])
async def test_a_sender_that_is_lost_in_the_middle(namespace: str, end: str) -> None:
    """Its access ends with the region; one that goes on later writes nowhere."""
    async with far(namespace, peer_timeout=1.0) as pair:
        await pair.order("stuck", landed=0.5)
        await pair.tx.put("lost", pattern(NBYTES, 1))
        getting = asyncio.create_task(pair.rx.get("0", "1", "lost", timeout=20))
        await pair.use("until_stuck")
        if end == "kill":
            pair.peer.kill()
        else:
            pair.peer.stop()
        with pytest.raises(PeerLost):
            await getting
        await quiet(pair.rx)  # quarantine is over
        async with led() as other:
            pair.here.move()
            tx = await pair.here.away(other, "sender", "0")
            for seed in range(2, 5):
                await tx.put(f"k{seed}", pattern(NBYTES, seed))
            at = pair.here.at()
            held = [await pair.rx.get("0", "1", f"k{seed}", at, timeout=10) for seed in range(2, 5)]
            if end == "stop":
                pair.peer.resume()
                await pair.use("release")
                await settle(pair.tx, pool_used=None)
            for seed, delivery in enumerate(held, 2):
                assert (delivery.value == pattern_array(NBYTES, seed)).all()
            await tx.close()


async def test_ranks_of_two_stages(namespace: str) -> None:
    """Tensor parallelism of 2: each rank has an engine and a port of its own."""
    with ends("mori-on-double", namespace, memory_pool_size=POOL) as here:
        async with led() as peer:
            senders = [await here.away(peer, "sender", "0", rank=rank) for rank in (0, 1)]
            async with (
                here.open("receiver", "1", rank=0) as zero,
                here.open("receiver", "1", rank=1) as one,
            ):
                for rank, tx in enumerate(senders):
                    await tx.put("k", pattern(NBYTES, rank))
                got = await asyncio.gather(
                    *(rx.get("0", "1", "k", timeout=10) for rx in (zero, one))
                )
                pairs = enumerate(got)
                assert all((one.value == pattern_array(NBYTES, n)).all() for n, one in pairs)
                del pairs, got
                told = [await tx.health() for tx in senders] + [zero.health(), one.health()]
                keys = {health.extra["engine_key"] for health in told}
                assert len(keys) == 4
                assert zero.health().as_dict()["engine_key"] in keys
            for tx in senders:
                await tx.close()
