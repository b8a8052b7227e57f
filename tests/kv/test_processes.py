"""Producers and consumers in processes of their own, which are killed, stopped and started again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

import omni_async
from omni_async.kv.consumer import KVConsumer
from omni_async.kv.producer import KVProducer
from omni_async.registry import register_backend
from omni_async.testing.doubles import loopback
from omni_async.testing.orders import PeerGone
from omni_async.testing.processes import PeerProcess
from tests.ends import Ends, ends, led
from tests.kv.nodes import Node, layout
from tests.kv.pairs import SOURCE, TARGET

NODES = "tests.kv.nodes"
DOUBLE = "omni_async.testing.doubles.loopback"
LARGE = {"layers": 4, "num_blocks": 8, "block_size": 64, "head_size": 8192}
"""Blocks of 4 MiB: a write takes long enough to be stopped in the middle."""


SOAK = pytest.mark.soak
"""What is like another test here and takes as long."""


@pytest.fixture(params=["shm", "mooncake", pytest.param("nixl", marks=SOAK)])
def where(request: pytest.FixtureRequest, namespace: str) -> Any:
    with ends(request.param, namespace) as found:
        yield found


@contextlib.asynccontextmanager
async def consumer_here(where: Ends, node: Node, **options: Any) -> AsyncIterator[KVConsumer]:
    extra = options.pop("extra", {})
    async with (
        where.open("receiver", "1", **extra) as rx,
        KVConsumer(rx, node.layout, node.caches, from_stage="0", **options) as consumer,
    ):
        node.end = consumer
        yield consumer


async def producer_away(
    where: Ends, peer: PeerProcess, of: dict[str, Any], seed: int = 1, **options: Any
) -> None:
    if where.connector.startswith("loopback"):
        options["target"] = f"{DOUBLE}:{loopback.LoopbackRead.__name__}"
    side = await where.away(peer, "sender", "0", **options)
    await peer.call(
        "use", target=f"{NODES}:open_producer", side=side.name, name="p", of=of, seed=seed
    )


async def give(peer: PeerProcess, request: str, blocks: list[int], mode: str = "write") -> Any:
    try:
        return await peer.call(
            "use", target=f"{NODES}:give", name="p", request_id=request, blocks=blocks, mode=mode
        )
    except PeerGone:
        return "gone"


@pytest.mark.parametrize("mode", ["write", "read"])
async def test_between_two_processes(where: Ends, mode: str) -> None:
    target = Node(layout())
    target.spoil()
    async with led() as peer, consumer_here(where, target) as consumer:
        progress = await consumer.receive("r", TARGET, mode=mode)
        await producer_away(where, peer, {})
        giving = asyncio.ensure_future(give(peer, "r", SOURCE, mode))
        await progress.all()
        assert await giving == "delivered"
        assert not target.wrong(1, TARGET, layout(), SOURCE)
        assert not target.touched(TARGET)


async def test_a_killed_producer_is_told_and_its_successor_serves_the_same_blocks(
    where: Ends,
) -> None:
    target = Node(layout(**LARGE))
    blocks = [5, 2, 0]
    async with consumer_here(where, target) as consumer:
        async with led() as peer:
            await producer_away(where, peer, LARGE)
            progress = await consumer.receive("r", blocks)
            giving = asyncio.ensure_future(give(peer, "r", [0, 1, 2]))
            await progress.layer(0, timeout=30)
            peer.kill()
            began = asyncio.get_running_loop().time()
            if not progress.done:
                with contextlib.suppress(omni_async.TransferTimeout):
                    with pytest.raises((omni_async.PeerLost, omni_async.EngineFault)):
                        await progress.all(timeout=5)
            assert asyncio.get_running_loop().time() - began < 2
            await progress.released(timeout=5)
            assert not consumer.quarantined
            await giving
        target.spoil()
        async with led() as peer:
            await producer_away(where, peer, LARGE, seed=2)
            again = await consumer.receive("again", blocks)
            giving = asyncio.ensure_future(give(peer, "again", [3, 4, 5]))
            await again.all(timeout=30)
            assert await giving == "delivered"
            assert not target.wrong(2, blocks, layout(**LARGE), [3, 4, 5])


async def test_a_killed_consumer_frees_the_blocks_and_its_successor_is_served(
    where: Ends,
) -> None:
    source = Node(layout())
    source.fill(1)
    async with (
        where.open("sender", "0") as tx,
        KVProducer(tx, source.layout, source.caches) as producer,
    ):
        source.end = producer
        for seed in range(2):
            async with led() as peer:
                side = await where.away(peer, "receiver", "1")
                await peer.call(
                    "use",
                    target=f"{NODES}:open_consumer",
                    side=side.name,
                    name="c",
                    of={},
                    from_stage="0",
                )
                taking = asyncio.ensure_future(take_away(peer, f"r{seed}"))
                session = await producer.write_to(f"r{seed}", SOURCE)
                if seed:
                    for layer in range(3):
                        session.layer_ready(layer)
                    await session.seal()
                    await session.delivered(timeout=10)
                    assert await taking == []
                else:
                    session.layer_ready(0)
                    peer.kill()
                    with pytest.raises((omni_async.PeerLost, omni_async.EngineFault)) as caught:
                        await session.delivered(timeout=2)
                    named = f"the consumer {where.namespace}/stage 1/rank 0/replica 0 (process "
                    assert caught.type is omni_async.EngineFault or named in str(caught.value)
                    assert await taking == "gone"
        assert not producer.core.sessions


async def take_away(
    peer: PeerProcess,
    request: str,
    given: list[int] | None = None,
    of: dict[str, Any] | None = None,
) -> Any:
    """What the process that is led says is wrong with what it got."""
    source = SOURCE if given is None else given
    try:
        return await peer.call(
            "use",
            target=f"{NODES}:take",
            name="c",
            request_id=request,
            blocks=TARGET if given is None else list(range(len(given))),
            mode="write",
            seed=1,
            of=of or {},
            source_blocks=source,
        )
    except PeerGone:
        return "gone"


@pytest.mark.parametrize(
    ("connector", "landing"),
    [
        ("mooncake", "auto"),
        pytest.param("mooncake", "staged", marks=SOAK),
        pytest.param("nixl", "auto", marks=SOAK),
        pytest.param("nixl", "staged", marks=SOAK),
    ],
)
async def test_a_stopped_producer_writes_nowhere_when_it_goes_on(
    connector: str, landing: str, namespace: str
) -> None:
    target = Node(layout(**LARGE))
    blocks = [5, 2, 0, 1]
    with ends(connector, namespace) as where:
        options = {"landing": landing, "extra": {"peer_timeout": 2.5}}
        async with led() as peer, consumer_here(where, target, **options) as consumer:
            await producer_away(where, peer, LARGE)
            warm = await consumer.receive("warm", blocks)
            giving = asyncio.ensure_future(give(peer, "warm", [0, 1, 2, 3]))
            await warm.all(timeout=30)
            assert await giving == "delivered"
            progress = await consumer.receive("r", blocks)
            giving = asyncio.ensure_future(give(peer, "r", [4, 5, 6, 7]))
            await progress.layer(0)
            peer.stop()  # in the middle of a later one
            assert not progress.done
            try:
                with pytest.raises(omni_async.OmniAsyncError):
                    await progress.all(timeout=10)
                await progress.released(timeout=10)
                target.fill(3, blocks)
            finally:
                peer.resume()
            assert await giving != ""
            await asyncio.sleep(0.5)  # whatever was under way has landed by now, somewhere
            assert not target.wrong(3, blocks, layout(**LARGE), blocks)


async def test_what_a_stopped_consumer_reads_late_it_does_not_believe(namespace: str) -> None:
    """The producer gave it up and used the blocks for something else."""
    register_backend(loopback.LoopbackRead())
    source = Node(layout())
    source.fill(1)
    with ends("loopback-read", namespace, peer_timeout=2.5) as where:
        async with led() as peer:
            async with (
                where.open("sender", "0") as tx,
                KVProducer(tx, source.layout, source.caches) as producer,
            ):
                source.end = producer
                side = await peer.open(
                    "rx",
                    "loopback-read",
                    target=f"{DOUBLE}:LoopbackRead",
                    **where.options("receiver", "1"),
                )
                await peer.call(
                    "use",
                    target=f"{NODES}:open_consumer",
                    side=side.name,
                    name="c",
                    of={},
                    from_stage="0",
                )
                await peer.call("use", target=f"{DOUBLE}:order", kind="stuck", landed=0.5)
                session = await producer.write_to("r", SOURCE, timeout=0)
                for layer in range(3):
                    session.layer_ready(layer)
                taking = asyncio.ensure_future(take_away(peer, "r"))
                await peer.call("use", target=f"{DOUBLE}:until_stuck")
                peer.stop()
                with pytest.raises(omni_async.PeerLost):
                    await session.delivered(timeout=10)
                source.fill(9, SOURCE)
                peer.resume()
                await peer.call("use", target=f"{DOUBLE}:release")
                [told] = await taking
                assert "was lost" in told or "PeerLost" in told, told
