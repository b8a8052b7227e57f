"""Keyed streams between two processes, one of which is killed."""

from __future__ import annotations

import asyncio
import sys

import pytest

from omni_async.errors import StreamAborted, StreamStalled
from omni_async.transport.streams.keyed import KeyedStreams
from omni_async.transport.streams.keyed_reader import KeyedReader
from tests.streams.keyed_ends import opened_receiver

COUNT = 60


async def test_a_stream_from_another_process_and_what_its_death_leaves(namespace: str) -> None:
    writer = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.streams.keyed_writer_process", namespace, str(COUNT),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with opened_receiver("shm", namespace, stall=45) as (rx, streams):

            def reader(key: str) -> KeyedReader:
                return streams.reader(rx.enter("receiver", "0", "1", key))

            async with reader("whole") as whole:
                async for number, filled in whole:
                    assert number == whole.received - 1
                    assert filled.shape == (number * 100,)
                    assert (filled == number % 251).all()
                assert (whole.received, whole.segment) == (COUNT, COUNT // 10)
            async with reader("aborted") as aborted:
                assert await aborted.read() == "before"
                with pytest.raises(StreamAborted, match="out of voices"):
                    await aborted.read()
            hasty = KeyedStreams(rx, stall_timeout=0.3)
            async with hasty.reader(rx.enter("receiver", "0", "1", "cut")) as cut:
                assert await cut.read() == "the last word"
                waiting = asyncio.create_task(cut.read())
                writer.kill()
                with pytest.raises(StreamStalled, match="'cut' on 0->1: chunk 1 ") as caught:
                    await waiting
                assert caught.value.chunk == 1
            seen = rx.meters.snapshot(streams.flowing())["0->1"]
            assert (seen.chunks, seen.finished, seen.aborted, seen.failures) == (COUNT + 2, 1, 1, 1)
            assert seen.chunk_seconds.count == COUNT + 2  # both read one clock
    finally:
        if writer.returncode is None:
            writer.kill()
        await writer.communicate()
