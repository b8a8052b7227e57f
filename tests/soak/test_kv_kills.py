"""Producers and consumers of KV caches that are killed and stopped at any moment, while requests go on."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

import omni_async
from omni_async.kv.consumer import KVConsumer
from omni_async.kv.producer import KVProducer
from omni_async.kv.taking import Step
from tests.ends import ends, led
from tests.kv.nodes import Node, give_here, layout
from tests.kv.test_processes import give, producer_away, take_away

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

KILLS = 25
SIZES: dict[str, Any] = {"layers": 6, "num_blocks": 32, "block_size": 16, "head_size": 2048}
TOLD_SECONDS = 2.0


@pytest.mark.parametrize("connector", ["mooncake", "nixl", "shm"])
async def test_producers_are_killed_under_traffic(connector: str, namespace: str) -> None:
    """No wrong byte in what is handed out, no block lost, everybody told in time; the successor serves."""
    chance = random.Random(7)
    target, of = Node(layout(**SIZES)), layout(**SIZES)
    loop = asyncio.get_running_loop()
    done = failed = 0
    killed = 0.0
    with ends(connector, namespace) as where:
        async with (
            where.open("receiver", "1") as rx,
            KVConsumer(rx, target.layout, target.caches, from_stage="0") as consumer,
        ):
            for number in range(KILLS):
                mode = chance.choice(["write", "read"])
                async with led() as peer:
                    await producer_away(where, peer, SIZES, seed=number)
                    blocks = [chance.sample(range(32), 8) for _ in range(3)]
                    given = [chance.sample(range(32), 8) for _ in range(3)]
                    for step in range(3):
                        progress = await consumer.receive(
                            f"{number}-{step}", blocks[step], mode=mode
                        )
                        giving = asyncio.ensure_future(
                            give(peer, f"{number}-{step}", given[step], mode)
                        )
                        if step == 2:
                            await asyncio.sleep(chance.random() * 0.02)
                            peer.kill()
                            killed = loop.time()
                        try:
                            await progress.all(timeout=TOLD_SECONDS if step == 2 else 30)
                        except omni_async.TransferTimeout:
                            # One that was killed before it began is waited for: its successor may have it.
                            assert step == 2
                            assert [share.step for share in consumer.core.shares.values()] == [
                                Step.PARKED
                            ]
                            progress.cancel()
                            failed += 1
                        except omni_async.OmniAsyncError:
                            assert step == 2
                            assert loop.time() - killed < TOLD_SECONDS
                            failed += 1
                        else:
                            assert not target.wrong(number, blocks[step], of, given[step])
                            done += 1
                        await progress.released(timeout=10)
                        await giving
                    assert not consumer.quarantined
            assert not consumer.core.shares
    assert done >= 2 * KILLS, (done, failed)


@pytest.mark.parametrize("connector", ["mooncake", "nixl", "shm"])
async def test_consumers_are_killed_under_traffic(connector: str, namespace: str) -> None:
    """The producer's blocks come back, and the next consumer is served."""
    chance = random.Random(11)
    source = Node(layout(**SIZES))
    source.fill(1)
    loop = asyncio.get_running_loop()
    failed = 0
    with ends(connector, namespace) as where:
        async with (
            where.open("sender", "0") as tx,
            KVProducer(tx, source.layout, source.caches) as producer,
        ):
            source.end = producer
            for number in range(KILLS):
                async with led() as peer:
                    side = await where.away(peer, "receiver", "1")
                    await peer.call(
                        "use",
                        target="tests.kv.nodes:open_consumer",
                        side=side.name,
                        name="c",
                        of=SIZES,
                        from_stage="0",
                    )
                    given = chance.sample(range(32), 8)
                    taking = asyncio.ensure_future(take_away(peer, f"{number}-0", given, SIZES))
                    await give_here(source, f"{number}-0", given, "write")
                    assert await taking == []
                    taking = asyncio.ensure_future(take_away(peer, f"{number}-1", given, SIZES))
                    giving = asyncio.ensure_future(give_here(source, f"{number}-1", given, "write"))
                    await asyncio.sleep(chance.random() * 0.02)
                    peer.kill()
                    killed = loop.time()
                    try:
                        # One that was killed before it asked is waited for, as is any other.
                        await asyncio.wait_for(giving, TOLD_SECONDS)
                    except omni_async.OmniAsyncError:
                        failed += 1
                        assert loop.time() - killed < TOLD_SECONDS
                    except asyncio.TimeoutError:
                        assert not producer.core._shares
                    await taking
            assert not producer.core._shares
    assert failed, "no kill fell into a transfer"
