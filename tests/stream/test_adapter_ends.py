"""Aborts, ids that are used again, and what is left behind: nothing."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import numpy as np
import pytest

import omni_async
from omni_async import (
    ChunkReady,
    ChunkTransferAdapter,
    StreamAborted,
    StreamClosed,
    StreamFinished,
    UsageError,
)
from tests.cases.steps import until
from tests.stream.ends import chunks, failure, opened, story

# --- aborts ---------------------------------------------------------------------------------------


async def test_the_consumer_hears_of_an_abort_after_what_was_sent_before(
    backend: str, namespace: str, keyed: bool
) -> None:
    async with opened(backend, namespace, keyed=keyed) as ends:
        ends.consumer.register("r")
        await ends.producer.send("r", 1)
        await ends.producer.send("r", 2)
        ends.producer.abort("r", "the user has left")
        told = await story(ends.consumer)
        assert chunks(told) == [1, 2]
        error = failure(told).error
        assert isinstance(error, StreamAborted)
        assert error.reason == "the user has left"
        assert ends.producer.poll() == []


async def test_chunks_that_wait_are_dropped_by_an_abort(namespace: str) -> None:
    async with opened("memory", namespace, window=1) as ends:
        for number in range(9):
            ends.producer.submit("r", number)
        ends.producer.abort("r")
        ends.consumer.register("r")
        told = await story(ends.consumer)
        assert chunks(told) == [0]
        assert "aborted" in str(failure(told).error)


async def test_the_producer_hears_that_its_reader_has_left(backend: str, namespace: str) -> None:
    async with opened(backend, namespace, window=2) as ends:
        ends.consumer.register("r")
        await ends.producer.send("r", 1)
        assert isinstance(await ends.consumer.events().__anext__(), ChunkReady)
        ends.consumer.abort("r")
        failed = failure(await story(ends.producer))
        assert isinstance(failed.error, StreamClosed)
        assert (failed.request_id, failed.edge, failed.index) == ("r", ("0", "1"), 1)


async def test_nothing_is_heard_of_what_was_aborted(
    backend: str, namespace: str, keyed: bool
) -> None:
    async with opened(backend, namespace, keyed=keyed) as ends:
        for name in ("r", "other"):
            ends.consumer.register(name)
            ends.producer.submit(name, 1)
        await until(lambda: len(ends.consumer._mailbox) == 2, "both chunks")
        ends.consumer.abort("r")
        assert [event.request_id for event in ends.consumer.poll()] == ["other"]
        assert ends.consumer.state("r") == "unknown"
        ends.producer.abort("r")
        ends.producer.abort("other")


async def test_an_unknown_request_is_nothing_to_give_up(
    backend: str, namespace: str, keyed: bool
) -> None:
    async with opened(backend, namespace, keyed=keyed) as ends:
        ends.consumer.abort("never heard of")
        ends.producer.abort("never heard of")
        assert ends.consumer.poll() == ends.producer.poll() == []


async def test_an_abort_drops_what_was_finished_and_nobody_reads(
    backend: str, namespace: str
) -> None:
    async with opened(backend, namespace) as ends:
        ends.producer.submit("r", np.zeros(300_000, np.uint8), finished=False)
        await until(lambda: ends.sender.health().pool_used > 0, "the chunk")
        ends.producer.submit("r", 1, finished=True)
        assert ends.producer.requests == frozenset()
        ends.producer.abort("r")
        await until(lambda: ends.sender.health().pool_used == 0, "nothing")
        assert await ends.sender.drain(1) == 0


async def test_an_abort_ends_a_large_chunk_that_waits_for_space(namespace: str) -> None:
    async with opened("shm", namespace, memory_pool_size=1 << 20) as ends:
        block = np.zeros(400_000, np.uint8)
        for _ in range(4):
            ends.producer.submit("r", block)
        await until(lambda: ends.sender.health().pool_used > 700_000, "a full pool")
        await asyncio.sleep(0.02)
        ends.producer.abort("r", "enough")
        ends.consumer.register("r")
        told = await story(ends.consumer)
        assert len(chunks(told)) == 2
        assert "enough" in str(failure(told).error)
        del told
        assert not len(ends.producer._tasks)


async def test_an_abort_between_taking_an_end_and_telling_of_it_changes_nothing(
    namespace: str,
) -> None:
    async with opened("memory", namespace) as ends:
        consumer = ends.consumer._consumer
        assert consumer is not None
        ends.consumer.register("r")
        ends.producer.submit("r", None, finished=True)
        await until(lambda: ends.consumer.state("r") == "finished", "the end")
        old = consumer._requests["r"]
        ends.consumer.abort("r")
        ends.consumer.register("r")
        consumer.taken(old, StreamFinished("r", 0))  # another thread was in the middle of poll()
        assert ends.consumer.state("r") == "waiting_for_chunk"
        consumer._broke(old, ValueError("told twice"))
        assert ends.consumer.poll() == []


# --- ids that are used again ----------------------------------------------------------------------


async def test_an_id_may_be_used_again_at_once(backend: str, namespace: str) -> None:
    async with opened(backend, namespace, window=2) as ends:
        for generation in range(5):
            for number in range(10):
                ends.producer.submit("r", (generation, number), finished=number == 9)
        for generation in range(5):
            ends.consumer.register("r")
            told = await story(ends.consumer)
            assert chunks(told) == [(generation, number) for number in range(10)]


async def test_a_registered_id_is_refused_until_its_end_was_taken(namespace: str) -> None:
    async with opened("memory", namespace) as ends:
        ends.consumer.register("r")
        with pytest.raises(UsageError, match="registered already"):
            ends.consumer.register("r")
        ends.producer.submit("r", None, finished=True)
        await until(lambda: ends.consumer.state("r") == "finished", "the end")
        with pytest.raises(UsageError, match="registered already"):
            ends.consumer.register("r")
        assert ends.consumer.poll() == [StreamFinished("r", 0)]
        ends.consumer.register("r")
        ends.consumer.abort("r")


async def test_an_aborted_generation_never_reaches_the_next_one(
    backend: str, namespace: str
) -> None:
    async with opened(backend, namespace, window=8) as ends:
        ends.consumer.register("r")
        for number in range(6):
            ends.producer.submit("r", ("old", number))
        await until(lambda: len(ends.consumer._mailbox) == 6, "the old chunks")
        ends.consumer.abort("r")
        ends.consumer.register("r")
        ends.producer.abort("r")
        for number in range(6):
            ends.producer.submit("r", ("new", number), finished=number == 5)
        told = await story(ends.consumer)
        assert chunks(told) == [("new", number) for number in range(6)]
        assert ends.producer.poll() == []


async def test_a_failure_of_the_old_generation_is_not_taken_for_the_new_ones(
    namespace: str,
) -> None:
    async with opened("memory", namespace, window=1) as ends:
        ends.consumer.register("r")
        for number in range(3):
            ends.producer.submit("r", number, finished=number == 2)
        ends.producer.submit("r", "new")  # waits for the end of the old one
        assert isinstance(await ends.consumer.events().__anext__(), ChunkReady)
        ends.consumer.abort("r")  # the old one fails at its producer
        ends.consumer.register("r")
        ends.producer.submit("r", "newer", finished=True)
        told = await story(ends.consumer)
        assert chunks(told) == ["new", "newer"]
        assert ends.producer.poll() == []


async def test_an_abort_reaches_every_generation(namespace: str) -> None:
    async with opened("memory", namespace, window=1) as ends:
        for _ in range(3):
            ends.producer.submit("r", 1)
            ends.producer.submit("r", 2, finished=True)
        ends.producer.abort("r", "all of it")
        assert ends.producer.requests == frozenset()
        assert not ends.producer._producer.desk.open  # type: ignore[union-attr]
        ends.consumer.register("r")
        told = await story(ends.consumer)
        assert "all of it" in str(failure(told).error)


async def test_a_generation_that_fails_before_its_stream_begins_is_told_of(namespace: str) -> None:
    async with opened("memory", namespace, window=1) as ends:
        ends.producer.submit("r", 1)
        ends.producer.submit("r", 2, finished=True)
        ends.producer._producer._processor = lambda *_: 1 / 0  # type: ignore[union-attr]
        ends.producer.submit("r", 3)
        ends.consumer.register("r")
        assert chunks(await story(ends.consumer)) == [1, 2]
        ends.consumer.register("r")
        assert "ZeroDivisionError" in str(failure(await story(ends.consumer)).error)


async def test_two_writers_of_one_id_are_one_too_many(namespace: str) -> None:
    async with opened("memory", namespace) as ends:
        async with ends.sender.edge("0", "1").stream("r"):
            with pytest.raises(UsageError, match="has a writer already"):
                await ends.producer.send("r", 1)


# --- what is left ---------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["finish", "abort here", "abort there", "fail"])
async def test_requests_leave_nothing_behind(
    backend: str, namespace: str, keyed: bool, how: str
) -> None:
    async with opened(backend, namespace, window=4, keyed=keyed) as ends:
        producer, consumer = ends.producer, ends.consumer
        told: list[Any] = []

        async def one(name: str) -> None:
            consumer.register(name)
            for number in range(3):
                await producer.send(name, number)
            if how == "finish":
                await producer.send(name, None, finished=True)
            elif how == "abort here":
                producer.abort(name)
            elif how == "abort there":
                consumer.abort(name)
                producer.abort(name)
            else:
                producer.submit(name, object())
            while consumer.state(name) != "unknown":
                await asyncio.sleep(0)
                told.extend(consumer.poll())
            producer.poll()

        for number in range(60):
            await one(f"r{number}")
        assert consumer.requests == producer.requests == frozenset()
        assert consumer.poll() == producer.poll() == []
        reads, writes = consumer._consumer, producer._producer
        assert reads is not None
        assert writes is not None
        await until(lambda: not len(producer._tasks) + len(consumer._tasks), "no task")
        assert (reads._active, len(reads._parked), len(reads._stalls)) == (0, 0, 0)
        assert (writes.desk.open, len(writes.desk._failed), len(writes._stalls)) == (0, 0, 0)
        assert (writes.desk._budget.chunks, writes.desk._budget.nbytes) == (0, 0)
        await until(lambda: not kept("Outgoing", "Incoming"), "no request")


def kept(*kinds: str) -> list[Any]:
    gc.collect()
    return [each for each in gc.get_objects() if type(each).__name__ in kinds]


async def test_a_stream_that_nobody_polls_keeps_nothing_after_its_abort(namespace: str) -> None:
    async with opened("memory", namespace) as ends:
        ends.consumer.register("r")
        ends.producer.submit("r", np.zeros(1000))
        await until(lambda: len(ends.consumer._mailbox) == 1, "a chunk")
        ends.consumer.abort("r")
        ends.producer.abort("r")
        assert not kept("ChunkReady")


async def test_stages_name_their_edges(namespace: str) -> None:
    class Stage:
        def __init__(self, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
            self.inputs = inputs
            self.outputs = outputs

    def end(role: Any, stage: str) -> Any:
        return omni_async.open_transport("memory", role=role, stage=stage, namespace=namespace)

    async with end("receiver", "2") as rx, end("sender", "2") as tx:
        inputs = {name: rx.edge(name, "2") for name in ("0", "1")}
        outputs = {name: tx.edge("2", name) for name in ("3", "4")}
        adapter = ChunkTransferAdapter(Stage(inputs, outputs), input=0, output="4")
        assert repr(adapter) == "<ChunkTransferAdapter of 0->2 and 2->4, not entered>"
        with pytest.raises(UsageError, match="several inputs; name one: input='0', input='1'"):
            ChunkTransferAdapter(Stage(inputs, outputs), output="3")
        with pytest.raises(UsageError, match="several outputs; name one: output='3', output='4'"):
            ChunkTransferAdapter(Stage(inputs, outputs), input="1")
        with pytest.raises(UsageError, match="no output '7'; it has output='3', output='4'"):
            ChunkTransferAdapter(Stage(inputs, outputs), input="1", output=7)
        with pytest.raises(UsageError, match="no input '7'; it has none"):
            ChunkTransferAdapter(Stage({}, {}), input=7)
        only = ChunkTransferAdapter(Stage({"0": inputs["0"]}, {}))
        assert repr(only) == "<ChunkTransferAdapter of 0->2, not entered>"
        assert repr(ChunkTransferAdapter(None)) == "<ChunkTransferAdapter of no edge, not entered>"
