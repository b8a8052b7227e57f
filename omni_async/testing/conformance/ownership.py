"""Owners and their clean-up, draining and lingering."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator

import pytest

from ...errors import KeyNotFound, TransferCancelled
from ..recipes import literal, pattern
from ..rig import Rig
from ..sides import LocalSide, attempt
from .base import HERE, ONE_LOOP, SENDER_HERE, Conformance, only, runs
from .lifecycle import until_parked


class Ownership(Conformance):
    @runs(*HERE)
    async def test_cleanup_drops_what_its_owner_holds(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        await tx.put("a", pattern(50_000), request_id="req")
        await tx.put("b", literal(1), request_id="req")
        await tx.put("c", pattern(50_000, 3), request_id="req-1")
        await tx.put("req", literal(4))  # owned by its own key
        assert await tx.cleanup("req") == 3
        assert await tx.cleanup("req") == 0
        assert await tx.cleanup("re") == 0
        for key in ("a", "b", "req"):
            assert isinstance(await attempt(rx.get(key, timeout=0)), KeyNotFound)
        assert (await rx.get("c", pattern(50_000, 3))).wrong is None
        await rig.quiet()

    @runs(*HERE)
    async def test_cleanup_wakes_the_owners_waiters_here(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        mine = asyncio.ensure_future(attempt(rx.get("req", timeout=None)))
        other = asyncio.ensure_future(rx.get("req-1", literal(1), timeout=None))
        await until_parked(rx, 2)
        assert await rx.cleanup("req") == 1
        error = await asyncio.wait_for(mine, 5)
        assert isinstance(error, TransferCancelled)
        assert not other.done()
        await tx.put("req-1", literal(1))
        assert (await other).wrong is None
        await tx.put("req", literal(2))  # nobody takes it
        assert (await rx.get("req", literal(2), timeout=5)).wrong is None

    @runs(*HERE)
    async def test_cleanup_at_the_sender_tells_who_waits_there(self, rig: Rig) -> None:
        only(
            rig,
            "notifies",
            "a store wakes nobody: who waits at the other end goes on until its limit",
        )
        tx, rx = await rig.pair()
        waiting = asyncio.ensure_future(attempt(rx.get("req", timeout=None)))
        await until_parked(tx, 1)
        await tx.cleanup("req")
        assert isinstance(await asyncio.wait_for(waiting, 5), TransferCancelled)

    @runs(*HERE)
    async def test_cleanup_leaves_what_is_being_read(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        await tx.put("k", pattern(200_000, 1), consumers=2)
        await rx.get("k", copy=False, keep="held")
        await tx.cleanup("k")
        await rx.cleanup("k")
        await tx.put("other", pattern(200_000, 2))
        assert await rx.look("held", pattern(200_000, 1)) is None
        assert (await rx.get("other", pattern(200_000, 2))).wrong is None
        await rx.forget("held")
        await rig.quiet()

    @runs(*HERE)
    async def test_draining(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        assert await tx.drain() == 0
        for number in range(3):
            await tx.put(f"k{number}", pattern(20_000, number))
        assert await tx.drain(0.05) == 3
        draining = asyncio.ensure_future(tx.drain(20))
        for number in range(3):
            assert not draining.done()
            assert (await rx.get(f"k{number}", pattern(20_000, number))).wrong is None
        assert await asyncio.wait_for(draining, 5) == 0

    @runs(*HERE)
    async def test_leaving_waits_for_what_nobody_has_fetched(self, rig: Rig) -> None:
        tx, rx = await rig.pair(linger=20.0)
        await tx.put("k", pattern(100_000))
        await tx.put("small", literal(1))
        leaving = asyncio.ensure_future(tx.leave())
        await asyncio.sleep(0.05)
        assert not leaving.done()
        assert (await rx.get("k", pattern(100_000))).wrong is None
        assert (await rx.get("small", literal(1))).wrong is None
        await asyncio.wait_for(leaving, 5)

    @runs(*SENDER_HERE)
    async def test_leaving_gives_up_and_counts(self, rig: Rig) -> None:
        only(rig, "notifies", "a store keeps for its receivers what they have not fetched")
        tx = await rig.sender(linger=0.1)
        assert isinstance(tx, LocalSide)
        for number in range(3):
            await tx.put(f"k{number}", pattern(20_000))
        with _log() as records:
            await asyncio.wait_for(tx.leave(), 5)
        warnings = [text for level, text in records if level >= logging.WARNING]
        assert any("unclaimed" in text and "3" in text for text in warnings), records

    @pytest.mark.parametrize("how", ["close", "abort"])
    @runs(*HERE)
    async def test_closing_does_not_wait(self, rig: Rig, how: str) -> None:
        tx, rx = await rig.pair(linger=20.0)
        await tx.put("k", pattern(100_000))
        await asyncio.wait_for(getattr(tx, how)(), 5)
        if rig.stored:
            return  # a store keeps it
        assert isinstance(await attempt(rx.get("k", timeout=0)), KeyNotFound)

    @runs(*ONE_LOOP)
    async def test_a_clean_run_says_nothing(self, rig: Rig) -> None:
        with _log() as records:
            async with rig.opening("sender", "0", linger=5.0) as tx:
                async with rig.opening("receiver", "1") as rx:
                    for number in range(20):
                        await tx.put("0", "1", f"k{number}", bytes(number * 1000))
                        with await rx.get("0", "1", f"k{number}") as delivery:
                            assert len(delivery.value) == number * 1000
        assert [text for level, text in records if level >= logging.WARNING] == []


@contextlib.contextmanager
def _log() -> Iterator[list[tuple[int, str]]]:
    """What the library logs within the block."""
    records: list[tuple[int, str]] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append((record.levelno, record.getMessage()))

    keeper = Keeper()
    logger = logging.getLogger("omni_async")
    logger.addHandler(keeper)
    try:
        yield records
    finally:
        logger.removeHandler(keeper)
