"""Streams between two processes where something goes wrong on the way of a larger chunk, or of a word.

In: faults of the loopback engine and of channels. Out: errors with names, and nothing left behind.
Never: leaves the choice of the moment to chance, but where a seed makes it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import omni_async
from omni_async.abc import Channels, Options
from omni_async.errors import (
    BackPressure,
    EngineFault,
    PeerLost,
    ProtocolError,
    SequenceGap,
    StreamClosed,
    TransferCancelled,
    UsageError,
)
from omni_async.registry import register_backend
from omni_async.rendezvous import stream_readers
from omni_async.rendezvous.messages import Chunk, Segment
from omni_async.testing.chunks import still
from omni_async.testing.doubles.loopback import FAULTS, LoopbackRead, LoopbackWrite
from omni_async.testing.doubles.ordered import Fault
from omni_async.testing.faults import FaultyChannels
from omni_async.testing.leaks import no_leaks, quiet
from omni_async.testing.recipes import pattern_array
from omni_async.testing.sides import LocalSide, attempt
from omni_async.transport.streams import window_of
from omni_async.transport.streams.direct_reader import DirectReader
from omni_async.transport.streams.direct_writer import DirectWriter

LARGE = 100_000
POOL = 4 << 20


@pytest.fixture(autouse=True)
def faults() -> Iterator[None]:
    register_backend(LoopbackWrite())
    register_backend(LoopbackRead())
    yield
    FAULTS.clear()


@pytest.fixture(params=["loopback-read", "loopback-write"])
def moving(request: pytest.FixtureRequest) -> str:
    """A connector whose engine moves bytes."""
    name: str = request.param
    return name


class Pair:
    """Both ends of an edge in this process."""

    def __init__(self, tx: omni_async.Transport, rx: omni_async.Transport) -> None:
        self.tx = tx
        self.rx = rx

    @contextlib.asynccontextmanager
    async def ends(
        self, key: str = "k", window: int | None = None
    ) -> AsyncIterator[tuple[DirectWriter, DirectReader]]:
        async with (
            self.rx.edge("0", "1").reader(key, window=window) as sink,
            self.tx.edge("0", "1").writer(key, window=window) as source,
        ):
            assert isinstance(source, DirectWriter)
            assert isinstance(sink, DirectReader)
            yield source, sink

    async def settled(self) -> None:
        await still(LocalSide(self.tx), LocalSide(self.rx))
        for transport in (self.tx, self.rx):
            await quiet(transport)


@contextlib.asynccontextmanager
async def pair(connector: str, namespace: str) -> AsyncIterator[Pair]:
    async with no_leaks(mark=namespace):
        spec = {"name": connector, "extra": {"memory_pool_size": POOL}}
        options: dict[str, Any] = {"namespace": namespace, "linger": 0.0}
        async with (
            omni_async.open_transport(spec, role="sender", stage="0", **options) as tx,
            omni_async.open_transport(spec, role="receiver", stage="1", **options) as rx,
        ):
            yield Pair(tx, rx)


async def _refused(source: DirectWriter) -> None:
    """Send until the writer has heard that its reader is gone."""
    for _ in range(2000):
        try:
            await source.send("is anybody there?")
        except StreamClosed:
            return
        await asyncio.sleep(0.001)
    raise AssertionError("nobody told the writer")


# --- larger chunks on their way -------------------------------------------------------------------


async def test_an_engine_that_fails_ends_the_stream_at_both_ends(
    namespace: str, moving: str
) -> None:
    async with pair(moving, namespace) as both:
        async with both.ends() as (source, sink):
            await source.send(pattern_array(LARGE, 0))
            assert (await sink.read(5) == pattern_array(LARGE, 0)).all()
            FAULTS.order(Fault("failing"))
            await source.send(pattern_array(LARGE, 1))
            for _ in range(2):
                with pytest.raises(EngineFault, match="chunk 1 of stream 'k' on 0->1") as caught:
                    await sink.read(5)
                assert (caught.value.key, caught.value.edge) == ("k", ("0", "1"))
            await _refused(source)
        await both.settled()


async def test_a_reader_leaves_while_a_chunk_is_stuck(namespace: str, moving: str) -> None:
    """It leaves at once; the slots are free when the engine has ended, not before."""
    async with pair(moving, namespace) as both:
        async with both.ends() as (source, sink):
            FAULTS.order(Fault("stuck"))
            await source.send(pattern_array(LARGE, 0))
            await FAULTS.until_stuck()
            await asyncio.wait_for(sink.leave(), 1)
            side = both.rx if moving == "loopback-write" else both.tx
            assert side.health().pool_used >= LARGE
            FAULTS.release()
        await both.settled()


async def test_a_read_under_a_limit_while_a_chunk_is_stuck(namespace: str, moving: str) -> None:
    async with pair(moving, namespace) as both:
        async with both.ends() as (source, sink):
            FAULTS.order(Fault("stuck"))
            await source.send(pattern_array(LARGE, 0))
            await source.send(1)
            await FAULTS.until_stuck()
            with pytest.raises(omni_async.TransferTimeout, match="chunk 0 "):
                await sink.read(0.05)
            with pytest.raises(omni_async.StreamEmpty):
                sink.read_nowait()
            assert (sink.in_flight, sink.queued, sink.ready) == (1, 1, False)
            FAULTS.release()
            assert (await sink.read(5) == pattern_array(LARGE, 0)).all()
            assert await sink.read(5) == 1
        await both.settled()


@pytest.mark.parametrize("how", ["cleanup", "close", "abort"])
@pytest.mark.filterwarnings("ignore:transport .* cannot be recalled:ResourceWarning")
async def test_the_sender_goes_while_a_chunk_is_on_its_way(
    namespace: str, moving: str, how: str
) -> None:
    """What had arrived before is still read; then the reader is told, and does not wait."""
    async with no_leaks(mark=namespace):
        async with pair(moving, namespace) as both:
            async with both.rx.edge("0", "1").reader("k") as sink:
                source = await both.tx.edge("0", "1").writer("k").__aenter__()
                await source.send(0)
                FAULTS.order(Fault("slow", seconds=0.3))
                await source.send(pattern_array(LARGE, 1))
                await source.send(2)
                await source.finish()
                await asyncio.sleep(0.05)
                if how == "cleanup":
                    assert await both.tx.cleanup("k") == 1
                    expected: Any = TransferCancelled
                elif how == "close":
                    await both.tx.aclose()
                    expected = (PeerLost, EngineFault)
                else:
                    both.tx.abort()
                    expected = (PeerLost, EngineFault)
                assert await sink.read(5) == 0
                outcome = await attempt(sink.read(5))
                if isinstance(outcome, Exception):
                    assert isinstance(outcome, expected)
                    assert "'k'" in str(outcome)
                else:  # it had come before the sender went
                    assert (outcome == pattern_array(LARGE, 1)).all()
                    assert await sink.read(5) == 2
                del outcome
            await still(LocalSide(both.rx))


async def test_a_writer_that_is_ended_while_it_waits_for_memory(namespace: str) -> None:
    async with pair("shm", namespace) as both:
        await both.tx.put("0", "1", "fills", bytes(POOL * 9 // 10))
        async with both.ends() as (source, _):
            sending = asyncio.create_task(source.send(bytes(POOL // 2)))
            await asyncio.sleep(0.02)
            assert not sending.done()
            await source.abort("enough")
            with pytest.raises(UsageError, match="ended here"):
                await asyncio.wait_for(sending, 1)
        await both.tx.cleanup("fills")
        await both.settled()


async def test_a_chunk_that_was_being_put_when_its_reader_left(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is put to its end, and taken back."""
    async with pair("shm", namespace) as both:
        async with both.ends() as (source, sink):
            await source.send(0)
            assert await sink.read(5) == 0
            put = source._sending.put

            async def late(*arguments: Any) -> Any:
                receipt = await put(*arguments)
                await sink.leave()
                await asyncio.sleep(0.02)
                return receipt

            monkeypatch.setattr(source._sending, "put", late)
            with pytest.raises(StreamClosed):
                await source.send(pattern_array(LARGE))
        await both.settled()


