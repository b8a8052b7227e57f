"""KV caches between processes: whoever gives up is heard at once, and nothing is mixed, kept or believed in part."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

# ruff: noqa: E402 - what follows needs PyTorch
import omni_async
from omni_async.errors import (
    EngineFault,
    PeerLost,
    ProtocolError,
    TransferCancelled,
    TransferTimeout,
    UsageError,
)
from omni_async.kv import KVConsumer, KVLayout, KVMemory, KVProducer, gather
from omni_async.registry import register_backend
from omni_async.testing.doubles import loopback
from omni_async.testing.doubles.loopback import FAULTS
from omni_async.testing.doubles.ordered import Fault
from tests.ends import Ends, ends
from tests.kv.nodes import Node, give_here, layout

SOURCE, TARGET = [3, 7, 8, 1], [20, 2, 3, 9]
LATE = 480.0
"""Seconds that a producer of the reports kept its data for a consumer that had given up."""


@pytest.fixture(autouse=True)
def doubles() -> Any:
    for double in (loopback.LoopbackWrite, loopback.LoopbackRead):
        register_backend(double())
    yield
    FAULTS.clear()


@pytest.fixture(params=["loopback-write", "loopback-read", "shm"])
def where(request: pytest.FixtureRequest, namespace: str) -> Any:
    with ends(request.param, namespace) as found:
        yield found


@contextlib.asynccontextmanager
async def both(
    where: Ends, *, of: dict[str, Any] | None = None, **limits: Any
) -> AsyncIterator[tuple[Node, Node]]:
    """A producer whose caches are filled, and a consumer, in this loop."""
    source, target = Node(layout(**(of or {}))), Node(layout(**(of or {})))
    source.fill(1)
    target.spoil()
    async with (
        where.open("sender", "0") as tx,
        where.open("receiver", "1") as rx,
        KVProducer(tx, source.layout, source.caches, **limits) as source.end,
        KVConsumer(rx, target.layout, target.caches, from_stage="0", **limits) as target.end,
    ):
        yield source, target


class Clock:
    """How long a block took."""

    def __enter__(self) -> Clock:
        self._began = time.monotonic()
        return self

    def __exit__(self, *_: Any) -> None:
        self.seconds = time.monotonic() - self._began


# --- D5: the producer died, or could not start, and the receiver held its memory ------------------


async def test_a_producer_that_fails_before_it_begins_is_heard(where: Ends) -> None:
    async with both(where, defer_timeout=LATE) as (source, target):
        progress = await target.end.receive("r", TARGET)
        with Clock() as took:
            source.end.abort("r", "CUDA out of memory")
            with pytest.raises(TransferCancelled, match="CUDA out of memory"):
                await progress.all(timeout=5)
            await progress.released(timeout=5)
        assert took.seconds < 1
        assert not target.end.quarantined
        await target.end.receive("other", TARGET)  # the blocks are back


async def test_a_producer_whose_server_fails_is_heard(where: Ends) -> None:
    target = Node(layout())
    async with (
        where.open("receiver", "1") as rx,
        KVConsumer(
            rx, target.layout, target.caches, from_stage="0", defer_timeout=LATE
        ) as consumer,
    ):
        progress = await consumer.receive("r", TARGET)

        async def serve() -> None:
            source = Node(layout())
            async with (
                where.open("sender", "0") as tx,
                KVProducer(tx, source.layout, source.caches) as producer,
            ):
                while not producer.waiting:  # noqa: ASYNC110 - it is the producer that is asked
                    await asyncio.sleep(0.001)
                raise ValueError("no such model")

        with Clock() as took, pytest.raises(ValueError, match="no such model"):
            await serve()
        with pytest.raises(PeerLost, match="was closed"):
            await progress.all(timeout=2)
        await progress.released(timeout=2)
        assert took.seconds < 2
        await consumer.receive("other", TARGET)


@pytest.mark.parametrize("backend", ["shm", "loopback-write"])
async def test_a_producer_that_never_starts_costs_the_limit_and_no_memory(
    backend: str, namespace: str
) -> None:
    target = Node(layout())
    with ends(backend, namespace) as where:
        async with (
            where.open("receiver", "1") as rx,
            KVConsumer(
                rx, target.layout, target.caches, from_stage="0", defer_timeout=0.2
            ) as consumer,
        ):
            progress = await consumer.receive("r", TARGET)
            with Clock() as took, pytest.raises(TransferTimeout, match="no producer was there"):
                await progress.all(timeout=5)
            assert 0.2 <= took.seconds < 1
            await progress.released(timeout=1)
            await consumer.receive("other", TARGET)


# --- D6: the consumer gives up early, and the producer keeps its blocks for 480 s -----------------


@pytest.mark.parametrize("mode", ["write", "read"])
async def test_who_rejects_before_it_asks_frees_the_producer(where: Ends, mode: str) -> None:
    async with both(where, defer_timeout=LATE) as (source, target):
        if mode == "read":
            session = await source.end.offer("r", SOURCE)
        else:
            session = await source.end.write_to("r", SOURCE, timeout=0)
            session.layer_ready(0)
        with Clock() as took:
            target.end.decline("r", "the prompt is longer than the context")
            with pytest.raises(TransferCancelled, match="longer than the context"):
                await session.delivered(timeout=5)
        assert took.seconds < 1
        assert not source.end.core.sessions


async def test_who_gives_up_before_the_first_layer_frees_the_producer(where: Ends) -> None:
    async with both(where, defer_timeout=LATE, transfer_timeout=LATE) as (source, target):
        progress = await target.end.receive("r", TARGET)
        session = await source.end.write_to("r", SOURCE)
        with Clock() as took:
            progress.cancel("the client hung up")
            with pytest.raises(TransferCancelled, match="given up"):
                await session.delivered(timeout=5)
        assert took.seconds < 1


# --- D8: peers of another version, dtype or block size connect, and mix data ----------------------


@pytest.mark.parametrize("backend", ["shm", "loopback-write", "mooncake"])
async def test_another_wire_version_is_refused_with_both(
    backend: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = Node(layout()), Node(layout())
    with ends(backend, namespace) as where:
        with monkeypatch.context() as patch:
            patch.setattr("omni_async.transport.direct_transport.WIRE", 2)
            sending = where.open("sender", "0")
            tx = await sending.__aenter__()
        try:
            async with (
                where.open("receiver", "1") as rx,
                KVProducer(tx, source.layout, source.caches),
                KVConsumer(
                    rx, target.layout, target.caches, from_stage="0", defer_timeout=LATE
                ) as consumer,
            ):
                progress = await consumer.receive("r", TARGET)
                with pytest.raises(ProtocolError, match="sender speaks 2, the receiver speaks 1"):
                    await progress.all(timeout=5)
                await progress.released(timeout=1)
        finally:
            await sending.__aexit__(None, None, None)


async def test_another_version_of_the_words_is_refused_with_both(
    where: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omni_async.kv.producer.VERSION", 7)
    async with both(where, defer_timeout=LATE) as (source, target):
        progress = await target.end.receive("r", TARGET)
        with pytest.raises(ProtocolError, match=r"speaks version 7 .* this is 1"):
            await progress.all(timeout=5)
        with pytest.raises((TransferCancelled, ProtocolError), match=r"version 7 .* this is 1"):
            await source.end.write_to("r", SOURCE, timeout=5)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"dtype": "int8"}, "dtype is uint8 at the source and int8 at the target"),
        ({"head_size": 8}, "head_size is 16 at the source and 8 at the target"),
        ({"layers": 4}, "layers is 3 at the source and 4 at the target"),
    ],
)
async def test_another_layout_is_refused_on_both_sides_with_both_values(
    where: Ends, change: dict[str, Any], text: str
) -> None:
    source, other = Node(layout()), layout(**change)
    async with (
        where.open("sender", "0") as tx,
        where.open("receiver", "1") as rx,
        KVProducer(tx, source.layout, source.caches) as producer,
        KVConsumer(rx, other, KVMemory(other), from_stage="0") as consumer,
    ):
        progress = await consumer.receive("r", [1])
        session = await producer.write_to("r", [1], timeout=0)
        for waiting in (progress.all(timeout=5), session.delivered(timeout=5)):
            with pytest.raises(ProtocolError, match=text):
                await waiting


async def test_another_block_size_is_no_reason_to_mix_anything(where: Ends) -> None:
    source = Node(layout())
    target = Node(layout(block_size=16, num_blocks=6))
    source.fill(1)
    target.spoil()
    async with (
        where.open("sender", "0") as tx,
        where.open("receiver", "1") as rx,
        KVProducer(tx, source.layout, source.caches) as source.end,
        KVConsumer(rx, target.layout, target.caches, from_stage="0") as consumer,
    ):
        progress = await consumer.receive("r", [4])
        await give_here(source, "r", SOURCE, "write")
        await progress.all(timeout=5)
        assert not target.wrong(1, [4], source.layout, SOURCE)
        assert not target.touched([4])


# --- D10: a time limit frees the source while the peer still copies -------------------------------


def deafen(target: Any) -> None:
    """From now on it hears nothing, as if it were stopped."""
    target.unheard = []
    target.end.heard = lambda line, body: target.unheard.append((line, body))


async def heard_late(target: Any) -> None:
    """Its reads end, and then it hears all."""
    while target.end.under_way:  # noqa: ASYNC110 - the end of the reads themselves
        await asyncio.sleep(0.001)
    del target.end.heard
    for line, body in target.unheard:
        target.end.heard(line, body)


async def test_a_source_that_times_out_is_not_free_while_it_is_written_from(
    namespace: str,
) -> None:
    with ends("loopback-write", namespace) as where:
        async with both(where, transfer_timeout=0.2) as (source, target):
            progress = await target.end.receive("r", TARGET)
            session = await source.end.write_to("r", SOURCE)
            FAULTS.order(Fault(kind="stuck", landed=0.5))
            for layer in range(3):
                session.layer_ready(layer)
            await session.seal()
            await FAULTS.until_stuck()
            waiting = asyncio.ensure_future(session.delivered())
            with pytest.raises((TransferTimeout, TransferCancelled)):
                await progress.all(timeout=5)
            await asyncio.sleep(0.3)  # far beyond the limit
            assert not waiting.done()
            FAULTS.release()
            with pytest.raises((TransferTimeout, TransferCancelled)):
                await waiting
            source.fill(9, SOURCE)
            await progress.released(timeout=2)


async def test_what_is_read_from_a_source_that_timed_out_is_not_believed(namespace: str) -> None:
    with ends("loopback-read", namespace) as where:
        async with both(where, transfer_timeout=LATE) as (source, target):
            source.end.transfer_timeout = 0.2  # the reader is the patient one
            session = await source.end.offer("r", SOURCE)
            FAULTS.order(Fault(kind="stuck", landed=0.5))
            progress = await target.end.receive("r", TARGET, mode="read")
            await FAULTS.until_stuck()
            deafen(target)
            with pytest.raises(TransferTimeout, match=r"nothing has moved for 0\.2 s"):
                await session.delivered(timeout=5)
            source.fill(9, SOURCE)  # at once
            FAULTS.release()
            await heard_late(target)
            with pytest.raises(TransferTimeout, match=r"nothing has moved for 0\.2 s"):
                await progress.all(timeout=5)
            await progress.released(timeout=2)


async def test_what_is_mapped_from_a_source_that_timed_out_is_not_believed(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def slowly(*arguments: Any) -> None:
        inside.set()
        assert go_on.wait(10)
        gather.carry(*arguments)

    monkeypatch.setattr("omni_async.kv.mapped.carry", slowly)
    with ends("shm", namespace) as where:
        async with both(where, transfer_timeout=LATE) as (source, target):
            source.end.transfer_timeout = 0.2
            session = await source.end.offer("r", SOURCE)
            progress = await target.end.receive("r", TARGET, mode="read")
            assert await asyncio.to_thread(inside.wait, 5)
            deafen(target)
            with pytest.raises(TransferTimeout, match=r"nothing has moved for 0\.2 s"):
                await session.delivered(timeout=5)
            source.fill(9, SOURCE)
            go_on.set()
            await heard_late(target)
            with pytest.raises(TransferTimeout, match=r"nothing has moved for 0\.2 s"):
                await progress.all(timeout=5)
            await progress.released(timeout=2)


# --- D13: the "ack" meant that the producer had its own copy, not that anybody had it --------------


async def test_sealed_is_not_delivered(where: Ends) -> None:
    async with both(where) as (source, target):
        session = await source.end.write_to("r", SOURCE, timeout=0)
        await session.seal()  # all was handed on
        assert session.state == "sealed"
        with pytest.raises(TransferTimeout, match="its blocks are in use"):
            await session.delivered(timeout=0.05)
        progress = await target.end.receive("r", TARGET)
        await session.delivered(timeout=5)
        assert session.state == "delivered"
        await progress.all(timeout=5)


async def test_a_consumer_that_went_without_asking_has_got_nothing(where: Ends) -> None:
    async with both(where, defer_timeout=0.3) as (source, target):
        session = await source.end.offer("r", SOURCE)
        await target.end.aclose()
        with pytest.raises(TransferTimeout, match="0 consumers have asked"):
            await session.delivered()
        assert session.state == "failed"


# --- D14: a pair of ranks that does not work, told to one side only -------------------------------


async def test_ranks_that_do_not_fit_are_told_to_both_sides(where: Ends) -> None:
    """Each believes in ranks that the other does not have."""
    source, target = Node(layout(tp_size=2, tp_rank=1)), Node(layout())
    async with (
        where.open("sender", "0") as tx,
        where.open("receiver", "1") as rx,
        KVProducer(tx, source.layout, source.caches, defer_timeout=LATE) as producer,
        KVConsumer(
            rx, target.layout, target.caches, from_stage="0", defer_timeout=LATE
        ) as consumer,
    ):
        session = await producer.write_to("r", SOURCE, timeout=0)
        progress = await consumer.receive("r", TARGET)
        for waiting in (progress.all(timeout=5), session.delivered(timeout=5)):
            with pytest.raises(ProtocolError, match=r"rank 0 of 1 .* rank 1 of 2"):
                await waiting


@pytest.mark.parametrize("pair", [(2, 3), (3, 2), (4, 6)])
def test_ranks_between_which_heads_cannot_be_shared_are_refused_at_start(
    pair: tuple[int, int],
) -> None:
    def ranks(tp_size: int) -> KVLayout:
        return layout(kv_heads=4, tp_size=tp_size)

    with pytest.raises(UsageError, match=r"kv_heads 4 .* tp_size [36]"):
        [ranks(tp_size) for tp_size in pair]


# --- D16 of transfers: every wait ends at its limit -----------------------------------------------


async def test_every_wait_for_a_cache_has_the_same_limit(where: Ends) -> None:
    async with both(where) as (source, target):
        progress = await target.end.receive("r", TARGET)
        session = await source.end.write_to("r", SOURCE)
        waits = {
            "layer": progress.layer(0, timeout=0.2),
            "all": progress.all(timeout=0.2),
            "released": progress.released(timeout=0.2),
            "delivered": session.delivered(timeout=0.2),
            "write_to": source.end.write_to("nobody", [0], timeout=0.2),
        }
        for name, wait in waits.items():
            with Clock() as took, pytest.raises(TransferTimeout):
                await wait
            assert 0.19 < took.seconds < 0.7, name
        assert progress.error is None
        await session.seal()
        await progress.all(timeout=5)


async def test_an_engine_that_is_stuck_ends_every_wait_at_the_same_limit(namespace: str) -> None:
    with ends("loopback-write", namespace) as where:
        async with both(where, transfer_timeout=0.3) as (source, target):
            FAULTS.order(Fault(kind="stuck"))
            progress = await target.end.receive("r", TARGET)
            session = await source.end.write_to("r", SOURCE)
            session.layer_ready(0)
            with Clock() as took:
                for waiting in (progress.layer(0), progress.all()):
                    with pytest.raises((TransferTimeout, EngineFault)):
                        await waiting
            assert 0.25 < took.seconds < 1
            FAULTS.release()
            with pytest.raises(omni_async.TransferCancelled):
                await session.delivered(timeout=2)
