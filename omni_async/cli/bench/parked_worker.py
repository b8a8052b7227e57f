"""One of the two processes of ``bench parked`` and of waiting at a store: the sender, or the receiver whose gets wait.

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

from .line import Line
from .sides.ours import opened

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

    async def park(self, count: int, prefix: str) -> None:
        keys = [f"{prefix}{index}" for index in range(count)]
        self._tasks = [asyncio.create_task(self._get(key)) for key in keys]
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
    async with opened(job) as transport:
        parked = Parked(transport, friend)
        await line.send_async({"ready": True})
        while True:
            step = await line.receive_async()
            await line.send_async(await serve(transport, parked, friend, step))


def cpu() -> float:
    """Seconds of CPU that this process has used, and the processes that it keeps."""
    ticks = 0
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/children") as file:
            for child in file.read().split():
                with open(f"/proc/{child}/stat") as stat:
                    fields = stat.read().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


class Meter:
    """What was used since the last look."""

    def __init__(self) -> None:
        self._last = cpu(), time.monotonic()

    def look(self) -> dict[str, float]:
        before, self._last = self._last, (cpu(), time.monotonic())
        return {"cpu": self._last[0] - before[0], "seconds": self._last[1] - before[1]}


METER = Meter()


async def serve(
    transport: Any, parked: Parked, friend: socket.socket, step: dict[str, Any]
) -> dict[str, Any]:
    match step["do"]:
        case "resident":
            return {"resident": resident()}
        case "park":
            await parked.park(step["count"], step["prefix"])
            return {"parked": transport.health().parked}
        case "idle":
            METER.look()
            await asyncio.sleep(step["seconds"])
            return METER.look()
        case "count":
            return METER.look()
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
