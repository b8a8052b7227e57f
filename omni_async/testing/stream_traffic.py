"""Many checked streams between two processes, for tests that pull the plug in the middle of them.

In: a side, numbered streams of numbered chunks. Out: what was wrong with any of them.
Never: trusts what it received; waits longer than it was told to.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec

from ..errors import OmniAsyncError
from ..transport import Transport
from .recipes import pattern_array
from .sides import LocalSide


class Tally(msgspec.Struct):
    """What became of the streams of one edge."""

    whole: int = 0
    """Streams that were read to their end."""
    wrong: list[str] = []
    broken: list[tuple[float, str]] = []
    """When a stream failed, on the monotonic clock, and by which error."""


async def write_streams(
    side: LocalSide,
    to_stage: str,
    streams: int,
    chunks: int,
    generation: int,
    pause: float,
    nbytes: int = 200,
) -> None:
    """Write that many streams at once, each chunk after a random pause of ``pause`` seconds on average."""
    edge = side.transport.edge(side.transport.endpoint.stage, to_stage)

    async def write(number: int) -> None:
        chance = random.Random(number * 1000 + generation)
        async with edge.writer(f"stream-{number}") as stream:
            for chunk in range(chunks):
                await asyncio.sleep(chance.random() * 2 * pause)
                await stream.send([number, generation, chunk, b"." * chance.randrange(2 * nbytes)])

    await asyncio.gather(*(write(number) for number in range(streams)))


async def read_streams(
    transport: Transport, from_stage: str, streams: int, chunks: int, tally: Tally
) -> None:
    """Read each of those streams to its end; one that breaks is begun anew."""
    edge = transport.edge(from_stage, transport.endpoint.stage)
    clock = asyncio.get_running_loop().time

    async def attempt(number: int) -> bool:
        expected = 0
        generation: int | None = None
        async with edge.reader(f"stream-{number}") as stream:
            try:
                async for who, of, chunk, _ in stream:
                    generation = of if generation is None else generation
                    if (who, of, chunk) != (number, generation, expected):
                        tally.wrong.append(
                            f"stream {number}: {who, of, chunk} for {generation, expected}"
                        )
                    expected += 1
            except OmniAsyncError as error:
                tally.broken.append((clock(), f"{type(error).__name__}: {error}"))
                return False
        if expected != chunks:
            tally.wrong.append(f"stream {number} ended after {expected} chunks")
        return True

    async def read(number: int) -> None:
        while not await attempt(number):
            pass
        tally.whole += 1

    await asyncio.gather(*(read(number) for number in range(streams)))


async def read_slowly(side: LocalSide, key: str, nbytes: int, pause: float) -> list[Any]:
    """Read one stream of patterns with a pause after each; how many there were, and what was wrong."""
    wrong: list[str] = []
    edge = side.transport.edge("0", "1")
    async with edge.reader(key) as stream:
        async for chunk in stream:
            number = stream.received - 1
            if not (chunk == pattern_array(nbytes, number)).all():
                wrong.append(f"chunk {number} is another one")
            del chunk
            await asyncio.sleep(pause)
        return [stream.received, wrong]


async def read_counting(side: LocalSide, key: str) -> int:
    """Read one stream of consecutive numbers; how many there were, or -1 where one was wrong."""
    async with side.transport.edge("0", "1").reader(key) as stream:
        async for chunk in stream:
            if chunk["n"] != stream.received - 1:
                return -1
        return stream.received
