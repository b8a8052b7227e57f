"""One of the two processes of ``bench parked``: the sender, or the receiver with its waiting gets.

In: steps asked for on the control line. Out: memory, CPU time and moments.
Never: lets a waiting get ask again by itself; that is the transport's affair.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import time
from time import perf_counter_ns as now
from typing import Any

import omni_async

from .line import Line

WAIT = 600.0
"""Seconds of each get's time limit: long, but there, as a server would have it."""


def resident() -> int:
    """Bytes of this process in memory, garbage collected first."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Parked:
    """The receiver's side: many gets that wait."""

    def __init__(self, receiver: Any, friend: socket.socket) -> None:
        self._receiver = receiver
        self._friend = friend
        self._tasks: list[asyncio.Task[None]] = []
        self.usable: dict[str, int] = {}

    async def park(self, count: int) -> None:
        self._tasks = [asyncio.create_task(self._get(f"k{index}")) for index in range(count)]
        while self._receiver.health().parked < count:  # noqa: ASYNC110 - a gauge tells nobody
            await asyncio.sleep(0.01)

    async def _get(self, key: str) -> None:
        delivery = await self._receiver.get("0", "1", key, timeout=WAIT)
        assert delivery.value["request_id"] == key
        self.usable[key] = now()
        delivery.release()
        await asyncio.get_running_loop().sock_sendall(self._friend, b"k")

    async def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
        for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome
        self._tasks = []


async def work(line: Line, friends: list[socket.socket], job: dict[str, Any]) -> None:
    """Serve steps until the line closes."""
    friend = friends[0]
    friend.setblocking(False)
    producer = job["role"] == "producer"
    async with omni_async.open_transport(
        "shm",
        role="sender" if producer else "receiver",
        stage="0" if producer else "1",
        namespace=job["namespace"],
    ) as transport:
        parked = Parked(transport, friend)
        await line.send_async({"ready": True})
        while True:
            step = await line.receive_async()
            await line.send_async(await serve(transport, parked, friend, step))


async def serve(
    transport: Any, parked: Parked, friend: socket.socket, step: dict[str, Any]
) -> dict[str, Any]:
    match step["do"]:
        case "resident":
            return {"resident": resident()}
        case "park":
            await parked.park(step["count"])
            return {"parked": transport.health().parked}
        case "idle":
            cpu = time.process_time()
            await asyncio.sleep(step["seconds"])
            return {"cpu": time.process_time() - cpu}
        case "put":
            start = now()
            await transport.put(
                "0", "1", step["key"], {"request_id": step["key"], "codec": [1, 2, 3]}
            )
            await asyncio.get_running_loop().sock_recv(friend, 1)
            return {"begun": start}
        case "usable":
            return {"usable": parked.usable}
        case "cancel":
            start = now()
            await parked.cancel()
            return {"nanoseconds": now() - start}
    raise ValueError(f"no step {step!r}")
