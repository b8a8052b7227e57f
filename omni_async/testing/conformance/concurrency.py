"""Many at once."""

from __future__ import annotations

import asyncio
import random

import pytest

from ...errors import TransferTimeout
from ..chunks import reader, writer
from ..recipes import literal, pattern, tree
from ..rig import Rig
from ..sides import attempt
from .base import HERE, Conformance, runs
from .lifecycle import until_parked


class Concurrency(Conformance):
    @runs(*HERE)
    async def test_many_keys_waiting_first(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        chance = random.Random(1)
        sizes = [chance.choice([0, 50, 3000, 40_000]) for _ in range(200)]
        gets = [rx.get(f"k{n}", tree(size, n)) for n, size in enumerate(sizes)]
        waiting = [asyncio.ensure_future(get) for get in gets]
        await until_parked(rx, len(sizes))
        order = list(enumerate(sizes))
        chance.shuffle(order)
        await asyncio.gather(*(tx.put(f"k{n}", tree(size, n)) for n, size in order))
        assert {got.wrong for got in await asyncio.gather(*waiting)} == {None}

    @runs(*HERE)
    async def test_many_keys_put_first(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        await asyncio.gather(*(tx.put(f"k{n}", pattern(n * 40, n)) for n in range(300)))
        gets = [rx.get(f"k{n}", pattern(n * 40, n)) for n in reversed(range(300))]
        assert {got.wrong for got in await asyncio.gather(*gets)} == {None}

    @runs(*HERE)
    async def test_many_edges(self, rig: Rig) -> None:
        tx = await rig.sender("0")
        stages = [str(number) for number in range(1, 7)]
        receivers = {stage: await rig.receiver(stage) for stage in stages}
        gets = [
            asyncio.ensure_future(
                receivers[stage].get(f"k{n}", literal([stage, n]), edge=("0", stage))
            )
            for stage in stages
            for n in range(10)
        ]
        for n in range(10):
            for stage in stages:
                await tx.put(f"k{n}", literal([stage, n]), edge=("0", stage))
        assert {got.wrong for got in await asyncio.gather(*gets)} == {None}

    @runs(*HERE)
    async def test_many_senders(self, rig: Rig) -> None:
        rx = await rig.receiver("9")
        senders = {str(number): await rig.sender(str(number)) for number in range(4)}
        gets = [
            asyncio.ensure_future(
                rx.get("k", literal(stage), edge=(stage, "9"), metadata=rig.at(stage))
            )
            for stage in senders
        ]
        for stage, tx in senders.items():
            await tx.put("k", literal(stage), edge=(stage, "9"))
        assert {got.wrong for got in await asyncio.gather(*gets)} == {None}

    @runs(*HERE)
    async def test_a_chain_of_stages(self, rig: Rig) -> None:
        """The one in the middle receives and sends; payloads and streams go all the way."""
        first, second = await rig.sender("0"), await rig.sender("1")
        middle = await rig.receiver("1", sender="0")
        last = await rig.receiver("2", sender="1")
        hops = ((first, middle, ("0", "1")), (second, last, ("1", "2")))
        recipes = [pattern(size, size) for size in (10, 100_000, 3000)]
        for tx, rx, edge in hops:
            waiting = [asyncio.ensure_future(rx.get("k", tree(70_000, 1), edge=edge))]
            sink = await reader(rx, "s", edge=edge)
            await (await writer(tx, "s", edge=edge)).send_all(recipes)
            await tx.put("k", tree(70_000, 1), edge=edge)
            assert [got.wrong for got in await asyncio.gather(*waiting)] == [None]
            story = await sink.read_all(recipes)
            assert (story.count, story.wrong, story.error) == (3, [], None)
        await rig.quiet()

    @runs(*HERE)
    async def test_overlapping_puts_and_gets_with_views_alive(self, rig: Rig) -> None:
        tx, rx = await rig.pair(memory_pool_size=8 << 20)

        async def worker(name: int) -> None:
            for turn in range(15):
                key, recipe = f"{name}-{turn}", pattern(30_000 + name * 1000, name * 100 + turn)
                await tx.put(key, recipe, timeout=20)
                got = await rx.get(key, recipe, keep=key, timeout=20)
                assert got.wrong is None
                await asyncio.sleep(0)
                assert await rx.look(key, recipe) is None
                await rx.forget(key)

        await asyncio.gather(*(worker(name) for name in range(8)))
        await rig.quiet()

    @runs(*HERE)
    async def test_receivers_contest_one_key(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        if not (await tx.capabilities()).exclusive:
            pytest.skip("reading is not exclusive here")
        other = await rig.receiver()
        for turn in range(4):
            gets = [
                asyncio.ensure_future(attempt(side.get("k", pattern(9000, turn), timeout=0.3)))
                for side in (rx, other, rx, other)
            ]
            await asyncio.sleep(0)
            await tx.put("k", pattern(9000, turn), consumers=2)
            outcomes = await asyncio.gather(*gets)
            good = [outcome for outcome in outcomes if not isinstance(outcome, Exception)]
            assert [got.wrong for got in good] == [None, None]
            assert sum(isinstance(outcome, TransferTimeout) for outcome in outcomes) == 2

    @runs(*HERE)
    async def test_one_that_never_comes_delays_nobody(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        never = asyncio.ensure_future(attempt(rx.get("never", timeout=None)))
        for number in range(50):
            await tx.put(f"k{number}", pattern(2000, number))
            assert (await rx.get(f"k{number}", pattern(2000, number), timeout=5)).wrong is None
        assert not never.done()
        never.cancel()
        await asyncio.wait({never})
