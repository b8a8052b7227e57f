"""This library as a contender: the producer puts, the consumer's waiting get returns.

In: batches asked for on the control line. Out: when each call began and each value was usable.
Never: polls, holds a delivery across iterations.

Modes: ``copy`` puts a dictionary with a tensor that lies in ordinary memory, ``tensor`` that tensor alone;
``place`` builds the whole value in ``allocate()``d memory; ``empty`` builds the dictionary's tensor by
``empty()``. Building is not timed. In these a get waits already when the put begins. In ``told`` it begins when the
producer has said that its put has ended; in ``waits`` the put begins 5 ms after it.
"""

from __future__ import annotations

import asyncio
import ctypes
import socket
from time import perf_counter_ns as now
from typing import Any

import omni_async

from ....model import Role
from ...on_this_host import extra_here
from ..line import Line
from ..payload import WIDTH, check, hidden_states, stamp, touch, value

HEAD_START = 0.005
"""Seconds by which a get begins before its put."""


async def work(line: Line, friends: list[socket.socket], job: dict[str, Any]) -> None:
    """Serve batches until the line closes."""
    import torch

    torch.set_num_threads(1)
    role = job["role"]
    friend = friends[0]
    friend.setblocking(False)
    async with opened(job) as transport:
        await line.send_async({"ready": True})
        while True:
            batch = await line.receive_async()
            serve = produce if role == "producer" else consume
            await line.send_async(await serve(transport, friend, batch))


def opened(job: dict[str, Any]) -> Any:
    """This end of the edge, to be entered."""
    role: Role = "sender" if job["role"] == "producer" else "receiver"
    extra = job["extra"][role] if "extra" in job else None
    if extra is None:
        extra = extra_here(job["connector"], role, job["port"])
    return omni_async.open_transport(
        {"name": job["connector"], "extra": extra},
        role=role,
        stage="0" if role == "sender" else "1",
        rank=job.get("rank", 0),
        namespace=job["namespace"],
    )


async def produce(transport: Any, friend: socket.socket, batch: dict[str, Any]) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    source = hidden_states(batch["nbytes"])
    begun, put = [], []
    for index in range(batch["warmup"] + batch["count"]):
        stamp(source, index)
        payload = await build(transport, source, batch["mode"])
        if batch["mode"] == "waits":
            await loop.sock_recv(friend, 1)
            await asyncio.sleep(HEAD_START)
        start = now()
        await transport.put("0", "1", f"{batch['name']}-{index}", payload)
        end = now()
        if batch["mode"] == "told":
            await loop.sock_sendall(friend, b"t")
        del payload
        begun.append(start)
        put.append(end - start)
        await loop.sock_recv(friend, 1)  # the consumer is done
    return {"begun": begun, "put": put, "memcpy": memcpy_times(source, batch["memcpy"])}


async def build(transport: Any, source: Any, mode: str) -> Any:
    """What will be put; a producer's own computation would write there instead of ``copy_``."""
    if mode == "place":
        buffer = await transport.allocate(source.nbytes)
        buffer.as_tensor(source.dtype, tuple(source.shape)).copy_(source)
        return buffer
    if mode == "tensor":
        return source
    if mode == "empty":
        hidden = await transport.empty((source.shape[0], WIDTH), source.dtype)
        return value(hidden.copy_(source))
    return value(source)


async def consume(transport: Any, friend: socket.socket, batch: dict[str, Any]) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    reference = hidden_states(batch["nbytes"])
    total = batch["warmup"] + batch["count"]
    usable, touched = [], []
    for index in range(total):
        if batch["mode"] == "told":
            await loop.sock_recv(friend, 1)
        elif batch["mode"] == "waits":
            await loop.sock_sendall(friend, b"w")
        delivery = await transport.get("0", "1", f"{batch['name']}-{index}", timeout=120)
        received = delivery.value
        end = now()
        touch(received)
        usable.append(end)
        touched.append(now() - end)
        check(received, reference, index, whole=index in (0, total - 1))
        del received
        delivery.release()
        del delivery
        await loop.sock_sendall(friend, b"k")
    return {"usable": usable, "touch": touched}


def memcpy_times(source: Any, count: int) -> list[int]:
    """Nanoseconds of plain copies of the same bytes into memory that was written before."""
    import torch

    target = torch.empty_like(source)
    times = []
    for index in range(count + 1 if count else 0):
        start = now()
        ctypes.memmove(target.data_ptr(), source.data_ptr(), source.nbytes)
        if index:  # the first one meets fresh pages
            times.append(now() - start)
    return times
