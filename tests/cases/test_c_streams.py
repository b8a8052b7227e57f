"""Streams of chunks: nobody waits for ever, nothing is missing at the end, one holds up no other."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import time
from typing import Any

import msgspec
import numpy as np
import pytest

import omni_async
from omni_async import (
    ChunkReady,
    ChunkTransferAdapter,
    FrameChunker,
    PayloadTooLarge,
    PeerLost,
    SegmentEnded,
    StreamAborted,
    StreamFailed,
    StreamFinished,
    TransferTimeout,
)
from omni_async.deploy.knobs import KNOBS
from omni_async.rendezvous import messages
from omni_async.stream import Context, frame_chunks
from omni_async.testing import PeerProcess
from tests.cases.steps import until
from tests.soak.test_flat_memory import resident
from tests.stream.ends import Ends, chunks, failure, opened, story
from tests.stream.peer import HERE

# --- C1: a chunk that never comes -----------------------------------------------------------------


async def test_a_chunk_that_never_comes_is_a_timeout_that_names_it(
    backend: str, namespace: str
) -> None:
    async with opened(backend, namespace, consumer={"stall_timeout": 0.2, "max_active": 1}) as ends:
        ends.consumer.register("r")
        ends.consumer.register("behind")
        ends.producer.submit("r", "chunk 0")
        ends.producer.submit("r", "chunk 1")
        begun = time.monotonic()
        told = await story(ends.consumer)
        assert chunks(told) == ["chunk 0", "chunk 1"]
        error = failure(told).error
        assert isinstance(error, TransferTimeout)
        assert "request 'r' on 0->1: chunk 2" in str(error)
        assert 0.15 < time.monotonic() - begun < 2.0
        ends.producer.submit("behind", 1, finished=True)  # the place is free again
        assert chunks(await story(ends.consumer), "behind") == [1]
        assert ends.consumer.requests == frozenset()
        ends.producer.abort("r")


# --- C2: a sender that gives up -------------------------------------------------------------------


@pytest.mark.parametrize("why", ["it cannot be encoded", "it can never fit", "the pool stays full"])
async def test_a_put_that_fails_raises_and_ends_the_consumers_stream_at_once(
    backend: str, namespace: str, why: str
) -> None:
    pool = 1 << 20
    bad = object() if why == "it cannot be encoded" else np.zeros(2 * pool, np.uint8)
    async with opened(backend, namespace, memory_pool_size=pool) as ends:
        for name in ("r", "other"):
            ends.consumer.register(name)
        for number in range(3):
            await ends.producer.send("r", number)
        if why == "the pool stays full":
            with _failing(ends, omni_async.PoolExhausted("error code -5 of the backend")):
                sending = ends.producer.send("r", np.zeros(pool // 2, np.uint8))
                with pytest.raises(omni_async.PoolExhausted, match=r"'r'.*error code -5"):
                    await sending
        else:
            with pytest.raises((omni_async.EncodeError, PayloadTooLarge), match="'r'") as raised:
                await ends.producer.send("r", bad)
            assert "chunk 3" in str(raised.value)
        begun = time.monotonic()
        await ends.producer.send("other", 1, finished=True)
        told = await story(ends.consumer, ends=2)
        assert time.monotonic() - begun < 2.0
        assert chunks(told) == [0, 1, 2]
        assert isinstance(failure(told).error, StreamAborted)
        assert chunks(told, "other") == [1]


@contextlib.contextmanager
def _failing(ends: Ends, error: omni_async.TransferError) -> Any:
    """The sender's puts fail."""
    sending: Any = ends.sender._sending  # type: ignore[attr-defined]
    put = sending.put

    async def fail(*_: Any) -> Any:
        raise error

    sending.put = fail
    yield
    sending.put = put


# --- C3: the last chunk is missing ----------------------------------------------------------------


def by_four(output: Any, context: Context) -> list[Any]:
    held = context.state.setdefault("held", [])
    if output is not None:
        held.append(output)
    made = []
    while len(held) >= 4 or (held and context.finished):
        made.append(held[:4])
        del held[:4]
    return made


