"""Ends of KV transfers in one loop: they come, follow each other, are cancelled, and close in every state."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from typing import Any

import pytest

import omni_async
from omni_async.kv.consumer import KVConsumer
from omni_async.kv.producer import KVProducer
from omni_async.testing.doubles.loopback import FAULTS
from omni_async.testing.doubles.ordered import Fault
from tests.ends import Ends
from tests.kv.nodes import give_here
from tests.kv.pairs import SOURCE, TARGET, carry, joined, nothing_left, pair, transports, until

BIG = {"block_size": 16, "head_size": 512}
"""Pieces that are worth a write of their own, into the blocks."""


# --- ends that come and go over lines that stay ---------------------------------------------------


@pytest.mark.parametrize("first", ["producer", "consumer"])
async def test_ends_meet_on_a_line_that_was_there_before_them(where: Ends, first: str) -> None:
    source, target = pair({}, {})
    async with transports(where) as (tx, rx), contextlib.AsyncExitStack() as stack:
        producer = KVProducer(tx, source.layout, source.caches)
        consumer = KVConsumer(rx, target.layout, target.caches, from_stage="0")
        for end in (producer, consumer) if first == "producer" else (consumer, producer):
            await stack.enter_async_context(end)
            await asyncio.sleep(0.02)  # what it says reaches nobody, if nobody is there yet
        source.end = producer
        await carry(source, target, consumer, "r")


async def test_an_end_may_be_followed_by_another_over_the_same_line(where: Ends) -> None:
    source, target = pair({}, {})
    async with transports(where) as (tx, rx):
        async with KVConsumer(rx, target.layout, target.caches, from_stage="0") as consumer:
            for number in range(3):
                async with KVProducer(tx, source.layout, source.caches) as source.end:
                    await carry(source, target, consumer, f"p{number}")
        async with KVProducer(tx, source.layout, source.caches) as producer:
            source.end = producer
            for number in range(3):
                async with KVConsumer(rx, target.layout, target.caches, from_stage="0") as consumer:
                    await carry(source, target, consumer, f"c{number}")
            assert len(producer.peers) <= 1


async def test_what_was_asked_of_one_that_closes_goes_to_the_next(where: Ends) -> None:
    source, target = pair({}, {})
    async with (
        transports(where) as (tx, rx),
        KVConsumer(rx, target.layout, target.caches, from_stage="0") as consumer,
    ):
        async with KVProducer(tx, source.layout, source.caches):
            pass
        progress = await consumer.receive("r", TARGET)
        async with KVProducer(tx, source.layout, source.caches) as source.end:
            await give_here(source, "r", SOURCE, "write")
            await progress.all(timeout=5)


async def test_a_share_is_written_where_the_caches_lay_when_it_was_asked_for(
    written: Ends,
) -> None:
    source, target = pair({}, {})
    async with joined(written, source, target) as (producer, consumer):
        first = await consumer.receive("first", TARGET)
        other = await consumer.receive("other", [0])
        await until(lambda: producer.waiting == 2)
        assert consumer._landing._mappings is not None
        told = consumer._landing._mappings.present
        consumer._landing._mappings.doubt(other.shares[0])  # as if its producer were lost
        assert consumer._landing._mappings.present is not told
        await asyncio.sleep(0.05)
        session = await producer.write_to("first", SOURCE)
        [share] = session.core.shares
        assert {spot.region for spot in share.where} == {told.region.id}
        await session.seal()
        await first.all(timeout=5)
        assert not target.wrong(1, TARGET, source.layout, SOURCE)
        other.cancel()
        await other.released(timeout=5)
        assert not consumer._landing._mappings._old


# --- cancellation and closing ---------------------------------------------------------------------


async def test_cancelled_waits_change_nothing_and_a_cancelled_begin_gives_up(where: Ends) -> None:
    source, target = pair({}, {})
    async with joined(where, source, target) as (producer, consumer):
        begin = asyncio.ensure_future(producer.write_to("none", SOURCE))
        await asyncio.sleep(0.02)
        begin.cancel()
        with pytest.raises(asyncio.CancelledError):
            await begin
        assert not producer.core.sessions
        progress = await consumer.receive("r", TARGET)
        session = await producer.write_to("r", SOURCE)
        waits = [
            asyncio.ensure_future(wait)
            for wait in (
                progress.layer(1, timeout=9),
                progress.all(),
                progress.released(),
                session.delivered(timeout=9),
            )
        ]
        await asyncio.sleep(0.02)
        for wait in waits:
            wait.cancel()
        await asyncio.wait(waits)
        watched = len(producer._sessions.still._watches)
        assert len(producer.deadlines) == watched + 1  # "none" is forgotten later
        assert len(consumer.deadlines) == len(consumer._transfers.still._watches)
        await session.seal()
        await progress.all(timeout=5)
        await session.delivered(timeout=5)
        nothing_left(producer, consumer)


async def test_a_session_that_failed_before_it_was_sealed_leaves_nothing(where: Ends) -> None:
    source, target = pair({}, {})
    async with joined(where, source, target) as (producer, consumer):
        progress = await consumer.receive("r", TARGET)
        session = await producer.write_to("r", SOURCE)
        session.abort()
        with pytest.raises(omni_async.TransferCancelled):
            await progress.all(timeout=5)
        with pytest.raises(omni_async.TransferCancelled):
            await session.delivered(timeout=5)
        with pytest.raises(omni_async.TransferCancelled):
            await session.seal()
        await progress.released(timeout=5)
        nothing_left(producer, consumer)


async def test_companions_are_given_up_together(where: Ends) -> None:
    source, target = pair({}, {})
    async with joined(where, source, target) as (producer, consumer):
        both = {"cond": ("a", TARGET), "uncond": ("b", [0, 4])}
        waiting = asyncio.ensure_future(consumer.receive_all(both))
        session = await producer.write_to("a", SOURCE)
        producer.abort("b", "no such branch")
        with pytest.raises(omni_async.TransferCancelled, match="no such branch"):
            await waiting
        with pytest.raises(omni_async.TransferCancelled):
            await session.delivered(timeout=5)
        with pytest.raises(omni_async.UsageError):
            await consumer.receive_all({"cond": ("a2", TARGET), "bad": ("b2", [99])})
        await until(lambda: not consumer._transfers.busy)
        nothing_left(producer, consumer)


@pytest.mark.parametrize("of", [{}, BIG], ids=["slots", "blocks"])
async def test_a_consumer_that_closes_under_a_stuck_write_takes_its_memory_away(
    written: Ends, monkeypatch: pytest.MonkeyPatch, of: dict[str, Any]
) -> None:
    monkeypatch.setattr("omni_async.kv.consumer.SETTLE_SECONDS", 0.1)
    monkeypatch.setattr("omni_async.kv.producer.SETTLE_SECONDS", 0.1)
    source, target = pair(of, of)
    async with joined(written, source, target) as (producer, consumer):
        FAULTS.order(Fault("stuck"))
        progress = await consumer.receive("r", TARGET)
        session = await producer.write_to("r", SOURCE)
        await session.seal()
        await FAULTS.until_stuck()
        released = asyncio.ensure_future(progress.released())
        await consumer.aclose()
        await asyncio.wait_for(released, 3)
        FAULTS.release()
        with pytest.raises(omni_async.TransferCancelled):
            await session.delivered(timeout=5)
        assert not target.touched([])


async def test_a_consumer_that_cannot_take_its_memory_away_says_so(
    written: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omni_async.kv.consumer.SETTLE_SECONDS", 0.1)
    source, target = pair(BIG, BIG, shared=False)
    async with joined(written, source, target, landing="direct") as (producer, consumer):
        FAULTS.order(Fault("stuck"))
        progress = await consumer.receive("r", TARGET)
        session = await producer.write_to("r", SOURCE)
        await session.seal()
        await FAULTS.until_stuck()
        released = asyncio.ensure_future(progress.released())
        with pytest.warns(ResourceWarning, match="4 blocks may still be written to"):
            await consumer.aclose()
        for wait in (released, progress.released(timeout=1)):
            with pytest.raises(omni_async.ClosedError, match="do not use them again"):
                await asyncio.wait_for(wait, 3)
        FAULTS.release()
        with pytest.raises(omni_async.TransferCancelled):
            await session.delivered(timeout=5)


async def test_a_producer_that_closes_under_a_stuck_write_says_so(
    written: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omni_async.kv.producer.SETTLE_SECONDS", 0.1)
    source, target = pair({}, {})
    async with joined(written, source, target) as (producer, consumer):
        FAULTS.order(Fault("stuck"))
        progress = await consumer.receive("r", TARGET)
        session = await producer.write_to("r", SOURCE)
        await session.seal()
        await FAULTS.until_stuck()
        delivered = asyncio.ensure_future(session.delivered())
        await producer.aclose()
        with pytest.raises(omni_async.ClosedError, match="nobody can tell"):
            await asyncio.wait_for(delivered, 3)
        with pytest.raises(omni_async.PeerLost):
            await progress.all(timeout=1)
        await progress.released(timeout=3)  # its memory was taken away
        FAULTS.release()
        await asyncio.sleep(0.05)
        assert not target.touched([])


@pytest.mark.parametrize("under", ["sender", "receiver"])
@pytest.mark.parametrize("state", ["idle", "parked", "asked", "begun", "done"])
async def test_a_transport_may_be_closed_under_its_caches(
    where: Ends, under: str, state: str
) -> None:
    source, target = pair({}, {})
    before = asyncio.all_tasks()
    async with joined(where, source, target) as (producer, consumer):
        progress = session = None
        if state != "idle":
            progress = await consumer.receive("r", TARGET)
        if state in ("begun", "done"):
            session = await producer.write_to("r", SOURCE)
            session.layer_ready(0)
            await progress.layer(0, timeout=5)  # type: ignore[union-attr]
        elif state == "asked":
            await until(lambda: producer.waiting == 1)
        if state == "done":
            await session.seal()  # type: ignore[union-attr]
            await session.delivered(timeout=5)  # type: ignore[union-attr]
            if under == "receiver":  # else it has been told everything before the line ends
                await progress.all(timeout=5)  # type: ignore[union-attr]
        await (producer if under == "sender" else consumer).transport.aclose()
        if session is not None and state == "begun":
            with pytest.raises(omni_async.OmniAsyncError):
                await session.delivered(timeout=5)
        if progress is not None and state == "done":
            await progress.all(timeout=5)
        elif progress is not None and (under == "receiver" or state == "begun"):
            with pytest.raises(omni_async.OmniAsyncError):
                await progress.all(timeout=5)
            await progress.released(timeout=5)
        end: Any = producer if under == "sender" else consumer
        more: Any = producer.offer if under == "sender" else consumer.receive
        with pytest.raises(omni_async.ClosedError):
            await more("x", [0])
        await end.aclose()
        await end.aclose()
    await asyncio.sleep(0.05)
    assert {task for task in asyncio.all_tasks() if not task.done()} <= before


async def test_a_cancelled_close_leaves_no_line_and_no_guest(written: Ends) -> None:
    source, target = pair({}, {})
    async with joined(written, source, target) as (producer, consumer):
        FAULTS.order(Fault("stuck"))
        progress = await consumer.receive("r", TARGET)
        session = await producer.write_to("r", SOURCE)
        await session.seal()
        await FAULTS.until_stuck()
        for end in (consumer, producer):
            closing = asyncio.ensure_future(end.aclose())
            await asyncio.sleep(0.05)
            closing.cancel()
            with pytest.warns(ResourceWarning) if end is consumer else contextlib.nullcontext():
                with pytest.raises(asyncio.CancelledError):
                    await closing
            assert not end.guests.wiring.guests
        assert not consumer._sources._kept
        with pytest.raises(omni_async.ClosedError):
            await progress.released(timeout=1)
        FAULTS.release()
        await asyncio.sleep(0.05)
        assert not target.touched([])


async def test_ends_that_are_closed_let_their_caches_go(where: Ends) -> None:
    source, target = pair({}, {}, shared=where.connector == "loopback-map")
    async with transports(where) as (tx, rx):
        producer = KVProducer(tx, source.layout, source.caches)
        consumer = KVConsumer(rx, target.layout, target.caches, from_stage="0")
        async with producer, consumer:
            source.end = producer
            await carry(source, target, consumer, "r")
            producer.abort("late")
            session = await producer.write_to("failed", SOURCE, timeout=0)
            session.abort()
            await asyncio.sleep(0.05)
        dead: list[Any] = [weakref.ref(producer), weakref.ref(consumer)]
        source.end = None
        del producer, consumer, session
        await asyncio.sleep(0.05)
        gc.collect()
        assert [ref() for ref in dead] == [None, None]
        assert not tx.guests.wiring.brought
        assert not rx.guests.wiring.brought
