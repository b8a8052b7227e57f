"""Streams whose receiver's process does not read its socket: they wait, and memory is bounded."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

import omni_async
from omni_async.abc import Channel
from omni_async.rendezvous import turned_line, unix_line
from omni_async.transport import sending
from omni_async.transport.streams.direct_writer import DirectWriter

CROWDED = 50_000
CHUNK = 5_000


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "CROWDED", CROWDED)
    monkeypatch.setattr(turned_line, "LITTLE", CROWDED // 2)
    monkeypatch.setattr(unix_line, "_SEND_BUFFER", 4096)


class Stopped:
    """A receiver whose end of the line is not read, as if its process stood still."""

    def __init__(self, rx: Any) -> None:
        [link] = rx._receiving._links.values()
        self._line = link._channel
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> None:
        self._loop.remove_reader(self._line._sock.fileno())

    def __exit__(self, *_: object) -> None:
        self._loop.add_reader(self._line._sock.fileno(), self._line._readable)


@contextlib.asynccontextmanager
async def opened(namespace: str) -> AsyncIterator[tuple[Any, Any]]:
    async with (
        omni_async.open_transport(
            "shm", role="sender", stage="0", namespace=namespace, linger=0
        ) as tx,
        omni_async.open_transport("shm", role="receiver", stage="1", namespace=namespace) as rx,
    ):
        yield tx, rx


def line_of(tx: Any) -> Channel:
    [line] = tx._sending.receivers.channels.values()
    assert isinstance(line, Channel)
    return line


async def read_by_somebody(writers: list[Any]) -> None:
    while any(writer._outlet.ref is None for writer in writers):  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0)


@pytest.mark.parametrize("streams", [1, 150])
async def test_writers_wait_and_go_on(namespace: str, streams: int) -> None:
    chunks = 6_000 // streams
    async with opened(namespace) as (tx, rx), contextlib.AsyncExitStack() as stack:
        readers = []
        writers = []
        for index in range(streams):
            reader = rx.edge("0", "1").stream(f"r{index}", window=chunks)
            readers.append(await stack.enter_async_context(reader))
            writers.append(await tx.edge("0", "1").stream(f"r{index}").__aenter__())
        await read_by_somebody(writers)

        async def write(writer: Any) -> None:
            for number in range(chunks):
                await writer.send(bytes([number % 256]) * CHUNK)
                assert line_of(tx).queued <= CROWDED + 2 * CHUNK
            await writer.finish()

        async def read(reader: Any) -> int:
            numbers = [chunk[0] async for chunk in reader]
            assert numbers == [number % 256 for number in range(chunks)]
            return len(numbers)

        with Stopped(rx):
            writing = [asyncio.create_task(write(writer)) for writer in writers]
            await asyncio.sleep(0.1)
            assert line_of(tx).queued > CROWDED // 2  # else they would have gone on
            assert not any(task.done() for task in writing)
            waiting = [writer for writer in writers if not writer.room]
            assert waiting == writers
        counts = await asyncio.gather(*map(read, readers))
        assert counts == [chunks] * streams
        await asyncio.gather(*writing)
        assert tx._sending._crowded == {}
        assert tx.health().streams["0->1"].stalls >= streams


async def test_who_drives_many_is_told_that_there_is_room_again(namespace: str) -> None:
    async with opened(namespace) as (tx, rx):
        told = asyncio.Event()
        async with rx.edge("0", "1").stream("r", window=100) as reader:
            writer = tx.edge("0", "1").stream("r")
            assert isinstance(writer, DirectWriter)
            writer.drive(told.set)
            await read_by_somebody([writer])
            with Stopped(rx):
                while writer.room:
                    writer.send_nowait(bytes(CHUNK))
                with pytest.raises(omni_async.BackPressure):
                    writer.send_nowait(bytes(CHUNK))
                told.clear()
            sent = writer.sent
            assert 0 < sent < 100
            await asyncio.wait_for(told.wait(), 5)
            assert writer.room == 100 - sent
            writer.finish()
            assert len([chunk async for chunk in reader]) == sent


async def test_the_end_of_the_receiver_ends_the_waiting(namespace: str) -> None:
    async with opened(namespace) as (tx, rx):
        reader = rx.edge("0", "1").stream("r", window=100)
        await reader.__aenter__()
        writer = await tx.edge("0", "1").stream("r").__aenter__()
        await read_by_somebody([writer])

        async def write() -> None:
            for _ in range(100):
                await writer.send(bytes(CHUNK))

        with Stopped(rx):
            writing = asyncio.create_task(write())
            await asyncio.sleep(0.05)
            assert not writer.room
        rx.abort()
        with pytest.raises(omni_async.StreamClosed):
            await writing
        await asyncio.sleep(0)
        assert tx._sending._crowded == {}