# --- many who send --------------------------------------------------------------------------------


async def test_tasks_that_send_at_once_take_turns(namespace: str) -> None:
    """In the order of their calls, also when one of them is cancelled."""
    async with pair("shm", namespace) as both:
        async with both.ends(window=1) as (source, sink):
            await source.send("first")
            chunks: list[Any] = [n if n % 3 else pattern_array(LARGE, n) for n in range(9)]
            sends = [asyncio.create_task(source.send(chunk)) for chunk in chunks]
            await asyncio.sleep(0.01)
            assert source.room == 0
            with pytest.raises(BackPressure):
                source.send_nowait("overtakes")
            sends[4].cancel()
            assert await sink.read(5) == "first"
            for number in (0, 1, 2, 3, 5, 6, 7, 8):
                value = await sink.read(5)
                if number % 3:
                    assert value == number
                else:
                    assert (value == pattern_array(LARGE, number)).all()
            outcomes = await asyncio.gather(*sends, return_exceptions=True)
            assert [n for n, outcome in enumerate(outcomes) if outcome is not None] == [4]
        await both.settled()


async def test_sending_without_waiting(namespace: str) -> None:
    async with pair("shm", namespace) as both:
        async with both.ends(window=2) as (source, sink):
            assert source.room == 2
            source.send_nowait(0)
            with pytest.raises(BackPressure, match="await send"):
                source.send_nowait(pattern_array(LARGE))
            source.send_nowait(1)
            with pytest.raises(BackPressure):
                source.send_nowait(2)
            assert [await sink.read(5), await sink.read(5)] == [0, 1]
            assert source.failure() is None
            await sink.leave()
            await _refused(source)
            assert isinstance(source.failure(), StreamClosed)
        await both.settled()


