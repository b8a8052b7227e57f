"""One process of ``bench kv``: the producer of KV caches, or a consumer of them.

In: steps asked for on the control line. Out: moments and durations, once it was checked what came.
Never: fills, clears or compares caches while times are taken.

Moments are those of one clock for all processes of a host.
"""

from __future__ import annotations

import asyncio
import ctypes
import socket
import time
from time import perf_counter_ns as now
from typing import Any

from ....kv import KVConsumer, KVMemory, KVProducer, KVSession, sending
from ....model import Move
from ..kv_blocks import LAYERS, blocks_of, check, check_beginning, clear, fill, layout_of
from ..line import Line
from .ours import opened

SOURCE, TARGET = 1, 2
"""Seeds of the tables of blocks."""


async def work(line: Line, friends: list[socket.socket], job: dict[str, Any]) -> None:
    """Serve steps until the line closes."""
    import torch

    torch.set_num_threads(1)
    layout = layout_of(
        job["blocks"], job["form"], tp_size=job.get("tp_size", 1), tp_rank=job.get("rank", 0)
    )
    memory = KVMemory(layout)
    side: Producer | Consumer
    async with opened(job) as transport:
        if job["role"] == "producer":
            fill(memory)
            async with KVProducer(transport, layout, memory) as producer:
                side = Producer(producer, memory)
                await _serve(line, side)
        else:
            clear(memory)
            async with KVConsumer(
                transport, layout, memory, from_stage="0", source_tp=1
            ) as consumer:
                side = Consumer(consumer, memory)
                await _serve(line, side)


async def _serve(line: Line, side: Producer | Consumer) -> None:
    await line.send_async({"ready": True})
    while True:
        step = await line.receive_async()
        call = getattr(side, step.pop("do"))
        await line.send_async(await call(**step))


class Producer:
    """Has the caches."""

    def __init__(self, producer: KVProducer, memory: KVMemory) -> None:
        self._producer = producer
        self._memory = memory
        self._offered: KVSession | None = None
        self._gathered = sending.GATHERED

    def _blocks(self, table: str, count: int) -> list[int]:
        return blocks_of(table, count, self._memory.layout.num_blocks, SOURCE)

    async def offer(self, request: str, table: str, count: int, apart: bool) -> dict[str, Any]:
        """A cache that is ready; ``apart``: the engine is given each piece, however small."""
        sending.GATHERED = 0 if apart else self._gathered
        self._offered = await self._producer.offer(request, self._blocks(table, count))
        return {}

    async def delivered(self) -> dict[str, Any]:
        """What was offered is over there."""
        assert self._offered is not None
        await self._offered.delivered()
        sending.GATHERED = self._gathered
        return {}

    async def compute(
        self, request: str, table: str, count: int, seconds: float, each: bool
    ) -> dict[str, Any]:
        """Layers that take so many seconds each, told ``each`` at its end, or all at the end of the last."""
        session = await self._producer.write_to(request, self._blocks(table, count))
        ends = await asyncio.to_thread(_compute, session, seconds, each)
        await session.seal()
        await session.delivered()
        return {"ends": ends}

    async def one_write(self, nbytes: int) -> dict[str, Any]:
        """The engine alone: from the begin of the caches to the begin of the consumer's."""
        [peer] = self._producer.peers.values()
        spot = peer.meet.spots[0]
        region = peer.line.region(spot.region)
        assert region is not None
        moves = [Move(self._memory.block.address, spot.region, spot.offset, nbytes)]
        engine = self._producer.guests.wiring.engine
        start = now()
        await engine.write(peer.line.peer.incarnation, moves, {spot.region: region})
        return {"nanoseconds": now() - start}


def _compute(session: KVSession, seconds: float, each: bool) -> list[int]:
    """What a model's forward does, in a thread of its own as there; the end of each layer."""
    ends = []
    due = time.perf_counter()
    for layer in range(LAYERS):
        due += seconds
        time.sleep(max(0.0, due - time.perf_counter()))
        ends.append(now())
        if each:
            session.layer_ready(layer)
    return ends


class Consumer:
    """Wants them."""

    def __init__(self, consumer: KVConsumer, memory: KVMemory) -> None:
        self._consumer = consumer
        self._memory = memory

    def _check(self, table: str, count: int) -> None:
        blocks = [
            blocks_of(table, count, self._memory.layout.num_blocks, seed)
            for seed in (TARGET, SOURCE)
        ]
        check(self._memory, *blocks)
        clear(self._memory)

    async def fetch(self, request: str, table: str, count: int) -> dict[str, Any]:
        """Everything at once, of what was offered."""
        blocks = blocks_of(table, count, self._memory.layout.num_blocks, TARGET)
        start = now()
        progress = await self._consumer.receive(request, blocks, mode="read")
        await progress.all()
        end = now()
        self._check(table, count)
        return {"start": start, "end": end}

    async def take(self, request: str, table: str, count: int) -> dict[str, Any]:
        """Layer by layer, while they are computed."""
        blocks = blocks_of(table, count, self._memory.layout.num_blocks, TARGET)
        progress = await self._consumer.receive(request, blocks)
        landed = []
        for layer in range(LAYERS):
            await progress.layer(layer)
            landed.append(now())
        await progress.all()
        landed[-1] = now()
        self._check(table, count)
        return {"landed": landed}

    async def check_one_write(self, nbytes: int) -> dict[str, Any]:
        """What the engine alone has written."""
        check_beginning(self._memory, nbytes)
        clear(self._memory)
        return {}

    async def memcpy(self, nbytes: int) -> dict[str, Any]:
        """One plain copy from the producer's caches, which are mapped here."""
        [peer] = self._consumer.peers.values()
        spot = peer.meet.spots[0]
        region = peer.line.region(spot.region)
        assert region is not None
        start = now()
        ctypes.memmove(self._memory.block.address, region.address + spot.offset, nbytes)
        took = now() - start
        await self.check_one_write(nbytes)
        return {"nanoseconds": took}
