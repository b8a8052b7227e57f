"""This library's ChunkTransferAdapter as a contender: submitted to from a thread, as a scheduler's step does.

In: steps asked for on the control line. Out: when each submit began and each event was there, CPU time.
Never: polls; the consumer takes events as they come.
"""

from __future__ import annotations

import asyncio
import socket
import time
from time import perf_counter_ns as now
from typing import Any

from omni_async.errors import BackPressure
from omni_async.stream import ChunkReady, ChunkTransferAdapter, StreamFailed, StreamFinished

from ..chunks import check, cpu_seconds, tensor_of, tensors, with_meta
from ..line import Line
from .stream_steps import edge_of, serve

FULL = 0.0005
"""Seconds until a producer that was refused tries again."""


async def work(line: Line, friends: list[socket.socket], job: dict[str, Any]) -> None:
    """Serve steps until the line closes."""
    producer = job["role"] == "producer"
    async with edge_of(job) as edge:
        read, written = (None, edge) if producer else (edge, None)
        async with ChunkTransferAdapter(None, read, written) as adapter:
            await serve(line, Producer(adapter) if producer else Consumer(adapter))


class Producer:
    """Submits round and round over all requests, from a thread of its own."""

    def __init__(self, adapter: ChunkTransferAdapter) -> None:
        self._adapter = adapter
        self._tensors = tensors()
        self._batch: dict[str, Any] = {}

    async def open(self, batch: dict[str, Any]) -> dict[str, Any]:
        self._batch = batch
        return {}

    async def run(self) -> dict[str, Any]:
        used = cpu_seconds()
        begun = await asyncio.to_thread(self._submit_all)
        while self._adapter.requests:  # noqa: ASYNC110 - as the peer's side waits for its queue
            await asyncio.sleep(0.001)
        return {"begun": begun, "cpu": cpu_seconds() - used}

    def _submit_all(self) -> list[int]:
        batch, source, adapter = self._batch, self._tensors, self._adapter
        wrap = with_meta if batch["meta"] else None
        rate, last = batch["rate"], batch["chunks"] - 1
        keys = [f"{batch['name']}-{index}" for index in range(batch["streams"])]
        begun: list[int] = []
        start = time.perf_counter()
        for round_ in range(batch["chunks"]):
            for key in keys:
                number = len(begun)
                if rate and (delay := start + number / rate - time.perf_counter()) > 0:
                    time.sleep(delay)
                chunk = source[number % len(source)]
                begun.append(now())
                chunk = chunk if wrap is None else wrap(chunk)
                while True:
                    try:
                        adapter.submit(key, chunk, round_, round_ == last)
                        break
                    except BackPressure:
                        time.sleep(FULL)
        return begun


class Consumer:
    """One task that takes all events."""

    def __init__(self, adapter: ChunkTransferAdapter) -> None:
        self._adapter = adapter
        self._events = adapter.events()
        self._tensors = tensors()
        self._batch: dict[str, Any] = {}

    async def open(self, batch: dict[str, Any]) -> dict[str, Any]:
        self._batch = batch
        self._index = {f"{batch['name']}-{index}": index for index in range(batch["streams"])}
        for key in self._index:
            self._adapter.register(key)
        await asyncio.sleep(0)  # all have asked
        return {}

    async def run(self) -> dict[str, Any]:
        streams, index = self._batch["streams"], self._index
        total = streams * self._batch["chunks"]
        usable, left = [0] * total, streams
        used = cpu_seconds()
        while left:
            event = await anext(self._events)
            moment = now()
            if isinstance(event, ChunkReady):
                number = index[event.request_id] + event.index * streams
                usable[number] = moment
                if event.index == 0 or number >= total - streams:
                    check(tensor_of(event.chunk), self._tensors, number)
            elif isinstance(event, StreamFinished):
                left -= 1
            elif isinstance(event, StreamFailed):
                raise event.error
        return {"usable": usable, "cpu": cpu_seconds() - used}