def test_before_it_has_begun_a_writer_has_no_room() -> None:
    writer = DirectWriter.__new__(DirectWriter)
    writer._outlet = None
    assert (writer.room, writer.sent, writer.failure()) == (0, 0, None)


# --- words that make no sense ---------------------------------------------------------------------


async def test_a_word_that_contradicts_itself_costs_one_chunk(namespace: str) -> None:
    async with pair("shm", namespace) as both:
        async with both.ends() as (source, sink):
            await source.send(0)
            assert await sink.read(5) == 0
            sink._link.core.receive(Chunk(sink._inlet.op, 1, [5, 7], b"short"))
            sink._link.pump()
            with pytest.raises(ProtocolError, match="chunk 1 of stream 'k'"):
                sink.read_nowait()
            with pytest.raises(omni_async.StreamEmpty, match="chunk 2 "):
                sink.read_nowait()


async def test_an_item_that_was_left_out(namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_readers, "EARLY", 0)
    async with pair("shm", namespace) as both:
        async with both.ends(window=2) as (source, sink):
            await source.send(0)
            assert await sink.read(5) == 0
            for seq in (2, 3, 4):
                sink._link.core.receive(Segment(sink._inlet.op, seq))
            sink._link.pump()
            with pytest.raises(SequenceGap) as caught:
                await sink.read(5)
            assert (caught.value.expected, caught.value.received) == (1, 4)
            await _refused(source)
        await both.settled()


async def test_a_sender_that_will_never_answer(namespace: str) -> None:
    """One of another pipeline, whose address was given by mistake."""
    async with pair("shm", namespace) as both:
        async with omni_async.open_transport(
            "shm", role="receiver", stage="1", namespace=f"{namespace}-other"
        ) as stranger:
            address = both.tx.health().host
            metadata = {"source_host": address, "source_port": 0}
            async with stranger.edge("0", "1").reader("k", metadata=metadata) as sink:
                with pytest.raises(ProtocolError, match="namespace"):
                    await sink.read(10)
        await both.settled()


