"""Endless checked traffic between two processes, for tests that pull the plug in the middle of it.

In: a side, streams of numbered payloads, where each begins. Out: payloads whose every byte is known.
Never: ends by itself while a stream has no end; trusts what it received.
"""

from __future__ import annotations

import asyncio
import mmap
import struct
import time
from pathlib import Path
from typing import Any

from ..errors import KeyNotFound
from ..transport import Delivery, Transport
from .compare import difference
from .recipes import Recipe, pattern_array, tree
from .sides import EDGE, LocalSide

SIZES = (80, 3000, 40_000, 300_000, 1_500_000)
AHEAD = 3
"""Payloads of one stream that are put without a pause."""
LAST_WAIT = 300
"""Times a new receiver asks which payload comes first, each 10 ms after the other."""


def key_of(stream: int, number: int) -> str:
    return f"stream-{stream}/{number}"


def payload_of(stream: int, number: int) -> Recipe:
    """What is sent as number ``number`` of a stream; sizes change from one to the next."""
    size = SIZES[(stream * 7 + number * 3) % len(SIZES)]
    return tree(size + number % 100, stream * 1_000_000 + number)


class Ledger:
    """A counter for each stream in a file, so that it survives the process that counts."""

    def __init__(self, path: Path, streams: int) -> None:
        self._path = path
        if not path.exists():
            path.write_bytes(bytes(8 * streams))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)

    def __getitem__(self, stream: int) -> int:
        (value,) = struct.unpack_from("<q", self._map, stream * 8)
        return int(value)

    def __setitem__(self, stream: int, value: int) -> None:
        struct.pack_into("<q", self._map, stream * 8, value)

    def close(self) -> None:
        self._map.close()


async def produce(side: LocalSide, starts: list[int], total: int | None = None) -> None:
    """Put the payloads of each stream in order, a few ahead of their receiver.

    Args:
        side: a sender.
        starts: number of the first payload of each stream.
        total: numbers below it are put; ``None`` never ends.
    """
    transport = side.transport
    await asyncio.gather(
        *(_produce(transport, stream, start, total) for stream, start in enumerate(starts))
    )


async def _produce(transport: Transport, stream: int, start: int, total: int | None) -> None:
    number = start
    while total is None or number < total:
        value = payload_of(stream, number).make()
        await transport.put(*EDGE, key_of(stream, number), value, timeout=None)
        number += 1
        if number - start >= AHEAD:
            await asyncio.sleep(0.001)


async def consume(side: LocalSide, path: str, streams: int, total: int | None = None) -> list[str]:
    """Get the payloads of each stream in order and write down how far it has come.

    The first payload of a stream may have been delivered to a receiver that died before it could
    write that down: then it is not there, and the stream goes on with the next.

    Returns what was wrong with payloads; nothing is right.
    """
    ledger = Ledger(Path(path), streams)
    wrong: list[str] = []
    await asyncio.gather(
        *(_consume(side.transport, ledger, stream, total, wrong) for stream in range(streams))
    )
    ledger.close()
    return wrong


async def _consume(
    transport: Transport, ledger: Ledger, stream: int, total: int | None, wrong: list[str]
) -> None:
    number, found = await _resume(transport, stream, ledger[stream], total)
    while total is None or number < total:
        if found:
            delivery = found.pop(0)
        else:
            delivery = await transport.get(*EDGE, key_of(stream, number), timeout=None)
        fault = difference(delivery.value, payload_of(stream, number).make())
        if fault:
            wrong.append(f"{key_of(stream, number)}: {fault}")
        del delivery
        number += 1
        ledger[stream] = number


async def _resume(
    transport: Transport, stream: int, number: int, total: int | None
) -> tuple[int, list[Delivery]]:
    """The number that comes first, the one that was not written down or the next, with its payload."""
    if not number:
        return 0, []
    # Its word of this delivery may have died with the receiver: then it is on offer once more.
    await _ask(transport, stream, number - 1)
    for _ in range(LAST_WAIT):
        this = await _ask(transport, stream, number)
        if this is not None:
            return number, [this]
        following = await _ask(transport, stream, number + 1)
        if following is not None:
            this = await _ask(transport, stream, number)  # both may have been put just now
            return (number + 1, [following]) if this is None else (number, [this, following])
        await asyncio.sleep(0.01)
    if total is not None and number == total - 1:
        return total, []  # the very last one had been delivered
    return number, []


async def _ask(transport: Transport, stream: int, number: int) -> Delivery | None:
    try:
        return await transport.get(*EDGE, key_of(stream, number), timeout=0)
    except KeyNotFound:
        return None


async def timestamps(side: LocalSide, keys: list[str], pause: float) -> None:
    """Put the time of each put, in nanoseconds of the monotonic clock, with pauses in between."""
    for key in keys:
        await side.transport.put(*EDGE, key, time.monotonic_ns())
        await asyncio.sleep(pause)


async def latencies(
    side: LocalSide,
    stream: int,
    start: int,
    count: int,
    metadata: dict[str, Any] | None = None,
) -> list[float]:
    """Get that many payloads of a stream, one after the other; seconds of each get.

    Raises:
        AssertionError: one of them is wrong.
    """
    taken = []
    for number in range(start, start + count):
        began = time.perf_counter()
        delivery = await side.transport.get(*EDGE, key_of(stream, number), metadata, timeout=30)
        taken.append(time.perf_counter() - began)
        fault = difference(delivery.value, payload_of(stream, number).make())
        if fault:
            raise AssertionError(f"{key_of(stream, number)}: {fault}")
        del delivery
    return taken


async def put_patterns(side: LocalSide, prefix: str, count: int, nbytes: int) -> None:
    """Put patterns, each seeded by its number, under ``prefix-0`` and so on."""
    for number in range(count):
        value = pattern_array(nbytes, number)
        await side.transport.put(*EDGE, f"{prefix}-{number}", value, timeout=30)