@pytest.mark.parametrize("together", [True, False], ids=["with the last item", "by itself"])
@pytest.mark.parametrize("count", [0, 1, 4, 10])
async def test_the_end_flushes_what_was_held_back_and_nothing_follows(
    backend: str, namespace: str, count: int, together: bool
) -> None:
    async with opened(backend, namespace, producer={"processor": by_four}) as ends:
        ends.consumer.register("r")
        for number in range(count):
            ends.producer.submit("r", number, finished=together and number == count - 1)
        if not (together and count):
            ends.producer.submit("r", None, finished=True)
        told = await story(ends.consumer)
        assert [item for chunk in chunks(told) for item in chunk] == list(range(count))
        assert [type(event) for event in told].count(StreamFinished) == 1
        assert isinstance(told[-1], StreamFinished)
        await asyncio.sleep(0.05)
        assert not len(ends.consumer._mailbox)


# --- C6: written under one name, read under another -----------------------------------------------


@pytest.mark.parametrize(
    "word",
    [
        messages.Open(7, "0", "1", "r", 32),
        messages.Chunk(7, 3, [10, 20], b"frames", "key", 12345),
        messages.Segment(7, 4),
        messages.End(7, 5, "the reason"),
        messages.Credit(7, 64, 3),
    ],
    ids=lambda word: type(word).__name__,
)
def test_every_field_that_is_written_is_read(word: msgspec.Struct) -> None:
    assert messages.decode(messages.encode(word)) == word
    required = [f for f in msgspec.structs.fields(word) if f.required]
    short = msgspec.to_builtins(word)[
        : len(required)
    ]  # with the tag, one less than there has to be
    with pytest.raises(msgspec.ValidationError):
        messages.decode(msgspec.msgpack.encode(short))
    with pytest.raises(msgspec.ValidationError):
        messages.decode(msgspec.msgpack.encode([99, 7, 3]))


async def test_a_segments_end_is_seen_where_it_was_written(backend: str, namespace: str) -> None:
    async with opened(backend, namespace) as ends:
        ends.consumer.register("r")
        ends.producer.submit("r", "a", segment_ended=True)
        ends.producer.submit("r", None, finished=True)
        told = await story(ends.consumer)
        assert [type(event) for event in told] == [ChunkReady, SegmentEnded, StreamFinished]