# --- words that come late or twice ----------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
async def test_words_that_overtake_each_other_or_come_twice(namespace: str, seed: int) -> None:
    """Every chunk once, in order, and all ends confirmed."""

    class Unruly(LoopbackRead):
        name = "UnrulyDouble"
        alias = "unruly"

        def channels(self, options: Options) -> Channels:
            chances = {"lose": 0.0, "double": 0.2, "delay": 0.3, "longest": 0.01}
            return FaultyChannels(super().channels(options), seed=seed, **chances)

    register_backend(Unruly())
    async with pair("unruly", namespace) as both:

        async def exchange(key: str) -> None:
            async with both.ends(key, window=4) as (source, sink):
                writing = asyncio.create_task(_write(source))
                got = [[chunk async for chunk in segment] async for segment in sink.segments()]
                await writing
            assert got == [list(range(20)), list(range(20, 40)), [40]]

        async def _write(source: DirectWriter) -> None:
            for number in range(41):
                await source.send(number)
                if number in (19, 39):
                    await source.end_segment()
            await source.finish()

        for _ in range(2):
            await asyncio.wait_for(asyncio.gather(*(exchange(f"k{n}") for n in range(8))), 20)
        await still(LocalSide(both.tx), LocalSide(both.rx))


# --- small things ---------------------------------------------------------------------------------


async def test_what_people_see(namespace: str) -> None:
    async with pair("shm", namespace) as both:
        reader = both.rx.edge("0", "1").reader("later")
        assert isinstance(reader, DirectReader)
        assert reader.describe() == "nobody was asked"
        async with both.ends() as (source, sink):
            await source.send(1)
            assert await sink.read(5) == 1
            assert repr(source) == "<DirectWriter of 'k' on 0->1, 1 sent>"
            assert repr(sink) == "<DirectReader of 'k' on 0->1, 1 received>"
            assert "sender" in sink.describe()
            assert (source.key, sink.key) == ("k", "k")
            await source.abort("")
            with pytest.raises(omni_async.StreamAborted) as caught:
                await sink.read(5)
            assert caught.value.reason == "aborted"


async def test_segments_that_are_not_read_to_their_end(namespace: str) -> None:
    """The next one begins where it begins; the one before is over, whoever still has it."""
    async with pair("shm", namespace) as both:
        async with both.ends() as (source, sink):
            for number in range(6):
                await source.send(number)
                if number % 3 == 2:
                    await source.end_segment()
            await source.finish()
            got: list[Any] = []
            kept = None
            async for segment in sink.segments():
                got.append(await segment.__anext__())
                if kept is not None:
                    assert [chunk async for chunk in kept] == []
                kept = segment
            assert got == [0, 3]
            assert sink.segment == 2


async def test_a_segment_that_is_read_after_the_next_has_begun(namespace: str) -> None:
    async with pair("shm", namespace) as both:
        async with both.ends() as (source, sink):
            await source.send(0)
            await source.end_segment()
            await source.send(1)
            await source.finish()
            segments = sink.segments()
            first = await segments.__anext__()
            assert await first.__anext__() == 0
            assert await sink.read(5) == 1  # over the boundary
            with pytest.raises(StopAsyncIteration):
                await first.__anext__()


def test_before_it_has_begun_a_reader_gives_no_credit() -> None:
    reader = DirectReader.__new__(DirectReader)
    reader._begun = False
    reader.acknowledge(1)
    reader.widen(8)
    assert reader.describe() == "nobody was asked"


async def test_larger_chunks_do_not_expire_before_their_stream(namespace: str) -> None:
    """Payloads beside them do, in any order of both."""
    async with no_leaks(mark=namespace):
        spec = {"name": "shm", "extra": {"buffer_ttl_seconds": 0.2}}
        async with omni_async.open_transport(
            spec, role="sender", stage="0", namespace=namespace, linger=0.0
        ) as tx:
            source = await tx.edge("0", "1").writer("k").__aenter__()
            await source.send(pattern_array(LARGE, 0))
            await tx.put("0", "1", "other", bytes(LARGE))
            await source.send(pattern_array(LARGE, 1))
            await tx.put("0", "1", "another", bytes(LARGE))
            await quiet(tx, pool_used=None)
            assert tx.health().pool_used >= 4 * LARGE
            await asyncio.sleep(0.5)
            assert 2 * LARGE <= tx.health().pool_used < 3 * LARGE
            await source.finish()
            await quiet(tx)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [((-1, -1), 32), ((4, -1), 4), ((-1, 1), 1), ((4, 2), 2), ((0, 0), 32)],
)
def test_windows(sizes: tuple[int, int], expected: int) -> None:
    assert window_of(*sizes) == expected
