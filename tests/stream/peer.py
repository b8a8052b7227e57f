"""What the other process of a test does, by ``call("use", target="tests.stream.peer:…")``.

In: a side and numbers. Out: what it saw.
Never: decides whether that is right.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from omni_async import ChunkReady, ChunkTransferAdapter, StreamFailed
from omni_async.testing import LocalSide

HERE = "tests.stream.peer"


def chunk(name: str, number: int, nbytes: int) -> dict[str, Any]:
    return {"name": name, "number": number, "codes": np.full(nbytes, number % 251, np.uint8)}


async def produce(
    side: LocalSide, names: list[str], count: int, nbytes: int = 400, pause: float = 0.0
) -> dict[str, str]:
    """Every request in turn; which failed, and how."""
    failed: dict[str, str] = {}
    edge = side.transport.edge("0", "1")
    async with ChunkTransferAdapter(None, output=edge) as adapter:

        async def one(name: str) -> None:
            for number in range(count):
                await adapter.send(
                    name, chunk(name, number, nbytes), position=number, finished=number == count - 1
                )
                await asyncio.sleep(pause)

        outcomes = await asyncio.gather(*map(one, names), return_exceptions=True)
        for name, outcome in zip(names, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                failed[name] = type(outcome).__name__
                adapter.abort(name)
    return failed


async def consume(side: LocalSide, names: list[str], stop_after: int = 0) -> dict[str, Any]:
    """Chunks of each request, or the name of its error; silent after so many chunks."""
    seen: dict[str, Any] = dict.fromkeys(names, 0)
    left, taken = len(names), 0
    async with ChunkTransferAdapter(None, input=side.transport.edge("0", "1")) as adapter:
        for name in names:
            adapter.register(name)
        async for event in adapter.events():
            if isinstance(event, ChunkReady):
                assert event.chunk["number"] == event.index == seen[event.request_id]
                assert event.chunk["name"] == event.request_id
                seen[event.request_id] += 1
                taken += 1
                if taken == stop_after:
                    await asyncio.Event().wait()
            elif isinstance(event, StreamFailed):
                seen[event.request_id] = type(event.error).__name__
                left -= 1
            else:
                left -= 1
            if not left:
                break
    return seen
