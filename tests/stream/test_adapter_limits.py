"""What is bounded: what waits, who is active, how long nothing comes, what is taken twice."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from omni_async import (
    BackPressure,
    ChunkReady,
    ClosedError,
    StreamAborted,
    StreamClosed,
    StreamFailed,
    StreamFinished,
    StreamState,
    TransferTimeout,
)
from omni_async.stream import Limits
from tests.cases.steps import until
from tests.stream.ends import chunks, failure, opened, story

FEW = {"limits": Limits(chunks=4, nbytes=100_000, total_chunks=10, total_nbytes=250_000)}

# --- what waits -----------------------------------------------------------------------------------


async def test_submit_past_a_limit_is_refused_and_takes_nothing(
    backend: str, namespace: str, keyed: bool
) -> None:
    async with opened(backend, namespace, window=2, keyed=keyed, producer=FEW) as ends:
        taken = list(range(4 if keyed else 6))  # the window's two are on their way
        for number in taken:
            ends.producer.submit("r", number)
        with pytest.raises(BackPressure, match=r"request 'r' on 0->1: 4 chunks of .* wait") as full:
            ends.producer.submit("r", 6)
        assert full.value.key == "r"
        assert full.value.retryable
        with pytest.raises(BackPressure):
            ends.producer.submit("r", 0, finished=True)
        ends.consumer.register("r")
        last = asyncio.create_task(ends.producer.send("r", "last", finished=True))
        assert chunks(await story(ends.consumer)) == [*taken, "last"]
        await last


async def test_bytes_are_a_limit_too_but_one_output_always_fits(namespace: str) -> None:
    async with opened("memory", namespace, window=1, producer=FEW) as ends:
        block = np.zeros(300_000, np.uint8)
        ends.producer.submit("r", block[:100])  # the window's
        ends.producer.submit("r", block)
        with pytest.raises(BackPressure, match="request 'r'"):
            ends.producer.submit("r", block[:1])
        with pytest.raises(BackPressure, match="request 'other' on 0->1: of all requests") as full:
            ends.producer.submit("other", block[:1])
        assert full.value.key is None
        ends.producer.abort("r")
        ends.producer.submit("other", block[:1])
        ends.producer.abort("other")


async def test_all_requests_together_are_a_limit(namespace: str) -> None:
    async with opened("memory", namespace, window=1, producer=FEW) as ends:
        for number in range(14):
            ends.producer.submit(f"r{number // 4}", number)
        with pytest.raises(BackPressure, match="of all requests 10 chunks"):
            ends.producer.submit("r3", 14)
        for name in ends.producer.requests:
            ends.producer.abort(name)
        assert not ends.producer._producer.desk._budget.chunks  # type: ignore[union-attr]
        assert not ends.producer._producer.desk._budget.nbytes  # type: ignore[union-attr]


async def test_send_waits_where_submit_is_refused(
    backend: str, namespace: str, keyed: bool
) -> None:
    async with opened(backend, namespace, window=1, keyed=keyed, producer=FEW) as ends:
        names = [f"r{number}" for number in range(6)]

        async def produce(name: str) -> None:
            for number in range(30):
                await ends.producer.send(name, number)
            await ends.producer.send(name, None, finished=True)

        producing = [asyncio.create_task(produce(name)) for name in names]
        await asyncio.sleep(0.05)
        assert keyed or not any(task.done() for task in producing)  # a store holds nobody back
        for name in names:
            ends.consumer.register(name)
        told = await story(ends.consumer, ends=len(names))
        await asyncio.gather(*producing)
        for name in names:
            assert chunks(told, name) == list(range(30))


async def test_send_returns_when_its_chunks_have_left(namespace: str) -> None:
    async with opened("memory", namespace, window=1) as ends:
        await ends.producer.send("r", 1)
        second = asyncio.create_task(ends.producer.send("r", 2))
        third = asyncio.create_task(ends.producer.send("r", 3))
        third.cancel()
        await asyncio.sleep(0.01)
        assert not second.done()
        ends.consumer.register("r")
        events = ends.consumer.events()
        assert isinstance(await events.__anext__(), ChunkReady)
        await second
        await ends.producer.send("r", None, finished=True)
        assert [e.chunk for e in await story(ends.consumer) if isinstance(e, ChunkReady)] == [2]


async def test_a_cancelled_send_is_sent_all_the_same(namespace: str) -> None:
    async with opened("memory", namespace, window=1) as ends:
        await ends.producer.send("r", 1)
        waiting = asyncio.create_task(ends.producer.send("r", 2))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        ends.producer.submit("r", 3, finished=True)
        ends.consumer.register("r")
        assert chunks(await story(ends.consumer)) == [1, 2, 3]


async def test_those_who_wait_for_room_hear_of_an_abort_and_of_the_end(namespace: str) -> None:
    async with opened("memory", namespace, window=1, producer=FEW) as ends:
        for number in range(5):
            ends.producer.submit("r", number)
        waiting = asyncio.create_task(ends.producer.send("r", 9))
        await asyncio.sleep(0)
        ends.producer.abort("r", "not wanted")
        with pytest.raises(StreamAborted, match="aborted here: not wanted"):
            await waiting
        assert ends.producer.requests == frozenset()

        inside = asyncio.create_task(ends.producer.send("q", 1))
        await asyncio.sleep(0)
        ends.producer.submit("q", 2)
        queued = asyncio.create_task(ends.producer.send("q", 3))
        await asyncio.sleep(0)
        ends.producer.abort("q", "nor this")
        await inside
        with pytest.raises(StreamAborted, match="nor this"):
            await queued


async def test_those_who_wait_for_all_hear_of_their_own_abort_only(namespace: str) -> None:
    options = {"limits": Limits(total_chunks=2)}
    async with opened("memory", namespace, window=1, producer=options) as ends:
        for number in range(3):
            ends.producer.submit("full", number)
        one, other = (asyncio.create_task(ends.producer.send(name, 1)) for name in ("r", "s"))
        await asyncio.sleep(0)
        ends.producer.abort("r", "not wanted")
        with pytest.raises(StreamAborted, match="not wanted"):
            await one
        await asyncio.sleep(0)
        assert not other.done()
        ends.consumer.register("full")
        events = ends.consumer.events()
        assert isinstance(await events.__anext__(), ChunkReady)  # the next leaves, one still waits
        await other
        for name in ("full", "s"):
            ends.producer.abort(name)


async def test_one_chunk_that_leaves_is_no_room_for_all(namespace: str) -> None:
    options = {"limits": Limits(total_chunks=8)}
    async with opened("memory", namespace, window=1, producer=options) as ends:
        for number in range(9):
            ends.producer.submit("full", number)
        waiting = asyncio.create_task(ends.producer.send("s", 1))
        ends.consumer.register("full")
        events = ends.consumer.events()
        for _ in range(5):
            assert not waiting.done()
            await events.__anext__()
        await waiting
        for name in ("full", "s"):
            ends.producer.abort(name)


async def test_a_send_that_was_just_woken_does_not_begin_an_aborted_request_anew(
    namespace: str,
) -> None:
    async with opened("memory", namespace, window=1, producer=FEW) as ends:
        producer = ends.producer._producer
        assert producer is not None
        for number in range(5):
            ends.producer.submit("r", number)
        waiting = asyncio.create_task(ends.producer.send("r", 9))
        await asyncio.sleep(0)
        producer._wake("r")
        ends.producer.abort("r", "too late")
        with pytest.raises(StreamAborted, match="too late"):
            await waiting
        assert ends.producer.requests == frozenset()


async def test_those_who_wait_for_room_hear_that_the_adapter_closes(namespace: str) -> None:
    options = {"limits": Limits(total_chunks=1)}
    async with opened("memory", namespace, window=1, producer=options) as ends:
        for number in range(2):
            ends.producer.submit("full", number)
        waiting = asyncio.create_task(ends.producer.send("r", 1))
        await asyncio.sleep(0)
        desk = ends.producer._producer.desk  # type: ignore[union-attr]
        desk._open.clear()  # what leaves would wake it before
    with pytest.raises(ClosedError):
        await waiting


async def test_send_is_for_the_loop(namespace: str) -> None:
    async with opened("memory", namespace) as ends:
        loop = asyncio.get_running_loop()

        def elsewhere() -> None:
            coroutine = ends.producer.send("r", 1)
            with pytest.raises(Exception, match="elsewhere use submit"):
                coroutine.send(None)

        await loop.run_in_executor(None, elsewhere)


async def test_back_pressure_reaches_the_producer(
    backend: str, namespace: str, keyed: bool
) -> None:
    """What nobody polls is not sent: the window, and not one chunk more."""
    async with opened(backend, namespace, window=4, keyed=keyed) as ends:
        ends.consumer.register("r")
        for number in range(50):
            ends.producer.submit("r", number, finished=number == 49)
        await until(lambda: len(ends.consumer._mailbox) == 4, "a window")
        await asyncio.sleep(0.05)
        assert len(ends.consumer._mailbox) == 4
        told: list[Any] = []
        while not (told and isinstance(told[-1], StreamFinished)):
            told += ends.consumer.poll()
            assert len(ends.consumer._mailbox) <= 4
            await asyncio.sleep(0.001)
        assert chunks(told) == list(range(50))


# --- who is active --------------------------------------------------------------------------------


async def test_at_most_k_are_active_first_come_first_served_and_nothing_is_lost(
    backend: str, namespace: str, keyed: bool
) -> None:
    async with opened(
        backend, namespace, window=4, keyed=keyed, consumer={"max_active": 3}
    ) as ends:
        names = [f"r{number}" for number in range(12)]
        for name in names:
            ends.consumer.register(name)
            for number in range(10):
                ends.producer.submit(name, number, finished=number == 9)
        live: list[str] = []
        order: list[str] = []
        told: list[Any] = []
        async for event in ends.consumer.events():
            told.append(event)
            if event.request_id not in live:
                live.append(event.request_id)
                order.append(event.request_id)
            assert len(live) <= 3
            if isinstance(event, StreamFinished):
                live.remove(event.request_id)
                if len(order) == len(names) and not live:
                    break
        assert order == names
        for name in names:
            assert chunks(told, name) == list(range(10))


async def test_a_parked_request_has_one_chunk_under_way_and_no_stall_clock(namespace: str) -> None:
    options = {"max_active": 1, "stall_timeout": 0.1}
    async with opened("memory", namespace, window=8, consumer=options) as ends:
        ends.consumer.register("first")
        ends.consumer.register("parked")
        for number in range(8):
            ends.producer.submit("parked", number, finished=number == 7)
        for number in range(8):  # longer than the stall clock allows
            ends.producer.submit("first", number, finished=number == 7)
            await asyncio.sleep(0.05)
            assert [e.request_id for e in ends.consumer.poll()][:1] == ["first"]
        assert ends.consumer.state("parked") != StreamState.FAILED
        told: list[Any] = []
        while not (told and isinstance(told[-1], StreamFinished)):
            await asyncio.sleep(0.001)
            told += ends.consumer.poll()
        assert chunks(told, "parked") == list(range(8))


async def test_a_parked_request_may_be_aborted_and_makes_no_room(namespace: str) -> None:
    async with opened("memory", namespace, consumer={"max_active": 1}) as ends:
        for name in ("active", "parked", "next"):
            ends.consumer.register(name)
        ends.consumer.abort("parked")
        assert ends.consumer.state("next") == "parked"
        ends.consumer.abort("active")
        assert ends.consumer.state("next") == "waiting_for_chunk"
        ends.producer.submit("next", 1, finished=True)
        assert chunks(await story(ends.consumer), "next") == [1]


async def test_an_end_makes_room_only_when_it_was_taken(namespace: str) -> None:
    async with opened("memory", namespace, consumer={"max_active": 1}) as ends:
        for name in ("r", "next"):
            ends.consumer.register(name)
            ends.producer.submit(name, 1, finished=True)
        await until(lambda: len(ends.consumer._mailbox) == 2, "the first request")
        await asyncio.sleep(0.02)
        assert [e.request_id for e in ends.consumer.poll()] == ["r", "r"]
        await until(lambda: len(ends.consumer._mailbox) == 2, "the next one")


# --- how long nothing comes -----------------------------------------------------------------------


async def test_a_stream_that_stalls_fails_and_tells_request_edge_and_chunk(
    backend: str, namespace: str, keyed: bool
) -> None:
    async with opened(backend, namespace, keyed=keyed, consumer={"stall_timeout": 0.15}) as ends:
        for name in ("r", "lively", "never"):
            ends.consumer.register(name)
        ends.producer.submit("r", 0)
        ends.producer.submit("r", 1)

        async def live() -> None:
            for number in range(8):
                await asyncio.sleep(0.05)
                ends.producer.submit("lively", number, finished=number == 7)

        living = asyncio.create_task(live())
        told = await story(ends.consumer, ends=3)
        await living
        failed = failure(told)
        assert isinstance(failed.error, TransferTimeout)
        assert "request 'r' on 0->1: chunk 2 did not come within 0.15 s" in str(failed.error)
        assert (failed.error.key, failed.error.edge) == ("r", ("0", "1"))
        assert failed.index == 2
        assert "chunk 0 did not come" in str(failure(told, "never").error)
        assert chunks(told, "lively") == list(range(8))
        assert ends.consumer.requests == frozenset()
        if not keyed:  # the writer is told that its reader has left
            await until(lambda: ends.producer.state("r") == "failed", "the word of it")
            with pytest.raises(StreamClosed):
                ends.producer.submit("r", 2)
        ends.producer.abort("r")


async def test_chunks_that_were_not_taken_stop_the_clock(namespace: str) -> None:
    async with opened("memory", namespace, consumer={"stall_timeout": 0.1}) as ends:
        ends.consumer.register("r")
        ends.producer.submit("r", 0)
        await until(lambda: len(ends.consumer._mailbox) == 1, "a chunk")
        await asyncio.sleep(0.2)
        assert [type(event) for event in ends.consumer.poll()] == [ChunkReady]
        await asyncio.sleep(0.05)
        assert ends.consumer.state("r") == "waiting_for_chunk"
        await until(lambda: ends.consumer.state("r") == "failed", "the stall")
        ends.producer.abort("r")


async def test_a_large_chunk_that_does_not_come_is_a_stall_too(namespace: str) -> None:
    async with opened("shm", namespace, consumer={"stall_timeout": 0.1}) as ends:
        ends.consumer.register("r")
        reader = ends.consumer._consumer._requests["r"].reading._reader  # type: ignore[union-attr]
        got = reader._receiving.get
        reader._receiving.get = lambda *a: _never()
        ends.producer.submit("r", np.zeros(200_000))
        error = failure(await story(ends.consumer)).error
        assert isinstance(error, TransferTimeout)
        reader._receiving.get = got
        ends.producer.abort("r")


async def _never() -> None:
    await asyncio.get_running_loop().create_future()


async def test_a_chunk_that_nobody_takes_fails_its_request_at_the_producer(namespace: str) -> None:
    async with opened("memory", namespace, window=2, producer={"stall_timeout": 0.1}) as ends:
        for number in range(3):
            ends.producer.submit("r", number)
        ends.producer.submit("fits", 1)
        failed = failure(await story(ends.producer))
        assert isinstance(failed.error, TransferTimeout)
        assert "request 'r' on 0->1: nobody has taken chunk 2 within 0.1 s" in str(failed.error)
        assert ends.producer.requests == {"fits"}
        ends.producer.abort("fits")


# --- what is taken twice --------------------------------------------------------------------------


async def test_work_that_is_submitted_again_is_dropped_and_counted(
    backend: str, namespace: str
) -> None:
    async with opened(backend, namespace) as ends:
        ends.consumer.register("r")
        for position in (1, 2, 3):
            ends.producer.submit("r", position, position)
        for position in (2, 3, 4, 5):  # preempted, and computed again from there
            ends.producer.submit("r", position, position)
        await ends.producer.send("r", "nowhere", position=5)
        ends.producer.submit("r", "no position")
        ends.producer.submit("r", "again", position=5, finished=True)
        told = await story(ends.consumer)
        assert chunks(told) == [1, 2, 3, 4, 5, "no position"]
        assert ends.producer.dropped == 4


async def test_positions_begin_anew_with_a_segment_and_with_a_request(namespace: str) -> None:
    async with opened("memory", namespace) as ends:
        ends.consumer.register("r")
        ends.producer.submit("r", "a", position=7)
        ends.producer.submit("r", "again", position=7, segment_ended=True)
        ends.producer.submit("r", "b", position=1)
        ends.producer.submit("r", None, finished=True)
        assert chunks(await story(ends.consumer)) == ["a", "b"]
        assert ends.producer.dropped == 1
        ends.consumer.register("r")
        ends.producer.submit("r", "c", position=0, finished=True)
        assert chunks(await story(ends.consumer)) == ["c"]


async def test_what_is_refused_for_lack_of_room_may_be_submitted_again(namespace: str) -> None:
    async with opened("memory", namespace, window=1, producer=FEW) as ends:
        for position in range(5):
            ends.producer.submit("r", position, position)
        with pytest.raises(BackPressure):
            ends.producer.submit("r", 5, 5)
        ends.consumer.register("r")
        again = asyncio.create_task(ends.producer.send("r", 5, 5, finished=True))
        assert chunks(await story(ends.consumer)) == list(range(6))
        await again
        assert ends.producer.dropped == 0


# --- failures -------------------------------------------------------------------------------------


async def test_a_chunk_that_cannot_be_sent_raises_and_ends_the_consumers_stream(
    backend: str, namespace: str, keyed: bool
) -> None:
    async with opened(backend, namespace, keyed=keyed, memory_pool_size=1 << 20) as ends:
        for name, bad in (("r", object()), ("s", np.zeros(1 << 21, np.uint8))):
            ends.consumer.register(name)
            await ends.producer.send(name, 1)
            with pytest.raises(Exception, match=f"'{name}'") as raised:
                await ends.producer.send(name, bad)
            told = await story(ends.consumer)
            assert chunks(told, name) == [1]
            error = failure(told, name).error
            assert isinstance(error, StreamAborted)
            assert type(raised.value).__name__ in error.reason
            with pytest.raises(type(raised.value)):
                ends.producer.submit(name, 3)
            [own] = ends.producer.poll()
            assert isinstance(own, StreamFailed)
            assert (own.request_id, own.index) == (name, 1)
        assert ends.producer.requests == frozenset()


async def test_a_failed_request_is_refused_until_its_failure_was_heard_of(namespace: str) -> None:
    async with opened("memory", namespace) as ends:
        for heard in ("taken", "aborted", "finished"):
            ends.producer.submit("r", object())
            assert ends.producer.state("r") == "failed"
            with pytest.raises(Exception, match="'r'"):
                ends.producer.submit("r", 1)
            if heard == "taken":
                assert len(ends.producer.poll()) == 1
            elif heard == "aborted":
                ends.producer.abort("r")
            else:
                with pytest.raises(Exception, match="'r'"):
                    ends.producer.submit("r", 1, finished=True)
            assert ends.producer.state("r") == "unknown"
            assert ends.producer.poll() == []


async def test_failures_that_nobody_takes_are_bounded(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omni_async.stream.desk.FAILURES_KEPT", 3)
    async with opened("memory", namespace) as ends:
        for number in range(10):
            ends.producer.submit(f"r{number}", object())
        assert ends.producer.requests == {"r7", "r8", "r9"}
        assert [event.request_id for event in ends.producer.poll()] == ["r7", "r8", "r9"]
        assert ends.producer.requests == frozenset()
