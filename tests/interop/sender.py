"""A sender as vLLM-Omni's is, as far as its wire goes: a ROUTER, an engine, payloads by key.

In: payloads under routed keys. Out: answers to queries and pulls; faults as ordered.
Never: tells anybody that something is there; looks at the lengths it is told.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import numpy as np
import zmq
import zmq.asyncio

from omni_async.model import Move, Region, Verb
from omni_async.pool.memory import AnonymousMemory

from .double import SessionEngine

SIZE = 64 << 20


class Sender:
    """One of theirs."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.engine = SessionEngine(Verb.WRITE)
        self._block = AnonymousMemory().allocate(SIZE)
        self.engine.register(self._block.address, SIZE)
        self.memory = np.frombuffer(self._block.view(), np.uint8)
        self.payloads: dict[str, tuple[bytes, bool]] = {}
        self.heard: Counter[str] = Counter()
        self.queried: Counter[str] = Counter()
        self.open = asyncio.Event()
        """While it is not set, pulls are written but not answered."""
        self.open.set()
        self.begin = asyncio.Event()
        """While it is not set, pulls are not even begun."""
        self.begin.set()
        self.pulled = asyncio.Event()
        self.prefix = b""
        """What the engine puts in front of objects."""
        self.answer: bytes | None = None
        """What is answered to everything, instead of the truth."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._used = 0
        self._regions = 0

    def put(self, key: str, data: bytes, *, fast: bool = True) -> dict[str, Any]:
        self.payloads[key] = data, fast
        return {
            "source_host": "127.0.0.1",
            "source_port": self.port,
            "data_size": len(data),
            "is_fast_path": fast,
        }

    def listen(self) -> None:
        self._context = zmq.asyncio.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.LINGER, 0)
        self._router.bind(f"tcp://127.0.0.1:{self.port}")
        self._serving = asyncio.create_task(self._serve())

    async def die(self) -> None:
        """As a killed process: connections end, nothing is answered any more."""
        self._serving.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.wait([self._serving, *self._tasks])
        self._router.close()
        self._context.term()

    async def _serve(self) -> None:
        while True:
            frames = await self._router.recv_multipart()
            task = asyncio.create_task(self._handle(frames[0], frames[-1]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _handle(self, identity: bytes, body: bytes) -> None:
        answer = await self._answer(body)
        await self._router.send_multipart([identity, b"", answer])

    async def _answer(self, body: bytes) -> bytes:
        if body.startswith(b"query_info"):
            self.heard["query"] += 1
            key = msgspec.msgpack.decode(body[len(b"query_info") :])["request_id"]
            self.queried[key] += 1
            if self.answer is not None:
                return self.answer
            if key not in self.payloads:
                return b"info_not_found"
            data, fast = self.payloads[key]
            return msgspec.msgpack.encode(
                {"request_id": key, "data_size": len(data), "is_fast_path": fast}
            )
        self.heard["pull"] += 1
        word = msgspec.msgpack.decode(body)
        self.pulled.set()
        await self.begin.wait()
        if self.answer is not None:
            return self.answer
        key = word["request_id"]
        found = self.payloads.get(key)
        if found is None:
            return b"trans_error"
        data = (b"" if found[1] else self.prefix) + found[0]
        at, self._used = self._used, (self._used + len(data)) % (SIZE // 2)
        self.memory[at : at + len(data)] = np.frombuffer(data, np.uint8)
        session = f"{word['remote_hostname']}:{word['remote_port']}"
        self._regions += 1
        there = Region(self._regions, word["dst_addrs"][0], len(data), b"", -1)
        remote = self.engine.attach(session, there)
        move = Move(self._block.address + at, there.id, 0, len(data))
        try:
            await self.engine.write(session, [move], {there.id: remote})
        except Exception:  # noqa: BLE001 - as it does there
            return b"trans_error"
        self.payloads.pop(key, None)
        await self.open.wait()
        return b"trans_done"


@contextlib.asynccontextmanager
async def sender(port: int) -> AsyncIterator[Sender]:
    made = Sender(port)
    made.listen()
    try:
        yield made
    finally:
        if not made._router.closed:
            await made.die()
        made.engine.close()
