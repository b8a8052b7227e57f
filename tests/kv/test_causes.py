"""What a side is told of the other's failure: who it was, and why."""

from __future__ import annotations

import pytest

import omni_async
from omni_async.kv.consumer import KVConsumer
from omni_async.kv.producer import KVProducer
from tests.ends import Ends
from tests.kv.nodes import Node, layout
from tests.kv.pairs import SOURCE, TARGET, joined, pair, until

CONSUMER = r"the consumer \S+/stage {}/rank 0/replica 0 \(process \d+\)"


async def test_a_producer_is_told_who_gave_it_up_and_why(where: Ends) -> None:
    source, target = pair({}, {})
    async with joined(where, source, target) as (producer, consumer):
        progress = await consumer.receive("r", TARGET)
        session = await producer.write_to("r", SOURCE)
        progress.cancel("the client hung up")
        who = CONSUMER.format(1)
        why = f"^request 'r' was given up by {who}: the client hung up$"
        with pytest.raises(omni_async.TransferCancelled, match=why):
            await session.delivered(timeout=5)
        await progress.released(timeout=5)


async def test_ranks_of_a_producer_are_told_that_another_one_was_lost(where: Ends) -> None:
    if where.addressed:
        pytest.skip("ranks are found by name here")
    first, second = (Node(layout(tp_size=2, tp_rank=rank)) for rank in range(2))
    _, target = pair({}, {})
    async with (
        where.open("sender", "0", rank=0) as tx,
        where.open("receiver", "1") as rx,
        KVProducer(tx, first.layout, first.caches) as here,
        KVConsumer(rx, target.layout, target.caches, from_stage="0", source_tp=2) as consumer,
    ):
        async with (
            where.open("sender", "0", rank=1) as other,
            KVProducer(other, second.layout, second.caches) as there,
        ):
            progress = await consumer.receive("r", TARGET)
            session = await here.write_to("r", SOURCE)
            await there.write_to("r", SOURCE)
        with pytest.raises(omni_async.PeerLost):
            await progress.all(timeout=5)
        why = rf"given up by {CONSUMER.format(1)}: the KVProducer of \S+ 0/rank 1/.* was closed"
        with pytest.raises(omni_async.TransferCancelled, match=why):
            await session.delivered(timeout=5)


async def test_one_of_two_instances_is_told_what_became_of_the_other(where: Ends) -> None:
    source, first = pair({}, {})
    _, second = pair({}, {})
    async with joined(where, source, first) as (producer, consumer):
        progress = await consumer.receive("r", TARGET)
        async with (
            where.open("receiver", "2") as rx,
            KVConsumer(rx, second.layout, second.caches, from_stage="0") as other,
        ):
            session = await producer.write_to("r", SOURCE, consumers=2)
            await other.receive("r", TARGET)
            await until(lambda: session.asked == 2)
        for wait in (session.delivered, progress.all):
            with pytest.raises(omni_async.OmniAsyncError, match=CONSUMER.format(2)):
                await wait(timeout=5)
