"""KV caches between processes: whoever gives up is heard at once, and nothing is mixed, kept or believed in part."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
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
from omni_async.kv import KVConsumer, KVLayout, KVProducer
from omni_async.testing.doubles.loopback import FAULTS
from omni_async.testing.doubles.ordered import Fault
from tests.cases.caches import LATE, both
from tests.ends import Ends, ends
from tests.kv.nodes import Node, give_here, layout
from tests.kv.pairs import SOURCE, TARGET, joined, loopbacks, pair


@pytest.fixture(autouse=True)
def doubles() -> Iterator[None]:
    with loopbacks():
        yield


@pytest.fixture(params=["loopback-write", "loopback-read", "shm"])
def where(request: pytest.FixtureRequest, namespace: str) -> Any:
    with ends(request.param, namespace) as found:
        yield found


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


async def test_a_producer_that_never_starts_costs_the_limit_and_no_memory(where: Ends) -> None:
    target = Node(layout())
    async with (
        where.open("receiver", "1") as rx,
        KVConsumer(rx, target.layout, target.caches, from_stage="0", defer_timeout=0.2) as consumer,
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
        ({"kv_heads": 8}, "kv_heads is 4 at the source and 8 at the target"),
    ],
)
async def test_another_layout_is_refused_on_both_sides_with_both_values(
    where: Ends, change: dict[str, Any], text: str
) -> None:
    source, other = Node(layout()), Node(layout(**change))
    async with joined(where, source, other) as (producer, consumer):
        progress = await consumer.receive("r", [1])
        session = await producer.write_to("r", [1], timeout=0)
        for waiting in (progress.all(timeout=5), session.delivered(timeout=5)):
            with pytest.raises(ProtocolError, match=text):
                await waiting
        again = await consumer.receive("again", [1])
        with pytest.raises(ProtocolError, match=text):
            await again.all(timeout=5)
        await again.released(timeout=5)


async def test_another_block_size_is_no_reason_to_mix_anything(where: Ends) -> None:
    source, target = pair({}, {"block_size": 16, "num_blocks": 6})
    async with joined(where, source, target) as (_, consumer):
        progress = await consumer.receive("r", [4])
        await give_here(source, "r", SOURCE, "write")
        await progress.all(timeout=5)
        assert not target.wrong(1, [4], source.layout, SOURCE)
        assert not target.touched([4])


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
    limits = {"defer_timeout": LATE}
    async with joined(where, source, target, limits=limits) as (producer, consumer):
        session = await producer.write_to("r", SOURCE, timeout=0)
        progress = await consumer.receive("r", TARGET)
        for waiting in (progress.all(timeout=5), session.delivered(timeout=5)):
            with pytest.raises(ProtocolError, match=r"rank 0 of 1 .* rank 1 of 2.*source_tp"):
                await waiting


@pytest.mark.parametrize("sizes", [(2, 3), (3, 2), (4, 6)])
def test_ranks_between_which_heads_cannot_be_shared_are_refused_at_start(
    sizes: tuple[int, int],
) -> None:
    def ranks(tp_size: int) -> KVLayout:
        return layout(kv_heads=4, tp_size=tp_size)

    with pytest.raises(UsageError, match=r"kv_heads 4 .* tp_size [36]"):
        [ranks(tp_size) for tp_size in sizes]


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
