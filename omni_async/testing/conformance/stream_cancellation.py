"""A cancellation at every await point of streams in turn: no chunk is lost, doubled or left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ...transport.streams import ChunkReader, ChunkWriter
from ..chunks import End, reader, still, writer
from ..faults import CancelAt, Moment
from ..recipes import Recipe, pattern, pattern_array
from ..rig import Rig
from ..sides import LocalSide, Side, attempt
from .base import ONE_LOOP, RECEIVER_HERE, SENDER_HERE, Conformance, only, runs
from .cancellation import BOUND, MOMENTS

SIZES = pytest.mark.parametrize("nbytes", [100, 150_000, 3 << 20])


class StreamCancellation(Conformance):
    @SIZES
    @MOMENTS
    @runs(*SENDER_HERE)
    async def test_send(self, rig: Rig, moment: Moment, nbytes: int) -> None:
        """A send that was cancelled sent nothing; the next one takes its place."""
        only(rig, "credit", "over a store a chunk that was cancelled may have been sent")
        tx, rx = await rig.pair()
        stream, sink = await _write(tx, "k"), await reader(rx, "k")
        sent: list[Recipe] = []
        for seed in _steps():
            attempted: CancelAt = CancelAt(seed, moment)
            await attempted.run(stream.send(pattern_array(nbytes, seed)))
            assert attempted.error is None
            if not attempted.cancelled:
                sent.append(pattern(nbytes, seed))
                assert await sink.read(sent[-1]) is None
            assert stream.sent == len(sent)
            if not attempted.reached:
                break
        await _finish(stream, sink)
        await still(tx, rx)
        await rig.quiet()

    @pytest.mark.parametrize("nbytes", [100, 150_000])
    @MOMENTS
    @runs(*SENDER_HERE)
    async def test_send_that_waits_for_credit(self, rig: Rig, moment: Moment, nbytes: int) -> None:
        only(rig, "credit", "without credit nobody waits for it")
        tx, rx = await rig.pair()
        stream, sink = await _write(tx, "k", 1), await reader(rx, "k", 1)
        await stream.send(pattern_array(nbytes, 0))
        seed = 0
        while True:
            seed += 1
            assert seed < BOUND
            reading = asyncio.create_task(_read_soon(sink))
            attempted: CancelAt = CancelAt(seed - 1, moment)
            await attempted.run(stream.send(pattern_array(nbytes, seed)))
            assert attempted.error is None
            await reading
            if attempted.cancelled:
                await stream.send(pattern_array(nbytes, seed))
            if not attempted.reached:
                break
        assert await sink.read(pattern(nbytes, seed)) is None
        assert stream.sent == seed + 1
        await _finish(stream, sink)
        await still(tx, rx)
        await rig.quiet()

    @MOMENTS
    @runs(*SENDER_HERE)
    async def test_send_that_waits_for_memory(self, rig: Rig, moment: Moment) -> None:
        only(rig, "credit", "over a store a chunk that was cancelled may have been sent")
        tx, rx = await rig.narrow_pair()
        large, nbytes = rig.room * 6 // 7, rig.room * 2 // 3
        stream, sink = await _write(tx, "k"), await reader(rx, "k")
        for seed in _steps():
            await tx.put("fills", pattern(large))
            fetching = asyncio.create_task(_get_soon(rx, "fills"))
            attempted: CancelAt = CancelAt(seed, moment)
            await attempted.run(stream.send(pattern_array(nbytes, seed)))
            assert attempted.error is None
            await fetching
            if not attempted.cancelled:
                assert await sink.read(pattern(nbytes, seed)) is None
            if not attempted.reached:
                break
        await _finish(stream, sink)
        await rig.quiet()

    @SIZES
    @MOMENTS
    @runs(*RECEIVER_HERE)
    async def test_read(self, rig: Rig, moment: Moment, nbytes: int) -> None:
        """A chunk whose read was cancelled is read next."""
        tx, rx = await rig.pair()
        stream, source = await _read(rx, "k"), await writer(tx, "k")
        for seed in _steps():
            await source.send(pattern(nbytes, seed))
            await _each_chunk(stream, moment, seed, nbytes, stream.read)
            if seed > 4:
                break
        await _leave(stream, source)
        await still(tx, rx)
        await rig.quiet()

    @pytest.mark.parametrize("nbytes", [100, 150_000])
    @MOMENTS
    @runs(*RECEIVER_HERE)
    async def test_read_that_waits(self, rig: Rig, moment: Moment, nbytes: int) -> None:
        tx, rx = await rig.pair()
        stream, source = await _read(rx, "k"), await writer(tx, "k")
        for seed in _steps():
            sending = asyncio.create_task(_send_soon(source, pattern(nbytes, seed)))
            attempted: CancelAt = CancelAt(seed, moment)
            await attempted.run(stream.__anext__())
            await sending
            value, attempted.result = attempted.result, None
            if attempted.cancelled:
                value = await stream.read(5)
            assert (value == pattern_array(nbytes, seed)).all()
            del value
            if not attempted.reached:
                break
        await _leave(stream, source)
        await rig.quiet()

    @MOMENTS
    @runs(*RECEIVER_HERE)
    async def test_reading_of_segments(self, rig: Rig, moment: Moment) -> None:
        """Also in the middle of a segment nothing is lost: the next loop goes on where it was."""
        tx, rx = await rig.pair()
        for n in _steps():
            stream, source = await _read(rx, "k"), await writer(tx, "k")
            writing = asyncio.create_task(_send_segments(source))
            got: list[int] = []
            attempted: CancelAt = CancelAt(n, moment)
            await attempted.run(_read_segments(stream, got))
            assert attempted.error is None
            if attempted.cancelled:
                await _read_segments(stream, got)
            assert got == list(range(6))
            assert stream.segment == 3
            await writing
            await stream.leave()
            if not attempted.reached:
                break
        await still(tx, rx)

    @MOMENTS
    @runs(*SENDER_HERE)
    async def test_end_segment(self, rig: Rig, moment: Moment) -> None:
        tx, rx = await rig.pair()
        stream, sink = await _write(tx, "k", 1), await reader(rx, "k", 1)
        await stream.send(0)
        for n in _steps():
            waiting = asyncio.create_task(stream.send(n))  # it has the turn
            await asyncio.sleep(0)
            reading = asyncio.create_task(_read_soon(sink))
            attempted: CancelAt = CancelAt(n, moment)
            await attempted.run(stream.end_segment())
            assert attempted.error is None
            await reading
            await waiting
            if not attempted.reached:
                break
        await _read_soon(sink)
        await _finish(stream, sink)
        await still(tx, rx)

    @MOMENTS
    @runs(*ONE_LOOP)
    async def test_a_whole_stream(self, rig: Rig, moment: Moment) -> None:
        """Wherever its writer or its reader is cancelled, the other end is told."""
        tx, rx = await rig.pair()
        for side in ("writer", "reader"):
            for n in _steps():
                attempted: CancelAt = CancelAt(n, moment)
                # Words of a reader that has left may still be on their way to its writer.
                key = f"{side} {n}"
                ends = {"writer": _whole_writer(tx, key), "reader": _whole_reader(rx, key)}
                chosen = ends.pop(side)
                other = asyncio.create_task(attempt(*ends.values()))
                await attempted.run(chosen)
                assert attempted.error is None
                if attempted.cancelled and side == "reader" and not other.done():
                    await tx.cleanup(key)  # it may have been over before its writer began
                elif attempted.cancelled and side == "writer" and not other.done():
                    await rx.cleanup(key)
                outcome = await asyncio.wait_for(other, 5)
                assert attempted.cancelled or outcome in (None, 8), outcome
                await tx.cleanup(key)  # an end that nobody has read
                await still(tx, rx)
                if not attempted.reached:
                    break
        await rig.quiet()


def _steps() -> Any:
    """Numbers of suspensions, until there is no such one."""
    yield from range(BOUND)
    raise AssertionError("it never came to its end")


async def _write(tx: Side, key: str, window: int | None = None) -> ChunkWriter:
    assert isinstance(tx, LocalSide)
    return await tx.transport.edge("0", "1").writer(key, window=window).__aenter__()


async def _read(rx: Side, key: str, window: int | None = None) -> ChunkReader:
    assert isinstance(rx, LocalSide)
    return await rx.transport.edge("0", "1").reader(key, window=window).__aenter__()


async def _each_chunk(
    stream: ChunkReader,
    moment: Moment,
    seed: int,
    nbytes: int,
    begin: Callable[[], Coroutine[Any, Any, Any]],
) -> None:
    """Read one chunk, with one cancellation after the other before."""
    for n in _steps():
        attempted: CancelAt = CancelAt(n, moment)
        await attempted.run(begin())
        assert attempted.error is None
        value, attempted.result = attempted.result, None
        if not attempted.cancelled:
            assert (value == pattern_array(nbytes, seed)).all()
            return


async def _read_soon(sink: End) -> None:
    await asyncio.sleep(0.01)
    await sink.read()


async def _get_soon(rx: Side, key: str) -> None:
    await asyncio.sleep(0.02)
    await rx.get(key)


async def _send_soon(source: End, recipe: Recipe) -> None:
    await asyncio.sleep(0.01)
    await source.send(recipe)


async def _send_segments(source: End) -> None:
    for number in range(6):
        await source._do("send", recipes=[{"kind": "literal", "arguments": [number]}])
        await asyncio.sleep(0.002)
        if number % 2:
            await source.end_segment()
    await source.finish()


async def _read_segments(stream: ChunkReader, got: list[int]) -> None:
    async for segment in stream.segments():
        async for chunk in segment:
            got.append(chunk)


async def _finish(stream: ChunkWriter, sink: End) -> None:
    await stream.finish()
    story = await sink.read_all([])
    assert (story.count, story.error) == (0, None)
    await sink.leave()


async def _leave(stream: ChunkReader, source: End) -> None:
    await source.finish()
    async for chunk in stream:
        raise AssertionError(f"one too many: {chunk!r}")
    await stream.leave()


async def _whole_writer(tx: Side, key: str) -> None:
    assert isinstance(tx, LocalSide)
    async with tx.transport.edge("0", "1").writer(key, window=2) as stream:
        for number in range(4):
            await stream.send(number)
            await stream.send(pattern_array(30_000, number))


async def _whole_reader(rx: Side, key: str) -> int:
    assert isinstance(rx, LocalSide)
    async with rx.transport.edge("0", "1").reader(key, window=2) as stream:
        async for _ in stream:
            pass
        return stream.received
