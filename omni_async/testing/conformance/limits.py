"""The pool's limit: waiting for space, order, and what can never fit."""

from __future__ import annotations

import asyncio
import time

from ...errors import PayloadTooLarge, PoolExhausted, TransferCancelled
from ..recipes import literal, pattern
from ..rig import Rig
from ..sides import LocalSide, attempt
from .base import HERE, ONE_LOOP, Conformance, runs

POOL = 1 << 20
MOST = 700_000
"""Two of these do not fit into that."""


def most(rig: Rig) -> int:
    """Bytes of which two do not fit into the room there is."""
    return rig.room * 2 // 3


class PoolLimits(Conformance):
    @runs(*HERE)
    async def test_a_full_pool_makes_put_wait(self, rig: Rig) -> None:
        tx, rx = await rig.narrow_pair()
        await tx.put("first", pattern(most(rig), 1))
        second = asyncio.ensure_future(tx.put("second", pattern(most(rig), 2), timeout=None))
        await asyncio.sleep(0.1)
        assert not second.done()
        assert (await rx.get("first", pattern(most(rig), 1))).wrong is None
        await asyncio.wait_for(second, 5)
        assert (await rx.get("second", pattern(most(rig), 2))).wrong is None

    @runs(*HERE)
    async def test_what_a_receiver_reads_counts(self, rig: Rig) -> None:
        tx, rx = await rig.pair(memory_pool_size=POOL)
        await tx.put("first", pattern(MOST, 1))
        await rx.get("first", keep="held")
        second = asyncio.ensure_future(attempt(tx.put("second", pattern(MOST, 2), timeout=5)))
        arrival = asyncio.ensure_future(rx.get("second", pattern(MOST, 2), timeout=10))
        await asyncio.sleep(0.1)
        assert await rx.look("held", pattern(MOST, 1)) is None
        await rx.forget("held")
        assert not isinstance(await second, Exception)
        assert (await arrival).wrong is None

    @runs(*HERE)
    async def test_nothing_is_evicted(self, rig: Rig) -> None:
        tx, rx = await rig.narrow_pair()
        put: list[int] = []
        for number in range(40):
            outcome = await attempt(
                tx.put(f"k{number}", pattern(rig.room // 17, number), timeout=0)
            )
            if isinstance(outcome, PoolExhausted):
                break
            put.append(number)
        assert len(put) >= 10
        for number in put:
            assert (await rx.get(f"k{number}", pattern(rig.room // 17, number))).wrong is None

    @runs(*HERE)
    async def test_small_payloads_count_too(self, rig: Rig) -> None:
        tx = await rig.narrow_sender()
        for number in range(5000):
            recipe = pattern(rig.room // 1000, number)
            outcome = await attempt(tx.put(f"k{number}", recipe, timeout=0))
            if isinstance(outcome, PoolExhausted):
                break
        else:
            raise AssertionError("five times as much as there is room for was accepted")
        assert rig.stored or (await tx.health()).pool_used <= rig.room

    @runs(*HERE)
    async def test_waiters_are_served_in_their_order(self, rig: Rig) -> None:
        tx, rx = await rig.narrow_pair()
        await tx.put("first", pattern(most(rig)))
        order: list[int] = []

        async def put(number: int) -> None:
            await tx.put(f"k{number}", pattern(most(rig), number), timeout=20)
            order.append(number)

        waiting = []
        for number in range(4):
            waiting.append(asyncio.ensure_future(put(number)))
            await asyncio.sleep(0.02)
        await rx.get("first")
        for number in range(4):
            assert (await rx.get(f"k{number}", pattern(most(rig), number))).wrong is None
        await asyncio.gather(*waiting)
        assert order == [0, 1, 2, 3]

    @runs(*HERE)
    async def test_a_waiter_that_gives_up_lets_others_pass(self, rig: Rig) -> None:
        tx, rx = await rig.narrow_pair()
        await tx.put("first", pattern(most(rig)))
        impatient = asyncio.ensure_future(attempt(tx.put("a", pattern(most(rig)), timeout=0.2)))
        cancelled = asyncio.ensure_future(tx.put("b", pattern(most(rig)), timeout=None))
        patient = asyncio.ensure_future(tx.put("c", pattern(rig.room // 5, 3), timeout=20))
        await asyncio.sleep(0.05)
        cancelled.cancel()
        assert isinstance(await impatient, PoolExhausted)
        await asyncio.wait({cancelled})
        assert (await rx.get("first", pattern(most(rig)))).wrong is None
        await patient
        assert (await rx.get("c", pattern(rig.room // 5, 3))).wrong is None

    @runs(*HERE)
    async def test_too_large_is_said_at_once(self, rig: Rig) -> None:
        tx, rx = await rig.pair(memory_pool_size=POOL)
        await tx.put("fills", pattern(900_000))
        began = time.monotonic()
        error = await attempt(tx.put("large", pattern(POOL + 1), timeout=None))
        assert isinstance(error, PayloadTooLarge)
        assert time.monotonic() - began < 2
        assert error.nbytes >= POOL + 1
        assert error.limit == POOL
        assert error.setting == "memory_pool_size"
        assert "memory_pool_size" in str(error)
        assert not error.retryable
        assert (await rx.get("fills", pattern(900_000))).wrong is None

    @runs(*HERE)
    async def test_the_whole_pool_can_be_used(self, rig: Rig) -> None:
        tx, rx = await rig.pair(memory_pool_size=POOL)
        for seed in range(3):
            await tx.put("k", pattern(POOL - 4096, seed))
            assert (await rx.get("k", pattern(POOL - 4096, seed))).wrong is None

    @runs(*ONE_LOOP)
    async def test_allocating_waits_and_refuses_alike(self, rig: Rig) -> None:
        tx = await rig.sender(memory_pool_size=POOL)
        assert isinstance(tx, LocalSide)
        buffer = await tx.transport.allocate(MOST)
        assert isinstance(await attempt(tx.transport.allocate(MOST, timeout=0.05)), PoolExhausted)
        assert isinstance(await attempt(tx.transport.allocate(POOL + 1)), PayloadTooLarge)
        waiting = asyncio.ensure_future(tx.transport.allocate(MOST, timeout=None))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        buffer.release()
        (await asyncio.wait_for(waiting, 5)).release()
        await rig.quiet()

    @runs(*HERE)
    async def test_cleanup_ends_a_put_that_waits_for_space(self, rig: Rig) -> None:
        tx, rx = await rig.narrow_pair()
        await tx.put("fills", pattern(most(rig)))
        waiting = asyncio.ensure_future(
            attempt(tx.put("k", pattern(most(rig)), request_id="req", timeout=None))
        )
        await asyncio.sleep(0.1)
        assert await tx.cleanup("req") == 1
        assert isinstance(await asyncio.wait_for(waiting, 5), TransferCancelled)
        assert (await rx.get("fills", pattern(most(rig)))).wrong is None
        await tx.put("k", literal(1))
        assert (await rx.get("k", literal(1))).wrong is None

    @runs(*HERE)
    async def test_more_than_the_pool_goes_through_it(self, rig: Rig) -> None:
        tx, rx = await rig.narrow_pair()

        async def produce() -> None:
            for number in range(12):
                await tx.put(f"k{number}", pattern(rig.room * 2 // 7, number), timeout=20)

        producing = asyncio.ensure_future(produce())
        for number in range(12):
            assert (await rx.get(f"k{number}", pattern(rig.room * 2 // 7, number))).wrong is None
        await producing
