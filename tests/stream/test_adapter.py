"""ChunkTransferAdapter: what goes in on one side comes out on the other."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import numpy as np
import pytest

import omni_async
from omni_async import (
    ChunkReady,
    ChunkTransferAdapter,
    ClosedError,
    SegmentEnded,
    StreamAborted,
    StreamFailed,
    StreamFinished,
    StreamState,
    UsageError,
)
from omni_async.stream import Context, Limits
from tests.cases.steps import until
from tests.pairs import open_pair
from tests.stream.ends import KeyedEdge, chunks, failure, opened, story

LARGE = 200_000
"""Bytes that do not ride inside a word."""


async def test_chunks_come_in_order_then_the_end(backend: str, namespace: str, keyed: bool) -> None:
    async with opened(backend, namespace, keyed=keyed) as ends:
        ends.consumer.register("r")
        for number in range(100):
            ends.producer.submit("r", number, finished=number == 99)
        told = await story(ends.consumer)
        assert chunks(told) == list(range(100))
        assert told[-1] == StreamFinished("r", 100)
        assert ends.consumer.requests == ends.producer.requests == frozenset()


@pytest.mark.parametrize("first", ["producer", "consumer"])
async def test_either_side_may_come_first(backend: str, namespace: str, first: str) -> None:
    async with opened(backend, namespace) as ends:
        if first == "consumer":
            ends.consumer.register("r")
            await asyncio.sleep(0.05)
        await ends.producer.send("r", "a")
        await ends.producer.send("r", "b", finished=True)
        if first == "producer":
            ends.consumer.register("r")
        assert chunks(await story(ends.consumer)) == ["a", "b"]


@pytest.mark.parametrize("window", [1, 4])
async def test_large_chunks_and_small_ones_keep_their_order(
    backend: str, namespace: str, keyed: bool, window: int
) -> None:
    async with opened(backend, namespace, window=window, keyed=keyed) as ends:
        ends.consumer.register("r")
        sizes = [10, LARGE, LARGE, 10, 10, LARGE, 10, LARGE, LARGE, LARGE, LARGE, LARGE, 10]
        for number, nbytes in enumerate(sizes):
            last = number == len(sizes) - 1
            ends.producer.submit("r", np.full(nbytes, number, np.uint8), finished=last)
            if number == 5:
                ends.producer.submit("r", None, segment_ended=True)
        told = await story(ends.consumer)
        assert [(c.nbytes, set(c.tolist())) for c in chunks(told)] == [
            (nbytes, {number}) for number, nbytes in enumerate(sizes)
        ]
        assert [event for event in told if isinstance(event, SegmentEnded)] == [
            SegmentEnded("r", 0, 6)
        ]


async def test_segments_are_told_as_they_end_and_the_stream_goes_on(
    backend: str, namespace: str, keyed: bool
) -> None:
    async with opened(backend, namespace, keyed=keyed) as ends:
        ends.consumer.register("r")
        events = ends.consumer.events()
        for segment in range(3):
            ends.producer.submit("r", "x")
            ends.producer.submit("r", "y", segment_ended=True)
            seen = [await events.__anext__() for _ in range(3)]  # without waiting for what follows
            assert seen == [
                ChunkReady("r", "x", 2 * segment, segment),
                ChunkReady("r", "y", 2 * segment + 1, segment),
                SegmentEnded("r", segment, 2 * segment + 2),
            ]
        ends.producer.submit("r", None, finished=True)
        assert await events.__anext__() == StreamFinished("r", 6)


async def test_poll_gives_what_is_ready_and_never_waits(backend: str, namespace: str) -> None:
    async with opened(backend, namespace) as ends:
        assert ends.consumer.poll() == []
        ends.consumer.register("r")
        assert ends.consumer.poll() == []
        ends.producer.submit("r", 1)
        ends.producer.submit("r", 2, finished=True)
        told: list[Any] = []
        while len(told) < 3:
            await asyncio.sleep(0.001)
            told += ends.consumer.poll()
        assert chunks(told) == [1, 2]
        assert ends.consumer.poll() == []


async def test_poll_and_events_exclude_each_other(namespace: str) -> None:
    async with opened("memory", namespace) as ends:
        ends.consumer.poll()
        with pytest.raises(UsageError, match=r"poll\(\) or by events\(\), not by both"):
            ends.consumer.events()
        ends.consumer.poll()
        ends.producer.events()
        with pytest.raises(UsageError, match="not by both"):
            ends.producer.poll()
        ends.producer.events()


async def test_events_are_read_by_one_task_and_lose_nothing_when_it_is_cancelled(
    namespace: str,
) -> None:
    async with opened("memory", namespace) as ends:
        ends.consumer.register("r")
        waiting = asyncio.ensure_future(ends.consumer.events().__anext__())
        await asyncio.sleep(0)
        with pytest.raises(UsageError, match="by one task"):
            await ends.consumer.events().__anext__()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        ends.producer.submit("r", 1, finished=True)
        assert chunks(await story(ends.consumer)) == [1]


async def test_events_end_when_the_adapter_closes(namespace: str) -> None:
    async with open_pair("memory", namespace) as (_, receiver):
        async with ChunkTransferAdapter(None, input=receiver.edge("0", "1")) as consumer:
            consumer.register("r")
            waiting = asyncio.ensure_future(story(consumer))
            await asyncio.sleep(0.01)
        assert await waiting == []
        assert [event async for event in consumer.events()] == []


async def test_states_of_a_request(backend: str, namespace: str) -> None:
    async with opened(backend, namespace, consumer={"max_active": 1}) as ends:
        producer, consumer = ends.producer, ends.consumer
        assert consumer.state("r") is producer.state("r") is StreamState.UNKNOWN
        consumer.register("r")
        consumer.register("later")
        assert consumer.state("r") == "waiting_for_chunk"
        assert consumer.state("later") == "parked"
        producer.submit("r", 1)
        assert producer.state("r") == "sending"
        await until(lambda: consumer.state("r") == "ready", "a chunk")
        consumer.poll()
        assert consumer.state("r") == "waiting_for_chunk"
        producer.submit("r", None, finished=True)
        await until(lambda: consumer.state("r") == "finished", "the end")
        assert producer.state("r") == "unknown"
        consumer.poll()
        assert consumer.state("r") == "unknown"
        producer.submit("later", 1)
        producer.abort("later", "no more of it")
        await until(lambda: len(consumer._mailbox) == 2, "two events")
        assert consumer.state("later") == "ready"
        event = await consumer_step(consumer)
        assert isinstance(event, ChunkReady)
        assert consumer.state("later") == "unknown"


async def consumer_step(consumer: ChunkTransferAdapter) -> Any:
    """The first of two events; the second is a failure."""
    first, second = consumer.poll()
    assert isinstance(second, StreamFailed)
    return first


async def test_a_failure_alone_is_a_state(namespace: str) -> None:
    async with opened("memory", namespace, window=1) as ends:
        ends.consumer.register("r")
        ends.producer.submit("r", object())
        await until(lambda: ends.consumer.state("r") == "failed", "the failure")
        assert ends.producer.state("r") == "failed"
        ends.producer.poll()
        assert ends.producer.state("r") == "unknown"
        for number in range(40):
            ends.producer.submit("full", number, finished=number == 39)
        assert ends.producer.state("full") == "draining"
        ends.producer.abort("full")


async def test_256_requests_at_once(backend: str, namespace: str) -> None:
    async with opened(backend, namespace, window=4) as ends:
        names = [f"r{number}" for number in range(256)]
        for name in names:
            ends.consumer.register(name)

        async def produce() -> None:
            for number in range(20):
                for name in names:
                    await ends.producer.send(name, (name, number), finished=number == 19)

        producing = asyncio.create_task(produce())
        told = await story(ends.consumer, ends=256)
        await producing
        for name in names:
            assert chunks(told, name) == [(name, number) for number in range(20)]


# --- processors -----------------------------------------------------------------------------------


async def test_a_processor_makes_the_chunks_and_flushes_at_the_end(
    backend: str, namespace: str
) -> None:
    seen: list[Any] = []

    def by_four(output: Any, context: Context) -> list[Any]:
        seen.append((context.request_id, context.finished, context.chunks, context.active))
        held = context.state.setdefault("held", [])
        if output is not None:
            held.append(output)
        made = []
        while len(held) >= 4 or (context.last and held):
            made.append(held[:4])
            del held[:4]
        return made

    async with opened(backend, namespace, producer={"processor": by_four}) as ends:
        ends.consumer.register("r")
        for number in range(10):
            ends.producer.submit("r", number, segment_ended=number == 5)
        ends.producer.submit("r", None, finished=True)
        told = await story(ends.consumer)
        assert chunks(told) == [[0, 1, 2, 3], [4, 5], [6, 7, 8, 9]]
        assert seen[-1] == ("r", True, 3, 1)


@pytest.mark.parametrize("returned", [None, [], ()])
async def test_a_processor_may_send_nothing(namespace: str, returned: Any) -> None:
    async with opened("memory", namespace, producer={"processor": lambda *_: returned}) as ends:
        ends.consumer.register("r")
        ends.producer.submit("r", 1)
        ends.producer.submit("r", 2, finished=True)
        assert await story(ends.consumer) == [StreamFinished("r", 0)]


@pytest.mark.parametrize("bad_at", [0, 2])
async def test_a_processor_that_raises_fails_its_request_only_on_both_sides(
    backend: str, namespace: str, bad_at: int
) -> None:
    def picky(output: Any, context: Context) -> list[Any]:
        if output == "bad":
            raise ZeroDivisionError("no such frame")
        return [output]

    async with opened(backend, namespace, producer={"processor": picky}) as ends:
        for name in ("r", "other"):
            ends.consumer.register(name)
        for number in range(bad_at):
            ends.producer.submit("r", number)
        ends.producer.submit("r", "bad")
        ends.producer.submit("other", 1, finished=True)
        told = await story(ends.consumer, ends=2)
        assert chunks(told) == list(range(bad_at))
        failed = failure(told)
        assert isinstance(failed.error, StreamAborted)
        assert failed.error.reason == "ZeroDivisionError: no such frame"
        assert failed.index == bad_at
        assert chunks(told, "other") == [1]

        [own] = ends.producer.poll()
        assert isinstance(own, StreamFailed)
        assert own.request_id == "r"
        assert isinstance(own.error, StreamAborted)
        assert "request 'r' on 0->1" in str(own.error)
        assert "its processor failed: ZeroDivisionError" in str(own.error)
        assert isinstance(own.error.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("returned", ["text", {"a": 1}, 5, iter([1])])
async def test_a_processor_that_returns_no_list_fails_its_request(
    namespace: str, returned: Any
) -> None:
    async with opened("memory", namespace, producer={"processor": lambda *_: returned}) as ends:
        with pytest.raises(StreamAborted, match="returns a list of chunks, not"):
            await ends.producer.send("r", 1)


async def test_knobs_of_the_edge_reach_the_processor(namespace: str) -> None:
    async with open_pair("memory", namespace) as (sender, _):
        edge = omni_async.Edge(sender, sender.edge("0", "1").name, 4, {"codec_chunk_frames": 7})
        found: list[Any] = []

        def look(output: Any, context: Context) -> list[Any]:
            found.append((context.knobs, context.edge))
            return []

        async with ChunkTransferAdapter(None, output=edge, processor=look) as producer:
            producer.submit("r", 1)
        assert found == [({"codec_chunk_frames": 7}, ("0", "1"))]


# --- its life -------------------------------------------------------------------------------------


async def test_leaving_sends_what_was_finished_and_aborts_the_rest(
    backend: str, namespace: str, keyed: bool
) -> None:
    async with opened(backend, namespace, window=2, keyed=keyed) as ends:
        sender = ends.sender.edge("0", "1", window=2)
        ends.consumer.register("open")
        ends.consumer.register("whole")
        if keyed:
            sender = KeyedEdge(sender)
        async with ChunkTransferAdapter(None, output=sender) as producer:
            producer.submit("open", 1)
            for number in range(20):
                producer.submit("whole", number, finished=number == 19)
            telling = asyncio.create_task(story(ends.consumer, ends=2))
            await asyncio.sleep(0.05 if keyed else 0)
        told = await telling
        assert chunks(told, "whole") == list(range(20))
        assert chunks(told, "open") == [1]
        error = failure(told, "open").error
        assert isinstance(error, StreamAborted)
        assert error.reason == "the adapter was closed"


async def test_leaving_waits_for_a_while_only(
    namespace: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("omni_async.stream.adapter.LINGER_SECONDS", 0.05)
    async with open_pair("memory", namespace) as (sender, _):
        with caplog.at_level(logging.INFO, "omni_async"):
            async with ChunkTransferAdapter(None, output=sender.edge("0", "1", window=1)) as it:
                for number in range(5):
                    it.submit("r", number, finished=number == 4)
        assert "closed with open requests" in caplog.text


async def test_an_error_in_the_block_is_the_reason(backend: str, namespace: str) -> None:
    async with opened(backend, namespace) as ends:
        ends.consumer.register("r")
        with contextlib.suppress(ZeroDivisionError):
            async with ChunkTransferAdapter(None, output=ends.sender.edge("0", "1")) as producer:
                producer.submit("r", 1)
                raise ZeroDivisionError("boom")
        told = await story(ends.consumer)
        error = failure(told).error
        assert isinstance(error, StreamAborted)
        assert error.reason == "ZeroDivisionError: boom"


async def test_after_the_end_everything_is_refused(namespace: str) -> None:
    async with opened("memory", namespace) as ends:
        ends.consumer.register("r")
    assert "closed" in repr(ends.producer)
    for call in (
        lambda: ends.producer.submit("r", 1),
        lambda: ends.consumer.register("x"),
        ends.consumer.poll,
        lambda: ends.producer.abort("r"),
    ):
        with pytest.raises(ClosedError, match="is closed"):
            call()
    with pytest.raises(ClosedError):
        await ends.producer.send("r", 1)
    assert ends.consumer.state("r") == "unknown"
    assert ends.consumer.requests == frozenset()
    with pytest.raises(UsageError, match="entered before"):
        await ends.producer.__aenter__()


async def test_before_the_begin_everything_is_refused(namespace: str) -> None:
    async with open_pair("memory", namespace) as (sender, receiver):
        adapter = ChunkTransferAdapter(None, receiver.edge("0", "1"), sender.edge("0", "1"))
        assert repr(adapter) == "<ChunkTransferAdapter of 0->1 and 0->1, not entered>"
        for call in (adapter.poll, lambda: adapter.submit("r", 1), lambda: adapter.register("r")):
            with pytest.raises(UsageError, match="async with"):
                call()
        async with adapter:
            assert repr(adapter) == "<ChunkTransferAdapter of 0->1 and 0->1, open>"


async def test_a_stage_without_an_output_ends_requests_without_a_word(namespace: str) -> None:
    async with open_pair("memory", namespace) as (_, receiver):
        async with ChunkTransferAdapter(None, input=receiver.edge("0", "1")) as last:
            last.submit("r", None, finished=True)
            await last.send("r", None, finished=True)
            with pytest.raises(UsageError, match="no output"):
                last.submit("r", 1)
            last.abort("r")
            assert last.dropped == 0
        with pytest.raises(ClosedError):
            last.submit("r", None, finished=True)


async def test_a_stage_without_an_input_reads_nothing(namespace: str) -> None:
    async with open_pair("memory", namespace) as (sender, _):
        async with ChunkTransferAdapter(None, output=sender.edge("0", "1")) as first:
            with pytest.raises(UsageError, match="no input"):
                first.register("r")
            assert first.poll() == []
            assert first.state("r") == "unknown"
            with pytest.raises(UsageError, match="key"):
                first.submit("", 1)
            with pytest.raises(UsageError, match="position must be an int"):
                first.submit("r", 1, position=-1)
            assert first.requests == frozenset()


async def test_a_stage_in_the_middle_reads_and_writes(backend: str, namespace: str) -> None:
    def end(role: Any, stage: str) -> Any:
        return omni_async.open_transport(
            backend, role=role, stage=stage, namespace=namespace, linger=0
        )

    async with (
        end("sender", "0") as tx0,
        end("receiver", "1") as rx1,
        end("sender", "1") as tx1,
        end("receiver", "2") as rx2,
        ChunkTransferAdapter(None, output=tx0.edge("0", "1")) as first,
        ChunkTransferAdapter(None, rx1.edge("0", "1"), tx1.edge("1", "2")) as middle,
        ChunkTransferAdapter(None, input=rx2.edge("1", "2")) as last,
    ):
        middle.register("r")
        last.register("r")
        for number in range(50):
            first.submit("r", number, finished=number == 49)

        async def relay() -> None:
            async for event in middle.events():
                if isinstance(event, ChunkReady):
                    await middle.send("r", event.chunk * 2)
                else:
                    await middle.send("r", None, finished=True)
                    return

        relaying = asyncio.create_task(relay())
        assert chunks(await story(last)) == [2 * number for number in range(50)]
        await relaying
        assert middle.state("r") == "unknown"

        middle.register("q")
        middle.submit("q", 1)
        assert middle.requests == {"q"}
        middle.abort("q")
        assert middle.requests == frozenset()


async def test_a_transport_that_closes_fails_its_requests(backend: str, namespace: str) -> None:
    async with opened(backend, namespace, window=1) as ends:
        ends.consumer.register("r")
        ends.producer.submit("r", 1)
        assert isinstance(await ends.consumer.events().__anext__(), ChunkReady)
        await ends.receiver.aclose()
        assert isinstance(failure(await story(ends.consumer)).error, ClosedError)
        ends.consumer.register("s")
        assert isinstance(failure(await story(ends.consumer), "s").error, ClosedError)
        await ends.sender.aclose()
        ends.producer.submit("q", 1)
        told = await story(ends.producer, ends=2)
        assert isinstance(failure(told, "q").error, ClosedError)
        assert failure(told, "r").edge == ("0", "1")
        ends.producer.abort("r")


async def test_a_stall_timeout_of_zero_is_told(
    namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "omni_async"):
        async with opened("memory", namespace, consumer={"stall_timeout": 0}) as ends:
            ends.consumer.register("r")
    assert "waits for ever" in caplog.text


async def test_arguments_that_make_no_sense_are_refused(namespace: str) -> None:
    async with open_pair("memory", namespace) as (sender, receiver):
        edge = sender.edge("0", "1")
        for wrong in (
            {"processor": 5},
            {"stall_timeout": -1},
            {"max_active": -1},
        ):
            with pytest.raises(UsageError):
                ChunkTransferAdapter(None, output=edge, **wrong)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="has to be a receiver's"):
            ChunkTransferAdapter(None, input=edge)
        with pytest.raises(UsageError, match="has to be a sender's"):
            ChunkTransferAdapter(None, output=receiver.edge("0", "1"))
        adapter = ChunkTransferAdapter(None, output=edge, limits=Limits(chunks=1))
        assert adapter.requests == frozenset()