def test_the_chunker_reads_the_knobs_that_deploy_files_are_checked_for() -> None:
    read: list[str] = []

    class Watched(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            read.append(key)
            return super().get(key, default)

    FrameChunker.from_knobs(Watched())
    assert read
    assert set(read) <= set(KNOBS)


# --- C7: one request that waits stalls all --------------------------------------------------------


async def test_a_request_that_gets_nothing_holds_up_nobody(backend: str, namespace: str) -> None:
    """B to P stream as they do without A."""

    async def p99(waiting: int, space: str) -> float:
        async with opened(backend, space) as ends:
            names = [f"r{number}" for number in range(15)]
            for name in [*(f"stuck{number}" for number in range(waiting)), *names]:
                ends.consumer.register(name)
            took: list[float] = []

            async def consume() -> None:
                async for event in ends.consumer.events():
                    assert isinstance(event, ChunkReady)
                    took.append(time.perf_counter() - event.chunk)

            consuming = asyncio.create_task(consume())
            for _ in range(100):
                for name in names:
                    ends.producer.submit(name, time.perf_counter())
                await asyncio.sleep(0.002)
            await until(lambda: len(took) == 100 * len(names), "all chunks")
            consuming.cancel()
            for name in names:
                ends.consumer.abort(name)
                ends.producer.abort(name)
            return sorted(took)[len(took) * 99 // 100]

    runs: list[tuple[float, float]] = []
    for turn in range(8):  # other work on the machine stalls a run now and then, waiting stalls all
        runs.append((await p99(1, f"{namespace}a{turn}"), await p99(0, f"{namespace}b{turn}")))
        beside, alone = (min(column) for column in zip(*runs, strict=True))
        if beside < 2 * alone:
            return
    pytest.fail(f"seconds beside a stuck request, and without it: {runs}")


# --- C8: streaming on and off ---------------------------------------------------------------------


@pytest.mark.parametrize("streaming", [True, False])
async def test_three_stages_give_the_same_with_streaming_on_and_off(
    backend: str, namespace: str, streaming: bool
) -> None:
    """The talker's frames reach the last stage in chunks, or whole: it puts the same together."""
    frames = np.random.default_rng(0).integers(0, 1024, size=(8, 333))
    knobs = {
        "codec_chunk_frames": 25,
        "codec_left_context_frames": 10,
        "initial_codec_chunk_frames": 4,
    }

    def end(role: Any, stage: str) -> Any:
        return omni_async.open_transport(
            backend, role=role, stage=stage, namespace=namespace, linger=0
        )

    async with (
        end("sender", "0") as tx0,
        end("receiver", "1") as rx1,
        end("sender", "1") as tx1,
        end("receiver", "2") as rx2,
    ):
        if not streaming:
            await tx0.put("0", "1", "r", frames)
            whole = await rx1.get("0", "1", "r", timeout=5)
            await tx1.put("1", "2", "r", whole.value)
            found = (await rx2.get("1", "2", "r", timeout=5)).value
        else:
            to_last = omni_async.Edge(tx1, tx1.edge("1", "2").name, 4, knobs)
            async with (
                ChunkTransferAdapter(None, output=tx0.edge("0", "1")) as thinker,
                ChunkTransferAdapter(
                    None, rx1.edge("0", "1"), to_last, processor=frame_chunks
                ) as talker,
                ChunkTransferAdapter(None, input=rx2.edge("1", "2")) as vocoder,
            ):
                talker.register("r")
                vocoder.register("r")
                for begin in range(0, 333, 7):
                    thinker.submit("r", frames[:, begin : begin + 7], finished=begin + 7 >= 333)
                for event in await story(talker):
                    last = isinstance(event, StreamFinished)
                    talker.submit("r", None if last else event.chunk, finished=last)  # type: ignore[union-attr]
                made = chunks(await story(vocoder))
            assert [c["codes"]["audio"].shape[1] for c in made[:3]] == [4, 4 + 25, 10 + 25]
            found = np.concatenate(
                [c["codes"]["audio"][:, c["meta"]["left_context_size"] :] for c in made], axis=1
            )
        assert np.array_equal(found, frames)


# --- C10: upstream fails after its first chunk ----------------------------------------------------


async def test_a_producer_that_raises_after_its_first_chunk_is_heard_of(
    backend: str, namespace: str
) -> None:
    def fails_later(output: Any, context: Context) -> list[Any]:
        if context.chunks:
            raise RuntimeError("out of memory on the device")
        return [output]

    async with opened(backend, namespace, producer={"processor": fails_later}) as ends:
        ends.consumer.register("r")
        ends.producer.submit("r", "chunk 0")
        ends.producer.submit("r", "chunk 1")
        told = await story(ends.consumer)
        assert chunks(told) == ["chunk 0"]
        error = failure(told).error
        assert isinstance(error, StreamAborted)
        assert error.reason == "RuntimeError: out of memory on the device"
        assert isinstance((await story(ends.producer))[-1], StreamFailed)


async def test_a_producer_that_is_killed_after_its_first_chunk_is_heard_of_within_two_seconds(
    namespace: str,
) -> None:
    process = PeerProcess()
    try:
        with process.attached():
            await process.open("side", "shm", role="sender", stage="0", namespace=namespace)
            async with omni_async.open_transport(
                "shm", role="receiver", stage="1", namespace=namespace
            ) as rx:
                async with ChunkTransferAdapter(None, input=rx.edge("0", "1")) as adapter:
                    adapter.register("r")
                    order = {"names": ["r"], "count": 2, "pause": 60.0}
                    producing = asyncio.create_task(
                        process.call("use", target=f"{HERE}:produce", side="side", **order)
                    )
                    assert isinstance(await adapter.events().__anext__(), ChunkReady)
                    process.kill()
                    killed = time.monotonic()
                    failed = failure(await story(adapter))
                    assert time.monotonic() - killed < 2.0
                    assert isinstance(failed.error, PeerLost)
                    assert failed.index == 1
                    await asyncio.gather(producing, return_exceptions=True)
    finally:
        process.close()


# --- C12: memory grows with the stream ------------------------------------------------------------


@pytest.mark.parametrize("count", [20_000])
async def test_memory_is_flat_over_a_long_stream(namespace: str, count: int) -> None:
    def frames(output: Any, context: Context) -> list[Any]:
        return list(frame_chunks(output, context))

    async with opened("shm", namespace, producer={"processor": frames}) as ends:
        ends.consumer.register("r")

        async def produce() -> None:
            frame = np.ones((8, 25), np.int64)
            for number in range(count):
                await ends.producer.send("r", frame, position=number, finished=number == count - 1)

        producing = asyncio.create_task(produce())
        seen, sizes = 0, []
        async for event in ends.consumer.events():
            if isinstance(event, StreamFinished):
                break
            seen += 1
            if seen % (count // 4) == 0:
                gc.collect()
                sizes.append(resident(os.getpid()))
        await producing
        assert seen == count
        assert sizes[-1] - sizes[0] < 4 << 20, sizes
