"""This library's streams as a contender: a writer and a waiting reader for each stream, on an event loop.

In: steps asked for on the control line. Out: when each send began and each chunk was usable, CPU time.
Never: polls; a reader is a task that waits for its next chunk.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack, nullcontext
from time import perf_counter_ns as now
from typing import Any

from ..chunks import check, cpu_seconds, tensor_of, tensors, with_meta
from ..line import Line
from ..pace import Pace
from .stream_steps import edge_of, serve


async def work(line: Line, friends: list[socket.socket], job: dict[str, Any]) -> None:
    """Serve steps until the line closes."""
    async with edge_of(job) as edge:
        await serve(line, Producer(edge) if job["role"] == "producer" else Consumer(edge))


class Producer:
    """Sends round and round over all streams, at a pace or as fast as they take it."""

    def __init__(self, edge: Any) -> None:
        self._edge = edge
        self._tensors = tensors()

    async def open(self, batch: dict[str, Any]) -> dict[str, Any]:
        self._batch = batch
        self._open = AsyncExitStack()
        self._writers = [
            await self._open.enter_async_context(self._edge.stream(f"{batch['name']}-{index}"))
            for index in range(batch["streams"])
        ]
        return {}

    async def run(self) -> dict[str, Any]:
        batch, source, writers = self._batch, self._tensors, self._writers
        wrap = with_meta if batch["meta"] else None
        last = batch["chunks"] - 1
        begun: list[int] = []
        used = cpu_seconds()
        with Pace(batch["rate"]) if batch["rate"] else nullcontext() as pace:
            for round_ in range(batch["chunks"]):
                for writer in writers:
                    number = len(begun)
                    if pace is not None:
                        await pace.tick()
                    chunk = source[number % len(source)]
                    begun.append(now())
                    await writer.send(chunk if wrap is None else wrap(chunk))
                    if round_ == last:
                        await writer.finish()
        await self._open.aclose()
        return {"begun": begun, "cpu": cpu_seconds() - used}


class Consumer:
    """A task for each stream."""

    def __init__(self, edge: Any) -> None:
        self._edge = edge
        self._tensors = tensors()

    async def open(self, batch: dict[str, Any]) -> dict[str, Any]:
        self._usable = [0] * (batch["streams"] * batch["chunks"])
        self._tasks = [
            asyncio.create_task(self._read(f"{batch['name']}-{index}", index, batch))
            for index in range(batch["streams"])
        ]
        await asyncio.sleep(0)  # all have asked
        return {}

    async def _read(self, key: str, number: int, batch: dict[str, Any]) -> None:
        step, last = batch["streams"], batch["streams"] * (batch["chunks"] - 1)
        usable = self._usable
        async with self._edge.stream(key) as reader:
            async for chunk in reader:
                tensor = tensor_of(chunk)
                usable[number] = now()
                if number < step or number >= last:
                    check(tensor, self._tensors, number)
                number += step

    async def run(self) -> dict[str, Any]:
        used = cpu_seconds()
        await asyncio.gather(*self._tasks)
        return {"usable": self._usable, "cpu": cpu_seconds() - used}
