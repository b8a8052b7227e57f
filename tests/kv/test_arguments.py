"""What callers and peers may say to the ends of KV transfers, and the limits that they may set."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import omni_async
from omni_async.kv import words
from omni_async.kv.consumer import KVConsumer
from omni_async.kv.plan import plan_moves
from omni_async.kv.producer import KVProducer
from omni_async.testing.doubles.loopback import FAULTS
from omni_async.testing.doubles.ordered import Fault
from tests.ends import Ends
from tests.kv.nodes import Node, give_here, layout
from tests.kv.pairs import SOURCE, TARGET, carry, joined, nothing_left, pair, transports, until

LIMITS = ["30", True, float("nan"), -1, -0.5, [1]]


# --- arguments ------------------------------------------------------------------------------------


async def test_wrong_arguments_are_refused_and_leave_nothing(where: Ends) -> None:
    source, target = pair({}, {})
    async with joined(where, source, target) as (producer, consumer):
        wrong_requests: list[Any] = ["", None, 5, b"r", "r" * 2000, "\ud800"]
        wrong_blocks: list[Any] = [None, 5, ["1"], [1.5], [None], [-1], [24], [1, "2"], "12"]
        for request in wrong_requests:
            for call in (
                producer.offer(request, SOURCE),
                producer.write_to(request, SOURCE, timeout=0),
                consumer.receive(request, TARGET),
            ):
                with pytest.raises(omni_async.UsageError):
                    await call
            for told in (producer.abort, consumer.decline):
                with pytest.raises(omni_async.UsageError):
                    told(request)
        for blocks in wrong_blocks:
            with pytest.raises(omni_async.UsageError):
                await producer.offer("r", blocks)
            with pytest.raises(omni_async.UsageError):
                await consumer.receive("r", blocks)
            if blocks is not None:
                with pytest.raises(omni_async.UsageError):
                    await producer.write_to("r", blocks, timeout=0)
        with pytest.raises(omni_async.UsageError):
            await consumer.receive("r", [1, 1])
        for tokens in (0, -1, 17, 1.5, "4", True):
            with pytest.raises(omni_async.UsageError):
                await producer.offer("r", SOURCE, tokens=tokens)  # type: ignore[arg-type]
        for consumers in (0, -1, True, 1.0, "1", None):
            with pytest.raises(omni_async.UsageError):
                await producer.offer("r", SOURCE, consumers=consumers)  # type: ignore[arg-type]
        modes: list[Any] = ["", None, "push", 1, []]
        for mode in modes:
            with pytest.raises(omni_async.UsageError):
                await consumer.receive("r", TARGET, mode=mode)
        sources: list[Any] = [5.5, "host", [], [0, 1], True, [None], object(), [object()]]
        for at in sources:
            with pytest.raises(omni_async.UsageError):
                await consumer.receive("r", TARGET, source=at)
        nothing_left(producer, consumer)
        assert not producer.core._ends
        source.end = producer
        await carry(source, target, consumer, "r")


async def test_a_session_refuses_what_makes_no_sense_and_goes_on(where: Ends) -> None:
    source, target = pair({}, {})
    async with joined(where, source, target) as (producer, consumer):
        progress = await consumer.receive("r", TARGET)
        session = await producer.write_to("r")
        with pytest.raises(omni_async.UsageError, match="tell its blocks"):
            session.layer_ready(0)
        with pytest.raises(omni_async.UsageError, match="tell its blocks"):
            await session.seal()
        for blocks in (None, ["1"], [99]):
            with pytest.raises(omni_async.UsageError):
                session.assign(blocks)  # type: ignore[arg-type]
        session.assign(SOURCE)
        with pytest.raises(omni_async.UsageError, match="already"):
            session.assign(SOURCE)
        for layer in (-1, 3, 0.0, "0", None, True):
            with pytest.raises(omni_async.UsageError):
                session.layer_ready(layer)  # type: ignore[arg-type]
            with pytest.raises(omni_async.UsageError):
                await progress.layer(layer)  # type: ignore[arg-type]
        session.layer_ready(0)
        await session.seal()
        await session.seal()
        with pytest.raises(omni_async.UsageError, match="sealed"):
            session.layer_ready(1)
        await progress.all(timeout=5)
        await session.delivered(timeout=5)
        assert not target.wrong(1, TARGET, source.layout, SOURCE)


@pytest.mark.parametrize("again", [None, 14])
async def test_tokens_that_are_told_before_the_blocks_are_kept(where: Ends, again: Any) -> None:
    source, target = pair({}, {})
    async with joined(where, source, target) as (producer, consumer):
        progress = await consumer.receive("r", TARGET)
        session = await producer.write_to("r", tokens=14)
        wrong: list[Any] = [15, 0, "14", True, 14.5]
        for tokens in wrong:
            with pytest.raises(omni_async.UsageError, match="tokens"):
                session.assign(SOURCE, tokens=tokens)
        with pytest.raises(omni_async.UsageError, match="14 tokens are 4 blocks"):
            session.assign(SOURCE[:3])
        session.assign(SOURCE, tokens=again)
        await session.seal()
        await progress.all(timeout=5)
        await session.delivered(timeout=5)
        assert progress.tokens == 14
        assert not target.wrong(1, TARGET, source.layout, SOURCE, 14)


async def test_tokens_are_refused_at_once_where_no_blocks_hold_them(where: Ends) -> None:
    source, target = pair({}, {})
    room = source.layout.num_blocks * source.layout.block_size
    async with joined(where, source, target) as (producer, consumer):
        wrong: list[Any] = ["x", -3, 10**6, room + 1, True, 1.0, [4]]
        for tokens in wrong:
            with pytest.raises(omni_async.UsageError, match="tokens"):
                await producer.write_to("r", tokens=tokens, timeout=0)
        nothing_left(producer, consumer)
        session = await producer.write_to("r", tokens=room, timeout=0)
        session.abort()


async def test_numbers_of_numpy_are_numbers(where: Ends) -> None:
    source, target = pair({}, {})
    counts: list[Any] = [np.int64(14), np.int32(14)]
    layers: list[Any] = [np.int64(0), np.uint8(1), np.int32(2)]
    wrong_layers: list[Any] = [np.True_, np.float64(1), np.int64(3)]
    wrong_blocks: list[Any] = [[True], [3, False], np.array([True])]
    async with joined(where, source, target) as (producer, consumer):
        progress = await consumer.receive("r", np.array(TARGET))  # type: ignore[arg-type]
        session = await producer.write_to("r", tokens=counts[0])
        session.assign(np.array(SOURCE), tokens=counts[1])  # type: ignore[arg-type]
        for layer in layers:
            session.layer_ready(layer)
        await session.seal()
        for layer in layers:
            await progress.layer(layer, timeout=5)
        await progress.all(timeout=5)
        assert not target.wrong(1, TARGET, source.layout, SOURCE, 14)
        await session.delivered(timeout=5)
        for layer in wrong_layers:
            with pytest.raises(omni_async.UsageError, match="layers count"):
                session.layer_ready(layer)
        for blocks in wrong_blocks:
            with pytest.raises(omni_async.UsageError, match="blocks"):
                await producer.offer("b", blocks)
            with pytest.raises(omni_async.UsageError, match="blocks"):
                plan_moves(source.layout, blocks, target.layout, [1] * len(blocks))


async def test_what_is_told_to_peers_is_text_whatever_it_was(where: Ends) -> None:
    source, target = pair({}, {})
    async with joined(where, source, target) as (producer, consumer):
        source.end = producer
        odd: list[Any] = [None, 5, b"x", "\ud800 torn", object(), ["list"]]
        for number, reason in enumerate(odd):
            progress = await consumer.receive(f"a{number}", TARGET)
            session = await producer.write_to(f"a{number}", SOURCE)
            session.abort(reason)
            with pytest.raises(omni_async.TransferCancelled):
                await progress.all(timeout=5)
            await progress.released(timeout=5)
            session = await producer.write_to(f"d{number}", SOURCE, timeout=0)
            consumer.decline(f"d{number}", reason)
            with pytest.raises(omni_async.TransferCancelled):
                await session.delivered(timeout=5)
            producer.abort(f"n{number}", reason)
        await carry(source, target, consumer, "r")


@pytest.mark.parametrize("mode", ["write", "read"])
@pytest.mark.parametrize("landing", ["auto", "staged"])
async def test_a_cache_of_no_blocks_arrives(where: Ends, mode: str, landing: str) -> None:
    source, target = pair({}, {})
    async with joined(where, source, target, landing=landing) as (producer, consumer):
        progress = await consumer.receive("r", [], mode=mode)
        await asyncio.wait_for(give_here(source, "r", [], mode), 5)
        await progress.all(timeout=5)
        nothing_left(producer, consumer)


async def test_words_that_make_no_sense_end_their_line_and_nothing_else(where: Ends) -> None:
    source, target = pair({}, {})
    blocks = [0]
    up: list[list[Any]] = [
        [b"\xc1"],
        [b""],
        [words.Begun(1, blocks, -1)],
        [words.Ask(90, "odd", blocks, words.Mode.WRITE), words.Took(90, [])],
        [words.Ask(91, "odd", blocks, words.Mode.WRITE)] * 2,
    ]
    down: list[list[Any]] = [
        [b"\xc1"],
        [words.Drop(1)],
        [words.Ended(77, words.Reason.ABORTED, "none", False), words.Took(1, [])],
    ]
    async with joined(where, source, target) as (producer, consumer):
        await carry(source, target, consumer, "first")
        for end, said in ((consumer, up), (producer, down)):
            for number, odd in enumerate(said):
                [line] = end._lines
                for word in odd:
                    line.say("kv", word if isinstance(word, bytes) else words.encode(word))
                await until(lambda end=end, line=line: line not in end._lines)  # type: ignore[misc]
                await carry(source, target, consumer, f"{end.role}{number}")
        nothing_left(producer, consumer)


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [*LIMITS, 0])
async def test_limits_of_an_end_are_seconds_or_none(written: Ends, limit: Any) -> None:
    node = Node(layout())
    async with written.open("sender", "0") as tx, written.open("receiver", "1") as rx:
        for name in ("transfer_timeout", "defer_timeout"):
            with pytest.raises(omni_async.UsageError, match=name):
                KVProducer(tx, node.layout, node.caches, **{name: limit})
            with pytest.raises(omni_async.UsageError, match=name):
                KVConsumer(rx, node.layout, node.caches, **{name: limit})
        assert not tx.guests.wiring.guests


async def test_limits_of_waits_are_seconds_or_none(where: Ends) -> None:
    source, target = pair({}, {})
    async with joined(where, source, target) as (producer, consumer):
        progress = await consumer.receive("r", TARGET)
        session = await producer.write_to("r", SOURCE, timeout=None)
        waits: list[Any] = [progress.all, progress.released, session.delivered]
        for limit in LIMITS:
            for wait in waits:
                with pytest.raises(omni_async.UsageError, match="timeout"):
                    await wait(timeout=limit)
            with pytest.raises(omni_async.UsageError, match="timeout"):
                await progress.layer(0, timeout=limit)
            with pytest.raises(omni_async.UsageError, match="timeout"):
                await producer.write_to("other", SOURCE, timeout=limit)
        for wait in waits:
            with pytest.raises(omni_async.TransferTimeout):
                await wait(timeout=0)
        assert list(producer.core.sessions) == ["r"]
        await session.seal()
        for wait in waits:
            await wait(timeout=None)


async def test_a_wait_that_is_over_leaves_nothing(where: Ends) -> None:
    source, target = pair({}, {})
    async with joined(where, source, target) as (producer, consumer):
        progress = await consumer.receive("r", TARGET)
        session = await producer.write_to("r", SOURCE, timeout=None)
        waits: list[Any] = [progress.all, progress.released, session.delivered]
        for wait in waits:
            for limit in (0, 0.001):
                with pytest.raises(omni_async.TransferTimeout):
                    await wait(timeout=limit)
            for options in ({}, {"timeout": 60}):
                cancelled = asyncio.ensure_future(wait(**options))
                await asyncio.sleep(0)
                cancelled.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await cancelled
        assert not progress._waiters._futures
        assert not session._waiters._futures
        await session.seal()
        await progress.all(timeout=5)
        await session.delivered(timeout=5)


async def test_a_wait_for_the_first_consumer_may_be_longer_than_usual(where: Ends) -> None:
    source, target = pair({}, {})
    options = {"defer_timeout": 0.1, "transfer_timeout": None}
    async with (
        transports(where) as (tx, rx),
        KVProducer(tx, source.layout, source.caches, **options) as producer,
        KVConsumer(rx, target.layout, target.caches, from_stage="0") as consumer,
    ):
        waiting = asyncio.ensure_future(producer.write_to("r", SOURCE, timeout=5))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        progress = await consumer.receive("r", TARGET)
        await (await waiting).seal()
        await progress.all(timeout=5)


@pytest.mark.parametrize("defer", [None, 30])
async def test_the_limit_of_what_moves_holds_from_its_begin(written: Ends, defer: Any) -> None:
    """Whatever the limit of the wait before was."""
    source, target = pair({}, {})
    limits = {"defer_timeout": defer, "transfer_timeout": 0.2}
    async with (
        transports(written) as (tx, rx),
        KVProducer(tx, source.layout, source.caches, **limits) as producer,
        KVConsumer(rx, target.layout, target.caches, from_stage="0", **limits) as consumer,
    ):
        session = await producer.write_to("r", SOURCE, timeout=0)
        FAULTS.order(Fault("stuck"))
        await session.seal()  # before anybody has asked
        progress = await consumer.receive("r", TARGET)
        with pytest.raises(omni_async.TransferTimeout, match="nothing has moved"):
            await progress.all(timeout=3)
        with pytest.raises(omni_async.TransferTimeout, match="not delivered"):
            await session.delivered(timeout=0.1)  # a write is under way
        assert session.state == "failing"
        FAULTS.release()
        with pytest.raises(omni_async.OmniAsyncError):
            await session.delivered(timeout=3)
        await progress.released(timeout=3)


async def test_a_producer_gives_up_what_does_not_move_though_it_was_sealed_before(
    written: Ends,
) -> None:
    source, target = pair({}, {})
    async with (
        transports(written) as (tx, rx),
        KVProducer(
            tx, source.layout, source.caches, defer_timeout=30, transfer_timeout=0.2
        ) as producer,
        KVConsumer(rx, target.layout, target.caches, from_stage="0") as consumer,
    ):
        session = await producer.write_to("r", SOURCE, timeout=0)
        FAULTS.order(Fault("stuck"))
        await session.seal()
        progress = await consumer.receive("r", TARGET)
        with pytest.raises(omni_async.TransferTimeout, match="nothing has moved"):
            await progress.all(timeout=3)
        assert consumer.quarantined == set(TARGET)
        FAULTS.release()
        await progress.released(timeout=3)
        nothing_left(producer, consumer)
