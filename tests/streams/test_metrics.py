"""The numbers and events of real streams."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest

import omni_async
from omni_async.errors import PeerLost, StreamAborted, StreamClosed, TransferCancelled
from omni_async.model import StreamHealth
from omni_async.transport.base import Transport
from omni_async.transport.streams import DEFAULT_WINDOW


@pytest.fixture(params=["memory", "shm"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextlib.asynccontextmanager
async def opened(backend: str, namespace: str) -> AsyncIterator[tuple[Transport, Transport]]:
    async with (
        omni_async.open_transport(
            backend, role="sender", stage="0", namespace=namespace, linger=0
        ) as tx,
        omni_async.open_transport(backend, role="receiver", stage="1", namespace=namespace) as rx,
    ):
        yield tx, rx


def seen(transport: Transport) -> StreamHealth:
    return transport.health().streams["0->1"]


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - gauges tell nobody that they changed
        await asyncio.sleep(0)


async def test_both_ends_count_the_same_chunks(backend: str, namespace: str) -> None:
    async with opened(backend, namespace) as (tx, rx):
        assert tx.health().streams == {}
        chunks: list[Any] = [b"s" * 100, np.zeros(100_000, np.uint8), None]
        async with (
            rx.edge("0", "1").stream("r") as reader,
            tx.edge("0", "1").stream("r") as writer,
        ):
            for chunk in chunks:
                await writer.send(chunk)
            await writer.finish()
            assert len([chunk async for chunk in reader]) == 3
        sent, received = seen(tx), seen(rx)
        assert (sent.role, received.role) == ("sender", "receiver")
        for end in (sent, received):
            assert (end.opened, end.finished, end.chunks) == (1, 1, 3)
            assert end.nbytes > 100_100
            assert end.chunk_bytes.counts[0] == 2
            assert (end.aborted, end.left, end.failures, end.drops) == (0, 0, 0, 0)
        assert sent.nbytes == received.nbytes
        assert (received.chunk_seconds.count, received.first_chunk_seconds.count) == (3, 1)
        assert 0 < received.chunk_seconds.total < 30
        assert 0 < received.first_chunk_seconds.total < 30
        assert (sent.chunk_seconds.count, sent.first_chunk_seconds.count) == (0, 0)
        flat = rx.health().as_dict()
        assert flat["stream.0->1.chunks"] == 3
        assert flat["stream.0->1.chunk_seconds.count"] == 3


async def test_without_a_common_clock_nothing_is_said_of_a_chunk_s_way(
    backend: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only of that: what one end measures on its own clock stands."""
    clocks = iter([1, 2])
    monkeypatch.setattr("omni_async.transport.direct_transport.clock_id", lambda: next(clocks))
    async with (
        opened(backend, namespace) as (tx, rx),
        rx.edge("0", "1").stream("r") as reader,
        tx.edge("0", "1").stream("r") as writer,
    ):
        await writer.send(1)
        await writer.send(np.zeros(100_000, np.uint8))
        await reader.read()
        await reader.read()
        assert (seen(rx).chunk_seconds.count, seen(rx).first_chunk_seconds.count) == (0, 1)


async def test_gauges_follow_credit(backend: str, namespace: str) -> None:
    async with opened(backend, namespace) as (tx, rx):
        async with tx.edge("0", "1").stream("r", window=4) as writer:
            for number in range(3):
                await writer.send(number)
            assert (seen(tx).queued, seen(tx).in_flight, seen(tx).credits) == (3, 0, 1)
            async with rx.edge("0", "1").stream("r", window=4) as reader:
                await until(lambda: seen(rx).queued == 3)
                assert (seen(tx).queued, seen(tx).in_flight, seen(tx).credits) == (0, 3, 1)
                assert (seen(rx).in_flight, seen(rx).credits) == (0, 1)
                for _ in range(3):
                    await reader.read()
                assert seen(rx).queued == 0
                await until(lambda: seen(tx).in_flight <= 1)
                assert seen(tx).credits >= 3
                large = asyncio.create_task(writer.send(np.zeros(1 << 20, np.uint8)))
                await until(lambda: seen(rx).in_flight + seen(rx).queued == 1)
                await reader.read()
                await large
        await until(lambda: seen(tx).in_flight == 0)
        assert (seen(tx).queued, seen(tx).credits) == (0, 0)
        assert (seen(rx).queued, seen(rx).in_flight, seen(rx).credits) == (0, 0, 0)


async def test_sends_that_wait_for_credit_are_stalls(backend: str, namespace: str) -> None:
    async with opened(backend, namespace) as (tx, rx):
        async with (
            rx.edge("0", "1").stream("r", window=1) as reader,
            tx.edge("0", "1").stream("r", window=1) as writer,
        ):
            await writer.send(0)
            assert seen(tx).stalls == 0
            waiting = asyncio.create_task(writer.send(1))
            await asyncio.sleep(0.02)
            await reader.read()
            await waiting
        assert seen(tx).stalls == 1
        assert 0.015 < seen(tx).stalled_seconds < 30


async def test_ends_are_counted_by_what_they_are(
    backend: str, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "omni_async")
    async with opened(backend, namespace) as (tx, rx):
        out, back = tx.edge("0", "1"), rx.edge("0", "1")
        async with back.stream("aborted") as reader, out.stream("aborted") as writer:
            await writer.abort("no more")
            with pytest.raises(StreamAborted):
                await reader.read()
        assert (seen(tx).aborted, seen(rx).aborted) == (1, 1)
        async with out.stream("left") as writer:
            async with back.stream("left") as reader:
                await writer.send(1)
                await writer.send(2)
                await reader.read()
                await until(lambda: seen(rx).queued == 1)
            await until(lambda: writer.failure() is not None)
            with pytest.raises(StreamClosed):
                await writer.send(2)
        assert (seen(tx).left, seen(rx).left, seen(rx).drops) == (1, 1, 1)
        async with out.stream("cleaned") as writer:
            await writer.send(1)
            await tx.cleanup("cleaned")
            with pytest.raises(TransferCancelled):
                await writer.send(2)
        assert (seen(tx).aborted, seen(tx).drops) == (2, 1)
        async with back.stream("lost") as reader, out.stream("lost") as writer:
            await writer.send(1)
            await reader.read()
            tx.abort()
            with pytest.raises((PeerLost, StreamAborted)):
                await reader.read()
        assert seen(tx).failures == 1
    told = [
        re.sub(r" (chunks|seconds|dropped|reason)=.*", "", r.getMessage()) for r in caplog.records
    ]
    for event in (
        "stream.open edge='0->1' request='aborted' role='sender'",
        "stream.first_chunk edge='0->1' request='left' role='receiver'",
        "stream.abort edge='0->1' request='aborted' role='sender'",
        "stream.abort edge='0->1' request='aborted' role='receiver'",
        "stream.leave edge='0->1' request='left' role='sender'",
        "stream.leave edge='0->1' request='left' role='receiver'",
        "stream.fail edge='0->1' request='lost' role='sender'",
    ):
        assert told.count(event) == 1, (event, told)


async def test_the_default_window_is_the_credit_of_a_reader(backend: str, namespace: str) -> None:
    async with opened(backend, namespace) as (_, rx), rx.edge("0", "1").stream("r"):
        assert seen(rx).credits == DEFAULT_WINDOW
