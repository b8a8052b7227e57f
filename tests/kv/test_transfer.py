"""A cache arrives whole, in the blocks that were asked for and in no other, whoever moves the bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

import omni_async
from omni_async.kv.consumer import KVConsumer
from omni_async.kv.producer import KVProducer
from tests.ends import Ends, ends
from tests.kv.nodes import Node, give_here, layout
from tests.kv.pairs import DOUBLES, SOURCE, TARGET, joined, pair

BACKENDS = [*DOUBLES, "shm", "mooncake", "nixl"]


@pytest.fixture(params=BACKENDS)
def where(request: pytest.FixtureRequest, namespace: str, doubles: None) -> Iterator[Ends]:
    with ends(request.param, namespace) as found:
        yield found


@pytest.mark.parametrize("mode", ["write", "read"])
async def test_a_cache_arrives_whole_and_nowhere_else(where: Ends, mode: str) -> None:
    source, target = pair({}, {})
    async with joined(where, source, target) as (_, consumer):
        progress = await consumer.receive("r", TARGET, mode=mode)
        await give_here(source, "r", SOURCE, mode)
        await progress.all()
        assert not target.wrong(1, TARGET, source.layout, SOURCE)
        assert not target.touched(TARGET)
        assert not consumer.quarantined
        await progress.released()


@pytest.mark.parametrize("mode", ["write", "read"])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"form": "split"}, {"form": "stacked", "block_size": 8, "num_blocks": 12}),
        ({"form": "paired", "order": "head_token"}, {"form": "split"}),
        ({"form": "packed"}, {"form": "paired", "block_size": 2, "num_blocks": 30}),
        ({"form": "mla", "kv_heads": 1}, {"form": "mla", "kv_heads": 1, "block_size": 8}),
    ],
)
async def test_layouts_may_differ_and_the_last_block_be_filled_in_part(
    where: Ends, mode: str, ours: dict[str, Any], theirs: dict[str, Any]
) -> None:
    source, target = pair(ours, theirs)
    tokens = 14
    mine = [5, 0, 2, 11]
    blocks = [9, 4, 1, 7, 3, 2, 0][: -(-tokens // target.layout.block_size)]
    async with joined(where, source, target) as (_, consumer):
        progress = await consumer.receive("r", blocks, mode=mode)
        await give_here(source, "r", mine, mode, tokens)
        await progress.all()
        assert progress.tokens == tokens
        assert not target.wrong(1, blocks, source.layout, mine, tokens)
        assert not target.touched(blocks)


@pytest.mark.parametrize("landing", ["direct", "staged"])
@pytest.mark.parametrize("backend", ["loopback-write", "mooncake", "nixl"])
async def test_it_may_land_in_the_blocks_or_in_slots_first(
    backend: str, landing: str, namespace: str
) -> None:
    source, target = pair({"layers": 9}, {"layers": 9})
    with ends(backend, namespace) as where:
        async with joined(where, source, target, landing=landing) as (_, consumer):
            progress = await consumer.receive("r", TARGET)
            await give_here(source, "r", SOURCE, "write")
            await progress.all()
            assert not target.wrong(1, TARGET, source.layout, SOURCE)
            assert not target.touched(TARGET)


@pytest.mark.parametrize("backend", ["loopback-write", "loopback-read", "mooncake"])
async def test_tensors_of_the_engine_itself_are_read_and_written(
    backend: str, namespace: str
) -> None:
    source, target = pair({}, {}, shared=False)
    with ends(backend, namespace) as where:
        async with joined(where, source, target) as (_, consumer):
            progress = await consumer.receive("r", TARGET)
            await give_here(source, "r", SOURCE, "write")
            await progress.all()
            assert not target.wrong(1, TARGET, source.layout, SOURCE)


@pytest.mark.parametrize("mode", ["write", "read"])
async def test_a_consumer_that_maps_needs_no_memory_of_a_kind(namespace: str, mode: str) -> None:
    source, target = Node(layout()), Node(layout(), shared=False)
    source.fill(1)
    target.spoil()
    with ends("shm", namespace) as where:
        async with joined(where, source, target) as (_, consumer):
            progress = await consumer.receive("r", TARGET, mode=mode)
            await give_here(source, "r", SOURCE, mode)
            await progress.all()
            assert not target.wrong(1, TARGET, source.layout, SOURCE)
            assert not target.touched(TARGET)


async def test_tensors_that_nobody_can_map_are_refused_with_what_to_do(namespace: str) -> None:
    source, _ = pair({}, {}, shared=False)
    with ends("shm", namespace) as where:
        async with where.open("sender", "0") as tx:
            with pytest.raises(omni_async.UsageError, match=r"KVMemory\(layout\)"):
                async with KVProducer(tx, source.layout, source.caches):
                    pass
            assert not tx.guests.wiring.guests


async def test_the_first_layer_is_there_before_the_last_is_computed(where: Ends) -> None:
    source, target = pair({}, {})
    async with joined(where, source, target) as (producer, consumer):
        progress = await consumer.receive("r", TARGET)
        session = await producer.write_to("r", SOURCE)
        session.layer_ready(1)
        await progress.layer(1)
        assert not target.wrong(1, TARGET, source.layout, SOURCE, layers=[1])
        assert progress.landed == 1
        assert not progress.done
        with pytest.raises(omni_async.TransferTimeout, match="layer 0 is not there yet"):
            await progress.layer(0, timeout=0.05)
        session.layer_ready(0)
        session.layer_ready(2)
        await session.seal()
        await progress.all()
        await session.delivered()


async def test_the_order_of_the_two_sides_does_not_matter(where: Ends) -> None:
    source, target = pair({}, {})
    async with joined(where, source, target) as (producer, consumer):
        session = await producer.write_to("r", SOURCE, timeout=0)
        for layer in range(3):
            session.layer_ready(layer)
        await session.seal()
        progress = await consumer.receive("r", TARGET)
        await progress.all()
        await session.delivered()
        assert not target.wrong(1, TARGET, source.layout, SOURCE)


async def test_a_consumer_that_is_there_first_waits_for_its_producer(where: Ends) -> None:
    source, target = pair({}, {})
    async with where.open("receiver", "1") as rx:
        async with KVConsumer(rx, target.layout, target.caches, from_stage="0") as consumer:
            progress = await consumer.receive("r", TARGET, mode="read")
            async with where.open("sender", "0") as tx:
                async with KVProducer(tx, source.layout, source.caches) as producer:
                    session = await producer.offer("r", SOURCE)
                    await progress.all()
                    await session.delivered()
        assert not target.wrong(1, TARGET, source.layout, SOURCE)


async def test_many_requests_at_once(where: Ends) -> None:
    import asyncio

    source, target = pair({"num_blocks": 64}, {"num_blocks": 64})
    ours = [[n, 63 - n] for n in range(24)]
    theirs = [[(n * 5) % 32, 32 + (n * 7) % 32] for n in range(24)]
    async with joined(where, source, target) as (_, consumer):
        progress = [await consumer.receive(f"r{n}", theirs[n]) for n in range(24)]
        await asyncio.gather(*[give_here(source, f"r{n}", ours[n], "write") for n in range(24)])
        for n, one in enumerate(progress):
            await one.all()
            assert not target.wrong(1, theirs[n], source.layout, ours[n])


@pytest.mark.parametrize("mode", ["write", "read"])
@pytest.mark.parametrize(("from_tp", "to_tp"), [(2, 1), (1, 2), (2, 2), (4, 2)])
async def test_heads_are_split_and_joined(where: Ends, mode: str, from_tp: int, to_tp: int) -> None:
    import asyncio

    from omni_async.kv.plan import sources_of

    sources = [Node(layout(tp_size=from_tp, tp_rank=rank)) for rank in range(from_tp)]
    targets = [Node(layout(tp_size=to_tp, tp_rank=rank)) for rank in range(to_tp)]
    async with contextlib.AsyncExitStack() as stack:
        for rank, node in enumerate(sources):
            node.fill(1)
            tx = await stack.enter_async_context(where.open("sender", "0", rank=rank))
            node.end = await stack.enter_async_context(KVProducer(tx, node.layout, node.caches))
        for rank, node in enumerate(targets):
            node.spoil()
            rx = await stack.enter_async_context(where.open("receiver", "1", rank=rank))
            heard = sources_of(node.layout, from_tp)
            source = [where.at("0", s) for s in heard] if where.addressed else None
            node.end = await stack.enter_async_context(
                KVConsumer(
                    rx, node.layout, node.caches, from_stage="0", source_tp=from_tp, source=source
                )
            )
        progress = [await node.end.receive("r", TARGET, mode=mode) for node in targets]
        await asyncio.gather(*[give_here(node, "r", SOURCE, mode) for node in sources])
        for node, one in zip(targets, progress, strict=True):
            await one.all()
            assert not node.wrong(1, TARGET, layout(), SOURCE)
            assert not node.touched(TARGET)


async def test_two_instances_get_one_cache(where: Ends) -> None:
    source, first = pair({}, {})
    _, second = pair({}, {})
    async with joined(where, source, first) as (producer, consumer):
        async with where.open("receiver", "2") as rx:
            async with KVConsumer(rx, second.layout, second.caches, from_stage="0") as other:
                session = await producer.offer("r", SOURCE, consumers=2)
                one = await consumer.receive("r", TARGET, mode="read")
                await one.all()
                with pytest.raises(omni_async.TransferTimeout):
                    await session.delivered(timeout=0.05)
                two = await other.receive("r", [0, 1, 2, 3], mode="read")
                await two.all()
                await session.delivered()
        assert not first.wrong(1, TARGET, source.layout, SOURCE)
        assert not second.wrong(1, [0, 1, 2, 3], source.layout, SOURCE)


async def test_companions_are_ready_when_all_are(where: Ends) -> None:
    source, target = pair({}, {})
    async with joined(where, source, target) as (producer, consumer):
        await producer.offer("r", SOURCE)
        await producer.offer("r-text", [4, 5])
        found = await consumer.receive_all(
            {"parent": ("r", TARGET), "text": ("r-text", [0, 1])}, mode="read"
        )
        assert all(progress.done for progress in found.values())
        assert not target.wrong(1, TARGET, source.layout, SOURCE)
        assert not target.wrong(1, [0, 1], source.layout, [4, 5])


async def test_payloads_and_caches_share_a_transport(where: Ends) -> None:
    source, target = pair({}, {})
    async with joined(where, source, target) as (producer, consumer):
        tx, rx = producer.transport, consumer.transport
        progress = await consumer.receive("r", TARGET, mode="read")
        await tx.put("0", "1", "k", {"n": 1, "b": bytes(100_000)})
        await producer.offer("r", SOURCE)
        await progress.all()
        delivery = await rx.get("0", "1", "k", timeout=10)
        assert delivery.value == {"n": 1, "b": bytes(100_000)}
