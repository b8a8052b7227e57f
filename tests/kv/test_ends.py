"""Ends of KV transfers in one loop: wrong arguments, limits, threads, cancellation, closing in every state."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import omni_async
from omni_async.kv import words
from omni_async.kv.consumer import KVConsumer
from omni_async.kv.producer import KVProducer
from omni_async.registry import register_backend
from omni_async.testing.doubles import loopback
from omni_async.testing.doubles.loopback import FAULTS
from omni_async.testing.doubles.ordered import Fault
from tests.ends import Ends, ends
from tests.kv.nodes import Node, give_here, layout
from tests.kv.test_transfer import SOURCE, TARGET, joined, pair

DOUBLES = ["loopback-write", "loopback-read", "loopback-map"]
BIG = {"block_size": 16, "head_size": 512}
"""Pieces that are worth a write of their own, into the blocks."""
LIMITS = ["30", True, float("nan"), -1, -0.5, [1]]


@pytest.fixture(autouse=True)
def doubles() -> Any:
    for double in (loopback.LoopbackWrite, loopback.LoopbackRead, loopback.LoopbackMap):
        register_backend(double())
    yield
    FAULTS.clear()


@pytest.fixture(params=DOUBLES)
def where(request: pytest.FixtureRequest, namespace: str) -> Any:
    with ends(request.param, namespace) as found:
        yield found


@pytest.fixture
def written(namespace: str) -> Any:
    with ends("loopback-write", namespace) as found:
        yield found


@contextlib.asynccontextmanager
async def transports(where: Ends) -> AsyncIterator[tuple[Any, Any]]:
    """Two with a line between them before there are caches."""
    async with where.open("sender", "0") as tx, where.open("receiver", "1") as rx:
        await tx.put("0", "1", "warm", b"up")
        await rx.get("0", "1", "warm")
        yield tx, rx


async def carry(source: Node, target: Node, consumer: KVConsumer, request: str) -> None:
    progress = await consumer.receive(request, TARGET)
    await asyncio.wait_for(give_here(source, request, SOURCE, "write"), 5)
    await progress.all(timeout=5)
    assert not target.wrong(1, TARGET, source.layout, SOURCE)


async def until(true: Callable[[], bool]) -> None:
    """Within 2 s."""
    for _ in range(400):
        if true():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never came to that")


def nothing_left(producer: KVProducer, consumer: KVConsumer) -> None:
    core = producer.core
    tables: list[Any] = [core.sessions, core._shares, core._waiting, producer._sessions]
    tables += [producer._sessions.still, consumer.core.shares, consumer._transfers]
    tables += [
        consumer._transfers.busy,
        consumer._transfers.still,
        consumer._landing._slots._shares,
    ]
    assert [table for table in tables if table] == []


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
        session.layer_ready(0)
        await session.seal()
        await session.seal()
        with pytest.raises(omni_async.UsageError, match="sealed"):
            session.layer_ready(1)
        await progress.all(timeout=5)
        await session.delivered(timeout=5)
        assert not target.wrong(1, TARGET, source.layout, SOURCE)


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


# --- threads and loops ----------------------------------------------------------------------------


async def test_calls_from_elsewhere_are_refused(where: Ends) -> None:
    source, target = pair({}, {})
    async with joined(where, source, target) as (producer, consumer):
        progress = await consumer.receive("r", TARGET)
        session = await producer.write_to("r", SOURCE)

        async def elsewhere() -> None:
            for wrong in (
                producer.offer("x", SOURCE),
                producer.write_to("x", SOURCE),
                consumer.receive("x", [0]),
                session.seal(),
            ):
                with pytest.raises(omni_async.UsageError, match="another event loop"):
                    await wrong

        def calls() -> None:
            asyncio.run(elsewhere())
            wrong: list[Any] = [
                session.abort,
                progress.cancel,
                lambda: producer.abort("x"),
                lambda: consumer.decline("x"),
                lambda: session.assign([1]),
            ]
            for call in wrong:
                with pytest.raises(omni_async.UsageError):
                    call()

        await asyncio.to_thread(calls)
        assert list(producer.core.sessions) == ["r"]
        assert not progress.error


async def test_layers_may_be_told_from_any_thread_with_events_that_fail(where: Ends) -> None:
    source, target = pair({}, {})

    class Broken:
        def synchronize(self) -> None:
            raise RuntimeError("the device fell off")

    class Later:
        def __init__(self) -> None:
            self.event = threading.Event()

        def synchronize(self) -> None:
            self.event.wait(5)

    async with joined(where, source, target) as (producer, consumer):
        later = Later()
        progress = await consumer.receive("good", TARGET)
        session = await producer.write_to("good", SOURCE)
        await asyncio.to_thread(session.layer_ready, 0, later)
        sealing = asyncio.ensure_future(session.seal())
        await asyncio.sleep(0.05)
        assert not sealing.done()
        assert progress.landed == 0
        later.event.set()
        await sealing
        await progress.all(timeout=5)
        await session.delivered(timeout=5)
        progress = await consumer.receive("bad", TARGET)
        session = await producer.write_to("bad", SOURCE)
        await asyncio.to_thread(session.layer_ready, 0, Broken())
        with pytest.raises(omni_async.EngineFault, match="fell off"):
            await progress.all(timeout=5)
        with pytest.raises(omni_async.EngineFault, match="fell off"):
            await session.seal()
        await progress.released(timeout=5)


async def test_an_event_that_never_comes_does_not_hold_up_closing(written: Ends) -> None:
    source, target = pair({}, {})
    stuck = threading.Event()

    class Never:
        def synchronize(self) -> None:
            stuck.wait(20)

    async with joined(written, source, target) as (producer, consumer):
        await consumer.receive("r", TARGET)
        session = await producer.write_to("r", SOURCE)
        session.layer_ready(0, Never())
        sealing = asyncio.ensure_future(session.seal())
        await asyncio.sleep(0.05)
        await asyncio.wait_for(producer.aclose(), 3)
        with pytest.raises(omni_async.OmniAsyncError):
            await asyncio.wait_for(sealing, 3)
        await asyncio.sleep(0)
        assert not producer.computing._tasks
    stuck.set()


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
