"""The floor: an arena both processes map, one copy, one word on a Unix socket, nothing else.

In: batches asked for on the control line. Out: when each call began and each value was usable.
Never: does what a transport must (keys, limits, time-outs, clean-up); it shows what is left to gain.

Mode: ``copy`` copies the tensor into the arena, ``place`` has it there already.
"""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import os
import socket
import struct
from time import perf_counter_ns as now
from typing import Any

import msgspec
import numpy as np

from ..line import Line
from ..payload import WIDTH, check, hidden_states, stamp, touch, value

ARENA = 512 << 20
SLOTS = 2
TENSOR = 1
"""Extension code of a tensor that lies in the arena."""


class Bell:
    """Words over a non-blocking Unix socket, read by ``add_reader``."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._words: list[bytes] = []
        self._waiter: asyncio.Future[None] | None = None
        asyncio.get_running_loop().add_reader(sock.fileno(), self._readable)

    def ring(self, word: bytes) -> None:
        self._sock.send(word)

    async def word(self) -> bytes:
        if not self._words:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._words.pop(0)

    def _readable(self) -> None:
        self._words.append(self._sock.recv(1 << 16))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def work(line: Line, friends: list[socket.socket], job: dict[str, Any]) -> None:
    """Serve batches until the line closes."""
    import torch

    torch.set_num_threads(1)
    friend = friends[0]
    if job["role"] == "producer":
        descriptor = os.memfd_create("bench")
        os.ftruncate(descriptor, ARENA)
        socket.send_fds(friend, [b"f"], [descriptor])
    else:
        descriptor = socket.recv_fds(friend, 1, 1)[1][0]
    arena = np.frombuffer(mmap.mmap(descriptor, ARENA), dtype=np.uint8)
    bell = Bell(friend)
    await line.send_async({"ready": True})
    while True:
        batch = await line.receive_async()
        serve = produce if job["role"] == "producer" else consume
        await line.send_async(await serve(bell, arena, batch))


async def produce(bell: Bell, arena: Any, batch: dict[str, Any]) -> dict[str, Any]:
    nbytes = batch["nbytes"]
    source = hidden_states(nbytes)
    begun, put = [], []
    for index in range(batch["warmup"] + batch["count"]):
        offset = index % SLOTS * nbytes
        stamp(source, index)
        if batch["mode"] == "place":
            arena[offset : offset + nbytes] = source.view(dtype=_uint8()).numpy().reshape(-1)
        start = now()
        payload = value(source)
        payload["hidden_states"] = msgspec.msgpack.Ext(TENSOR, struct.pack("<QQ", offset, nbytes))
        word = msgspec.msgpack.encode(payload)
        if batch["mode"] == "copy":
            ctypes.memmove(arena.ctypes.data + offset, source.data_ptr(), nbytes)
        bell.ring(word)
        begun.append(start)
        put.append(now() - start)
        await bell.word()
    return {"begun": begun, "put": put}


async def consume(bell: Bell, arena: Any, batch: dict[str, Any]) -> dict[str, Any]:
    import torch

    def tensor(code: int, data: memoryview) -> Any:
        offset, nbytes = struct.unpack("<QQ", data)
        piece = torch.from_numpy(arena[offset : offset + nbytes])
        return piece.view(torch.bfloat16).reshape(-1, WIDTH)

    decode = msgspec.msgpack.Decoder(ext_hook=tensor).decode
    reference = hidden_states(batch["nbytes"])
    total = batch["warmup"] + batch["count"]
    usable, touched = [], []
    for index in range(total):
        received = decode(await bell.word())
        end = now()
        touch(received)
        usable.append(end)
        touched.append(now() - end)
        check(received, reference, index, whole=index in (0, total - 1))
        del received
        bell.ring(b"k")
    return {"usable": usable, "touch": touched}


def _uint8() -> Any:
    import torch

    return torch.uint8
