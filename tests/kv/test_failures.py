"""Whatever goes wrong is told to both sides at once, and no block is handed out before nothing can land in it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import omni_async
from omni_async.kv.producer import KVProducer
from omni_async.testing.doubles.loopback import FAULTS
from omni_async.testing.doubles.ordered import Fault
from tests.ends import Ends, ends
from tests.kv.nodes import Node, give_here, layout
from tests.kv.pairs import SOURCE, TARGET, joined, pair

DOUBLES = ["loopback-write", "loopback-read", "shm"]


@pytest.fixture(params=DOUBLES)
def where(request: pytest.FixtureRequest, namespace: str, doubles: None) -> Iterator[Ends]:
    with ends(request.param, namespace) as found:
        yield found


async def test_an_abort_is_told_to_the_consumer_at_once(where: Ends) -> None:
    source, target = pair({}, {})
    async with joined(where, source, target) as (producer, consumer):
        progress = await consumer.receive("r", TARGET)
        session = await producer.write_to("r", SOURCE)
        session.layer_ready(0)
        await progress.layer(0)
        session.abort("the client hung up")
        with pytest.raises(omni_async.TransferCancelled, match="the client hung up"):
            await progress.all(timeout=2)
        with pytest.raises(omni_async.TransferCancelled, match="the client hung up"):
            await progress.layer(0)  # nothing of it may be used
        with pytest.raises(omni_async.TransferCancelled, match="the client hung up"):
            await session.delivered(timeout=2)
        assert session.state == "failed"
        await progress.released(timeout=2)
        assert not consumer.quarantined
        assert (await consumer.receive("again", TARGET)) is not None


async def test_a_producer_that_cannot_begin_says_so_before_and_after_it_is_asked(
    where: Ends,
) -> None:
    source, target = pair({}, {})
    async with joined(where, source, target) as (producer, consumer):
        early = await consumer.receive("early", TARGET)
        while not producer.waiting:  # noqa: ASYNC110 - it is the producer that is to hear of it
            await asyncio.sleep(0.001)
        producer.abort("early", "out of memory")
        producer.abort("late", "out of memory")
        late = await consumer.receive("late", [10, 11])
        for progress in (early, late):
            with pytest.raises(omni_async.TransferCancelled, match="out of memory"):
                await progress.all(timeout=2)
            await progress.released(timeout=2)


async def test_a_consumer_that_gives_up_frees_the_producer(where: Ends) -> None:
    source, target = pair({}, {})
    async with joined(where, source, target) as (producer, consumer):
        progress = await consumer.receive("r", TARGET)
        session = await producer.write_to("r", SOURCE)
        session.layer_ready(0)
        progress.cancel("no longer wanted")
        with pytest.raises(omni_async.TransferCancelled, match="given up"):
            await session.delivered(timeout=2)
        with pytest.raises(omni_async.TransferCancelled, match="no longer wanted"):
            await progress.all(timeout=2)
        await progress.released(timeout=2)
        assert not consumer.quarantined


async def test_a_consumer_may_decline_before_there_is_a_session(where: Ends) -> None:
    source, target = pair({}, {})
    async with joined(where, source, target) as (producer, consumer):
        consumer.decline("r", "the prompt was too long")
        with pytest.raises(omni_async.TransferCancelled, match="too long"):
            await producer.write_to("r", SOURCE, timeout=2)
        assert not producer.core.sessions


async def test_what_nobody_sends_ends_in_time_and_gives_the_blocks_back(where: Ends) -> None:
    source, target = pair({}, {})
    async with joined(where, source, target, defer_timeout=0.1) as (_, consumer):
        progress = await consumer.receive("unknown", TARGET)
        with pytest.raises(
            omni_async.TransferTimeout, match=r"has not begun within 0\.1 s"
        ) as told:
            await progress.all()
        assert told.value.phase == "waiting for the producer"
        await progress.released(timeout=2)
        assert not consumer.quarantined
        assert not target.touched([])


async def test_a_cache_that_stays_half_is_never_handed_out(where: Ends) -> None:
    source, target = pair({}, {})
    async with joined(where, source, target, transfer_timeout=0.15) as (producer, consumer):
        progress = await consumer.receive("r", TARGET)
        session = await producer.write_to("r", SOURCE)
        session.layer_ready(0)
        session.layer_ready(1)
        with pytest.raises(omni_async.TransferTimeout, match="2 layers are in place"):
            await progress.all()
        with pytest.raises(omni_async.TransferCancelled):
            await session.delivered(timeout=2)
        await progress.released(timeout=2)


async def test_a_producer_that_nobody_asks_ends_in_time(where: Ends) -> None:
    source = Node(layout())
    async with where.open("sender", "0") as tx:
        async with KVProducer(tx, source.layout, source.caches, defer_timeout=0.1) as producer:
            with pytest.raises(omni_async.TransferTimeout, match=r"0 consumers .* within 0\.1 s"):
                await producer.write_to("r", SOURCE)
            session = await producer.offer("o", SOURCE)
            with pytest.raises(omni_async.TransferTimeout, match=r"0 consumers .* within 0\.1 s"):
                await session.delivered()
            assert not producer.core.sessions


async def test_modes_have_to_be_the_same(where: Ends) -> None:
    source, target = pair({}, {})
    async with joined(where, source, target) as (producer, consumer):
        progress = await consumer.receive("r", TARGET, mode="write")
        session = await producer.offer("r", SOURCE)
        with pytest.raises(omni_async.ProtocolError, match=r"in mode 'read', .* in mode 'write'"):
            await progress.all(timeout=2)
        with pytest.raises(omni_async.ProtocolError, match=r"in mode 'read', .* in mode 'write'"):
            await session.delivered(timeout=2)


async def test_blocks_have_to_hold_the_same(where: Ends) -> None:
    source, target = pair({}, {})
    async with joined(where, source, target) as (producer, consumer):
        progress = await consumer.receive("r", TARGET[:3])
        with pytest.raises(omni_async.ProtocolError, match="do not hold the same"):
            await producer.write_to("r", SOURCE)
        with pytest.raises(omni_async.ProtocolError, match="do not hold the same"):
            await progress.all(timeout=2)
        assert not target.touched([])


async def test_a_failed_write_is_a_fault_on_both_sides(written: Ends) -> None:
    source, target = pair({}, {})
    async with joined(written, source, target) as (_, consumer):
        progress = await consumer.receive("r", TARGET)
        FAULTS.order(Fault(kind="failing", status=-7))
        with pytest.raises(omni_async.EngineFault, match="a failure was ordered"):
            await give_here(source, "r", SOURCE, "write")
        with pytest.raises(omni_async.EngineFault, match="a failure was ordered"):
            await progress.all(timeout=2)
        await progress.released(timeout=2)


@pytest.mark.parametrize("landing", ["direct", "staged"])
async def test_blocks_are_not_given_out_while_a_write_is_under_way(
    written: Ends, landing: str
) -> None:
    source, target = pair({}, {})
    async with joined(written, source, target, landing=landing) as (producer, consumer):
        progress = await consumer.receive("r", TARGET)
        session = await producer.write_to("r", SOURCE)
        FAULTS.order(Fault(kind="stuck", landed=0.5))
        session.layer_ready(0)
        await FAULTS.until_stuck()
        progress.cancel()
        with pytest.raises(omni_async.TransferCancelled):
            await progress.all()
        with pytest.raises(omni_async.TransferTimeout, match="not delivered yet"):
            await session.delivered(timeout=0.1)
        assert session.state == "failing"
        assert consumer.quarantined == set(TARGET)
        with pytest.raises(omni_async.UsageError, match="something may still land"):
            await consumer.receive("other", [0, TARGET[2]])
        with pytest.raises(omni_async.TransferTimeout):
            await progress.released(timeout=0.05)
        FAULTS.release()
        await progress.released(timeout=2)
        with pytest.raises(omni_async.TransferCancelled):
            await session.delivered(timeout=2)
        assert not consumer.quarantined
        assert not consumer.transport.health().pool_used


async def test_blocks_that_are_read_are_not_given_out_either(namespace: str) -> None:
    source, target = pair({}, {})
    with ends("loopback-read", namespace) as where:
        async with joined(where, source, target) as (producer, consumer):
            session = await producer.offer("r", SOURCE)
            FAULTS.order(Fault(kind="stuck", landed=0.5))
            progress = await consumer.receive("r", TARGET, mode="read")
            await FAULTS.until_stuck()
            progress.cancel()
            assert consumer.quarantined == set(TARGET)
            # The producer need not wait: what is read from now on nobody believes.
            with pytest.raises(omni_async.TransferCancelled):
                await session.delivered(timeout=2)
            source.fill(9, SOURCE)
            FAULTS.release()
            await progress.released(timeout=2)
            assert not consumer.quarantined


async def test_a_closed_producer_is_told_to_its_consumers(where: Ends) -> None:
    source, target = pair({}, {})
    async with joined(where, source, target) as (producer, consumer):
        progress = await consumer.receive("r", TARGET)
        session = await producer.write_to("r", SOURCE)
        session.layer_ready(0)
        await producer.aclose()
        # A read that was under way may find the memory gone before the word arrives.
        with pytest.raises((omni_async.PeerLost, omni_async.EngineFault)):
            await progress.all(timeout=2)
        with pytest.raises(omni_async.TransferCancelled, match="was closed"):
            await session.delivered(timeout=2)
        await progress.released(timeout=2)
        async with KVProducer(producer.transport, source.layout, source.caches) as again:
            source.end = again
            second = await consumer.receive("r", TARGET)
            await give_here(source, "r", SOURCE, "write")
            await second.all(timeout=2)
            assert not target.wrong(1, TARGET, source.layout, SOURCE)


async def test_a_closed_consumer_frees_the_producer(where: Ends) -> None:
    source, target = pair({}, {})
    async with joined(where, source, target) as (producer, consumer):
        progress = await consumer.receive("r", TARGET)
        session = await producer.write_to("r", SOURCE)
        session.layer_ready(0)
        await consumer.aclose()
        with pytest.raises(omni_async.TransferCancelled):
            await session.delivered(timeout=2)
        with pytest.raises(omni_async.ClosedError):
            await progress.all()
        with pytest.raises(omni_async.ClosedError):
            await consumer.receive("r2", TARGET)


async def test_a_layer_whose_event_fails_fails_the_session(where: Ends) -> None:
    class Broken:
        def synchronize(self) -> None:
            raise RuntimeError("an illegal memory access was encountered")

    source, target = pair({}, {})
    async with joined(where, source, target) as (producer, consumer):
        progress = await consumer.receive("r", TARGET)
        session = await producer.write_to("r", SOURCE)
        session.layer_ready(0, Broken())
        with pytest.raises(omni_async.EngineFault, match="illegal memory access"):
            await session.seal()
        with pytest.raises(omni_async.EngineFault, match="illegal memory access"):
            await progress.all(timeout=2)


async def test_layers_are_told_from_the_thread_of_the_model(where: Ends) -> None:
    source, target = pair({}, {})
    async with joined(where, source, target) as (producer, consumer):
        progress = await consumer.receive("r", TARGET)
        session = await producer.write_to("r", SOURCE)

        def forward() -> None:
            for layer in range(3):
                session.layer_ready(layer)

        await asyncio.to_thread(forward)
        await session.seal()
        await progress.all(timeout=5)
        await session.delivered(timeout=5)
        assert not target.wrong(1, TARGET, source.layout, SOURCE)
