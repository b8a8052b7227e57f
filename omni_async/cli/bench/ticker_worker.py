"""One of the two processes of ``bench ticker``: sends and receives at once, and counts milliseconds.

In: phases asked for on the control line. Out: the gaps between the ticks of its event loop.
Never: does work of its own on the loop beside the ticker and the transport's calls.
"""

from __future__ import annotations

import asyncio
import socket
from time import perf_counter_ns as now
from typing import Any

import omni_async

from ...model import Role
from .line import Line
from .payload import hidden_states, value

TICK = 0.001
"""Seconds the ticker sleeps between two looks at the clock."""


async def work(line: Line, friends: list[socket.socket], job: dict[str, Any]) -> None:
    """Serve phases until the line closes."""
    import torch

    torch.set_num_threads(1)
    own, other = ("0", "1") if job["role"] == "producer" else ("1", "0")

    def spec(role: Role) -> dict[str, Any]:
        return {"name": job["connector"], "extra": job["extra"][role]}

    source = hidden_states(job["nbytes"])
    async with (
        omni_async.open_transport(
            spec("sender"), role="sender", stage=own, namespace=job["namespace"]
        ) as sender,
        omni_async.open_transport(
            spec("receiver"), role="receiver", stage=own, namespace=job["namespace"]
        ) as receiver,
    ):
        await line.send_async({"ready": True})
        while True:
            phase = await line.receive_async()
            waiting = await wait(receiver, other, own, phase["traffic"] * job["waiting"])
            ticking = asyncio.create_task(tick(phase["seconds"]))
            sent = received = 0
            if phase["traffic"]:
                sent, received = await asyncio.gather(
                    send(sender, own, other, phase, source), receive(receiver, other, own, phase)
                )
            gaps = await ticking
            await leave(waiting)
            await line.send_async({"gaps": gaps, "sent": sent, "received": received})


async def wait(receiver: Any, other: str, own: str, count: int) -> list[asyncio.Task[Any]]:
    """Gets for what nobody puts, once they wait."""
    gets = (receiver.get(other, own, f"never-{index}", timeout=600) for index in range(count))
    tasks = [asyncio.create_task(get) for get in gets]
    while receiver.health().parked < count:  # noqa: ASYNC110 - a gauge tells nobody
        await asyncio.sleep(0.01)
    return tasks


async def leave(waiting: list[asyncio.Task[Any]]) -> None:
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def tick(seconds: float) -> list[int]:
    """Nanoseconds between the ticks of a loop that sleeps a millisecond each time."""
    gaps = []
    last = begun = now()
    while last - begun < seconds * 1e9:
        await asyncio.sleep(TICK)
        moment = now()
        gaps.append(moment - last)
        last = moment
    return gaps


async def send(sender: Any, own: str, other: str, phase: dict[str, Any], source: Any) -> int:
    """Put one payload after the other until the phase is over; the last one is one row and says so."""
    begun, index = now(), 0
    while now() - begun < phase["seconds"] * 1e9:
        await sender.put(own, other, f"{phase['name']}-{index}", value(source), timeout=60)
        index += 1
    await sender.put(own, other, f"{phase['name']}-{index}", "end", timeout=60)
    return index


async def receive(receiver: Any, other: str, own: str, phase: dict[str, Any]) -> int:
    """Take what comes until the last one."""
    index = 0
    while True:
        delivery = await receiver.get(other, own, f"{phase['name']}-{index}", timeout=60)
        if delivery.value == "end":
            return index
        delivery.release()
        del delivery
        index += 1
