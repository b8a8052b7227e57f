"""Streams over put and get alone: what a store can promise."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import numpy as np
import pytest

from omni_async.errors import (
    ClosedError,
    DecodeError,
    EncodeError,
    KeyNotFound,
    PayloadTooLarge,
    ProtocolError,
    StreamAborted,
    StreamClosed,
    StreamEmpty,
    StreamStalled,
    TransferCancelled,
    TransferTimeout,
    UsageError,
)
from omni_async.model import EdgeName
from omni_async.stream import ChunkReady, ChunkTransferAdapter, StreamFinished
from omni_async.transport.streams.keyed import STALL_SECONDS, KeyedStreams
from omni_async.transport.streams.keyed_reader import KeyedReader
from omni_async.transport.streams.keyed_writer import KeyedWriter
from tests.streams.keyed_ends import opened


@pytest.fixture(params=["memory", "shm"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def until(condition: Any) -> None:
    while not condition():  # noqa: ASYNC110 - gauges tell nobody that they changed
        await asyncio.sleep(0)


async def read_all(reader: KeyedReader) -> list[Any]:
    async with reader:
        return [chunk async for chunk in reader]


async def write_all(writer: KeyedWriter, chunks: list[Any]) -> None:
    async with writer:
        for chunk in chunks:
            await writer.send(chunk)


CHUNKS = [None, 0, b"bytes", {"a": [1, (2, 3)]}, "text", (1, 2, "a tuple of our own", 3, 4)]


@pytest.mark.parametrize("first", ["writer", "reader", "none"])
async def test_chunks_come_in_order_each_once(backend: str, namespace: str, first: str) -> None:
    async with opened(backend, namespace) as ends:
        chunks = [*CHUNKS, *range(40)]
        if first == "writer":
            await write_all(ends.writer(), chunks)
        reading = asyncio.create_task(read_all(ends.reader()))
        if first == "reader":
            await until(lambda: ends.rx.health().parked == 1)
        if first != "writer":
            await write_all(ends.writer(), chunks)
        assert await reading == chunks
        assert await ends.tx.drain(5) == 0
        assert ends.tx.health().pool_used == 0


async def test_arrays_are_views_that_give_their_memory_back(backend: str, namespace: str) -> None:
    async with opened(backend, namespace) as ends:
        sent = [np.full(100_000, n, np.uint8) for n in range(3)]
        async with ends.writer() as writer, ends.reader() as reader:
            for chunk in sent:
                await writer.send({"x": chunk})
            kept = [await reader.read() for _ in sent]
            assert all(np.array_equal(got["x"], x) for got, x in zip(kept, sent, strict=True))
            assert ends.tx.health().pool_used >= 300_000
            kept.clear()
            gc.collect()
            await until(lambda: ends.tx.health().pool_used == 0)


async def test_a_waiting_reader_is_one_parked_get(backend: str, namespace: str) -> None:
    async with opened(backend, namespace) as ends:
        reader = ends.reader()
        async with reader:
            waiting = asyncio.create_task(reader.read())
            await until(lambda: ends.rx.health().parked == 1)
            before = ends.rx.counters.as_dict()
            await asyncio.sleep(0.05)
            assert ends.rx.health().parked == 1
            assert ends.rx.counters.as_dict() == before
            async with ends.writer() as writer:
                await writer.send("now")
            assert await waiting == "now"


async def test_segments_are_seen_and_the_stream_goes_on(backend: str, namespace: str) -> None:
    async with opened(backend, namespace) as ends:
        async with ends.writer() as writer:
            for segment in range(3):
                for number in range(segment):
                    await writer.send((segment, number))
                await writer.end_segment()
            await writer.send("tail")
        async with ends.reader() as reader:
            seen = [[chunk async for chunk in segment] async for segment in reader.segments()]
    assert seen == [[], [(1, 0)], [(2, 0), (2, 1)], ["tail"]]


async def test_what_was_sent_before_an_exception_comes_before_its_reason(
    backend: str, namespace: str
) -> None:
    async with opened(backend, namespace) as ends:

        async def write() -> None:
            async with ends.writer() as writer:
                await writer.send(1)
                raise LookupError("no such voice")

        with pytest.raises(LookupError):
            await write()
        async with ends.reader() as reader:
            assert await reader.read() == 1
            for _ in range(2):
                with pytest.raises(StreamAborted, match="no such voice") as caught:
                    await reader.read()
                assert caught.value.reason == "LookupError: no such voice"
                assert (caught.value.key, caught.value.edge) == ("r", ("0", "1"))


async def test_a_cancelled_writer_tells_why(backend: str, namespace: str) -> None:
    async with opened(backend, namespace) as ends:
        inside = asyncio.Event()

        async def write() -> None:
            async with ends.writer():
                inside.set()
                await asyncio.Event().wait()

        writing = asyncio.create_task(write())
        await inside.wait()
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        async with ends.reader() as reader:
            with pytest.raises(StreamAborted, match="task was cancelled"):
                await reader.read()


async def test_an_end_need_not_be_awaited_and_is_said_once(backend: str, namespace: str) -> None:
    async with opened(backend, namespace) as ends:
        writer = ends.writer()
        async with writer:
            await writer.send(1)
            writer.abort("")
            writer.finish()
            with pytest.raises(UsageError, match="ended here"):
                await writer.send(2)
            await ends.sending.settle()
            await writer.finish()
        async with ends.reader() as reader:
            assert await reader.read() == 1
            with pytest.raises(StreamAborted) as caught:
                await reader.read()
            assert caught.value.reason == "aborted"


async def test_a_finished_stream_says_so_as_often_as_it_is_asked(
    backend: str, namespace: str
) -> None:
    async with opened(backend, namespace) as ends:
        await write_all(ends.writer(), [1])
        reader = ends.reader()
        async with reader:
            assert [chunk async for chunk in reader] == [1]
            assert [chunk async for chunk in reader] == []
            for _ in range(2):
                with pytest.raises(StreamClosed, match="finished"):
                    await reader.read()
            assert not reader.fail(ClosedError("too late"))


async def test_a_dead_writer_is_given_up_after_the_stall_limit(
    backend: str, namespace: str
) -> None:
    async with opened(backend, namespace, stall=0.05) as ends:
        writer = ends.writer("req-9")
        await writer.__aenter__()
        await writer.send("a")
        await writer.end_segment()
        async with ends.reader("req-9") as reader:
            assert await reader.read() == "a"
            with pytest.raises(StreamStalled, match=r"'req-9' on 0->1: chunk 1 .* 0\.05 s") as at:
                await reader.read()
            with pytest.raises(StreamStalled):
                await reader.read()
            assert (at.value.key, at.value.edge) == ("req-9", ("0", "1"))
            assert (at.value.chunk, at.value.timeout) == (1, 0.05)
            assert isinstance(at.value, TimeoutError)
        streams = ends.rx.meters.snapshot(())["0->1"]
        assert (streams.failures, streams.stalls) == (1, 1)


async def test_without_a_stall_limit_a_reader_waits_on(backend: str, namespace: str) -> None:
    async with opened(backend, namespace, stall=None) as ends:
        reading = asyncio.create_task(read_all(ends.reader()))
        await until(lambda: ends.rx.health().parked == 1)
        await write_all(ends.writer(), ["late"])
        assert await reading == ["late"]


@pytest.mark.parametrize("limit", [0, -1.0, float("nan"), "600"])
def test_a_stall_limit_that_makes_no_sense_is_refused(limit: Any) -> None:
    with pytest.raises(UsageError, match="stall_timeout"):
        KeyedStreams(None, stall_timeout=limit)  # type: ignore[arg-type]
    assert STALL_SECONDS == 600.0


async def test_a_read_that_is_late_loses_nothing(backend: str, namespace: str) -> None:
    async with opened(backend, namespace) as ends, ends.reader() as reader:
        with pytest.raises(TransferTimeout, match=r"chunk 0 .* the stream goes on") as caught:
            await reader.read(timeout=0.01)
        assert caught.value.phase == "waiting for a chunk"
        with pytest.raises(UsageError):
            await reader.read(timeout=-1)
        cancelled = asyncio.create_task(reader.read())
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        await write_all(ends.writer(), ["x", "y"])
        assert [chunk async for chunk in reader] == ["x", "y"]


async def test_read_nowait(backend: str, namespace: str) -> None:
    async with opened(backend, namespace) as ends, ends.reader() as reader:
        with pytest.raises(StreamEmpty, match="chunk 0"):
            reader.read_nowait()
        async with ends.writer() as writer:
            await writer.send(1)
            await writer.end_segment()
        assert await reader.read() == 1
        await until(lambda: reader.ready)
        with pytest.raises(StreamEmpty):  # a mark is passed over, and nothing is behind it yet
            reader.read_nowait()
        assert reader.segment == 1
        await until(lambda: reader.ready)
        with pytest.raises(StreamClosed):
            reader.read_nowait()


async def test_one_task_reads_at_a_time(backend: str, namespace: str) -> None:
    async with opened(backend, namespace) as ends, ends.reader() as reader:
        waiting = asyncio.create_task(reader.read())
        await asyncio.sleep(0)
        with pytest.raises(UsageError, match="another task"):
            await reader.read()
        waiting.cancel()


async def test_a_reader_that_leaves_takes_its_get_along(backend: str, namespace: str) -> None:
    async with opened(backend, namespace) as ends:
        async with ends.writer() as writer:
            for number in range(4):
                await writer.send(np.full(50_000, number, np.uint8))
            reader = ends.reader()
            async with reader:
                assert (await reader.read())[0] == 0
                await until(lambda: reader.ready)
                reader.leave()
                with pytest.raises(UsageError, match="has been left"):
                    await reader.read()
            assert ends.rx.health().parked == 0
            await writer.send("nobody told the writer")
        assert ends.tx.health().pool_used > 0
        assert await ends.tx.cleanup("r") == 4  # two chunks, the last one and the end
        streams = ends.rx.meters.snapshot(())["0->1"]
        assert (streams.left, streams.drops) == (1, 1)


async def test_a_parked_reader_leaves(backend: str, namespace: str) -> None:
    async with opened(backend, namespace) as ends:
        async with ends.reader():
            await until(lambda: ends.rx.health().parked == 1)
        assert ends.rx.health().parked == 0
        async with ends.reader():
            pass  # the key is free again


async def test_an_id_that_is_used_again_never_gets_what_was_left(
    backend: str, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(backend, namespace) as ends:
        await write_all(ends.writer(), ["old 0", "old 1", "old 2"])
        edge = ends.rx.meters.edge(EdgeName("0", "1"))
        async with ends.writer() as writer:
            await writer.send("new 0")
            reading = asyncio.create_task(read_all(ends.reader()))
            await until(lambda: edge.drops == 1)
            for number in range(1, 5):
                await writer.send(f"new {number}")
        assert await reading == [f"new {number}" for number in range(5)]
        assert "stream.drop" in caplog.text
        assert await ends.tx.drain(5) == 0
        assert ends.tx.health().pool_used == 0


async def test_a_reader_of_a_replaced_stream_is_told(backend: str, namespace: str) -> None:
    async with opened(backend, namespace) as ends:
        old = ends.writer()
        async with ends.reader() as reader:
            async with old:
                await old.send("old 0")
                assert await reader.read() == "old 0"
                old.fail(ClosedError("the process was killed"))
            await write_all(ends.writer(), ["new 0", "new 1"])
            with pytest.raises(StreamAborted, match="another writer"):
                await reader.read()


async def test_the_end_of_an_old_stream_never_hits_the_new_one(
    backend: str, namespace: str
) -> None:
    async with opened(backend, namespace) as ends:
        old, new = ends.writer(), ends.writer()
        await old.__aenter__()
        old.finish()  # on its way
        assert not old.fail(ClosedError("too late"))
        await write_all(new, ["new"])
        assert await read_all(ends.reader()) == ["new"]
        for _ in range(2):  # the end of neither has left when the next one begins
            old = ends.writer()
            await old.__aenter__()
            old.finish()
        async with ends.writer() as last:
            await ends.sending.settle()
            await last.send("last")
        assert await read_all(ends.reader()) == ["last"]


async def test_one_writer_and_one_reader_a_key(backend: str, namespace: str) -> None:
    async with opened(backend, namespace) as ends:
        async with ends.writer() as writer, ends.reader() as reader:
            with pytest.raises(UsageError, match="a writer already"):
                await ends.writer().__aenter__()
            with pytest.raises(UsageError, match="a reader already"):
                await ends.reader().__aenter__()
            for end in (writer, reader):
                with pytest.raises(UsageError, match="entered before"):
                    await end.__aenter__()
        for end in (writer, reader):
            with pytest.raises(UsageError, match="entered before"):
                await end.__aenter__()


async def test_before_it_has_begun(backend: str, namespace: str) -> None:
    async with opened(backend, namespace) as ends:
        writer, reader = ends.writer(), ends.reader()
        with pytest.raises(UsageError, match="has not begun"):
            await writer.send(1)
        with pytest.raises(UsageError, match="has not begun"):
            await reader.read()
        await writer.finish()
        await reader.leave()
        assert (writer.sent, reader.received) == (0, 0)


async def test_a_chunk_that_cannot_be_sent_leaves_the_stream_as_it_was(
    backend: str, namespace: str
) -> None:
    async with opened(backend, namespace, pool=1 << 20) as ends:
        async with ends.writer() as writer:
            with pytest.raises(EncodeError, match=r"^value\['x'\]") as caught:
                await writer.send({"x": object()})
            assert caught.value.path == "value['x']"
            with pytest.raises(PayloadTooLarge, match="chunk 0 of stream 'r'") as large:
                await writer.send(np.zeros(2 << 20, np.uint8))
            assert (large.value.key, large.value.edge) == ("r", ("0", "1"))
            await writer.send("good")
            assert writer.sent == 1
        assert await read_all(ends.reader()) == ["good"]


async def test_a_chunk_that_cannot_be_read_leaves_the_stream_going(
    backend: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(backend, namespace) as ends:
        await write_all(ends.writer(), [0, 1, 2])
        get = ends.rx.get
        calls = 0

        async def once_bad(*args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            delivery = await get(*args, **options)
            if calls == 2:
                raise DecodeError("of a type that is not registered here")
            return delivery

        monkeypatch.setattr(ends.rx, "get", once_bad)
        async with ends.reader() as reader:
            assert await reader.read() == 0
            with pytest.raises(DecodeError):
                await reader.read()
            assert await reader.read() == 2


async def test_what_is_no_item_ends_the_stream(backend: str, namespace: str) -> None:
    async with opened(backend, namespace) as ends:
        await ends.tx.put("0", "1", "r_0_0", {"meta": "of somebody else"})
        async with ends.reader() as reader:
            for _ in range(2):
                with pytest.raises(ProtocolError, match="'r_0_0' is no item"):
                    await reader.read()


async def test_an_expired_item_is_told_as_the_stream_s(
    backend: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(backend, namespace) as ends:

        async def expired(*_: Any, **__: Any) -> Any:
            raise KeyNotFound("it has expired", expired=True, key="r_0_0")

        monkeypatch.setattr(ends.rx, "get", expired)
        async with ends.reader() as reader:
            with pytest.raises(KeyNotFound, match="chunk 0 of stream 'r'") as caught:
                await reader.read()
            assert (caught.value.key, caught.value.edge) == ("r", ("0", "1"))


async def test_cleanup_ends_both_sides_here(backend: str, namespace: str) -> None:
    async with opened(backend, namespace) as ends:
        async with ends.writer() as writer, ends.writer("other") as other:
            async with ends.reader("r") as reader, ends.reader("other") as another:
                await writer.send(1)
                await until(lambda: reader.ready)
                assert ends.sending.cleanup("r") == 1
                assert ends.sending.cleanup("r") == 0
                assert ends.receiving.cleanup("r") == 1
                assert await reader.read() == 1  # it had arrived
                for call in (reader.read, writer.end_segment):
                    with pytest.raises(TransferCancelled, match="cleanup"):
                        await call()
                parked = asyncio.create_task(another.read())
                await asyncio.sleep(0)
                assert ends.receiving.cleanup("other") == 1
                with pytest.raises(TransferCancelled):
                    await parked
                assert not another.fail(ClosedError("twice"))
                await other.send("the sender does not know")
        assert ends.tx.meters.snapshot(())["0->1"].aborted == 1
        assert ends.rx.meters.snapshot(())["0->1"].aborted == 2


async def test_cleanup_while_an_item_is_put_takes_it_back(
    backend: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(backend, namespace) as ends:
        put = ends.tx.put

        async def late(*args: Any, **options: Any) -> Any:
            ends.sending.cleanup("r")
            return await put(*args, **options)

        async with ends.writer() as writer:
            monkeypatch.setattr(ends.tx, "put", late)
            with pytest.raises(TransferCancelled):
                await writer.send(1)
            assert writer.sent == 0


async def test_an_error_that_has_arrived_is_told_as_the_cleanup(
    backend: str, namespace: str
) -> None:
    async with opened(backend, namespace) as ends:
        await ends.tx.put("0", "1", "r_0_0", "no item")
        async with ends.reader() as reader:
            await until(lambda: reader.ready)
            ends.receiving.cleanup("r")
            with pytest.raises(TransferCancelled):
                await reader.read()


async def test_space_holds_a_writer_back_and_nothing_else(backend: str, namespace: str) -> None:
    async with opened(backend, namespace, pool=1 << 20) as ends:
        writer = ends.writer()
        async with writer:
            blocked = asyncio.create_task(_fill(writer))
            await until(lambda: ends.tx.health().pool_used > 700_000)
            for _ in range(50):
                await asyncio.sleep(0)
            ahead = writer.sent
            assert 1 < ahead < 20
            assert [stream.in_flight for _, stream in ends.sending.flowing()] == [1]
            async with ends.reader() as reader:
                for number in range(20):
                    assert (await reader.read())[0] == number
            await blocked


async def _fill(writer: KeyedWriter) -> None:
    for number in range(20):
        await writer.send(np.full(100_000, number, np.uint8))


async def test_closing_ends_streams_and_says_so(
    backend: str, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(backend, namespace) as ends:
        writer, aborted, reader = ends.writer(), ends.writer("b"), ends.reader()
        await writer.__aenter__()
        await aborted.__aenter__()
        await reader.__aenter__()
        await ends.tx.aclose()
        await ends.rx.aclose()
        with pytest.raises(ClosedError):
            await writer.send(1)
        with pytest.raises(ClosedError):
            await reader.read()
        with pytest.raises(ClosedError):
            await writer.finish()
        await aborted.abort("told to nobody")
        await reader.leave()
        assert caplog.text.count("stream.fail") == 3


async def test_gauges_of_keyed_streams(backend: str, namespace: str) -> None:
    async with opened(backend, namespace) as ends:

        def seen(streams: KeyedStreams) -> Any:
            return streams.meters.snapshot(streams.flowing())["0->1"]

        async with ends.writer() as writer, ends.reader() as reader:
            assert (seen(ends.receiving).queued, seen(ends.sending).queued) == (0, 0)
            await writer.send(np.zeros(5000, np.uint8))
            await until(lambda: reader.ready)
            arrived = seen(ends.receiving)
            assert (arrived.queued, arrived.in_flight, arrived.credits) == (1, 0, 0)
            await reader.read()
        sent, received = seen(ends.sending), seen(ends.receiving)
        assert (sent.chunks, sent.finished) == (1, 1)
        assert (received.chunks, received.left) == (1, 1)
        assert sent.nbytes == received.nbytes > 5000
        assert received.chunk_seconds.count == received.first_chunk_seconds.count == 1


async def test_an_arrival_and_an_end_in_one_turn(backend: str, namespace: str) -> None:
    async with opened(backend, namespace) as ends:
        reader = ends.reader()
        async with reader:
            reading = asyncio.create_task(reader.read())
            await write_all(ends.writer(), ["arrived"])
            await until(lambda: reader.ready)
            await asyncio.sleep(0)  # the reader is told, and has not run yet
            ends.receiving.cleanup("r")
            assert await reading == "arrived"
            with pytest.raises(TransferCancelled):
                await reader.read()


async def test_a_scheduler_s_adapter_drives_keyed_streams(
    backend: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(backend, namespace) as ends:
        monkeypatch.setattr(ends.tx, "writer", ends.sending.writer)
        monkeypatch.setattr(ends.rx, "reader", ends.receiving.reader)
        async with (
            ChunkTransferAdapter(None, output=ends.tx.edge("0", "1")) as out,
            ChunkTransferAdapter(None, input=ends.rx.edge("0", "1")) as into,
        ):
            requests = [f"r{number}" for number in range(8)]
            for request in requests:
                into.register(request)
            for number in range(10):
                for request in requests:
                    await out.send(request, (request, number), finished=number == 9)
            got: dict[str, list[Any]] = {request: [] for request in requests}
            finished = 0
            async for event in into.events():
                if isinstance(event, StreamFinished):
                    finished += 1
                    if finished == len(requests):
                        break
                else:
                    assert isinstance(event, ChunkReady)
                    got[event.request_id].append(event.chunk)
        for request, chunks in got.items():
            assert chunks == [(request, number) for number in range(10)]
