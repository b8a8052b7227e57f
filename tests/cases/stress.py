"""One end of a stream of small payloads, pinned to a core: ``python -m tests.cases.stress FD``.

In: how many and how large. Out: how many came whole, and which did not.
Never: waits for the other end between payloads; a window of them is under way.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import zlib
from typing import Any

import numpy as np

import omni_async
from omni_async.cli.bench.line import Line

WINDOW = 32


def payload(index: int, nbytes: int) -> dict[str, Any]:
    data = np.full(nbytes // 8, index * 2654435761 % (1 << 31), dtype=np.int64)
    return {"sequence": index, "data": data, "checksum": zlib.crc32(data.tobytes())}


async def send(transport: Any, count: int, nbytes: int) -> dict[str, Any]:
    for index in range(count):
        await transport.put("0", "1", f"k{index}", payload(index, nbytes), timeout=60)
    await transport.drain(120)
    return {"sent": count}


async def receive(transport: Any, count: int) -> dict[str, Any]:
    wrong: list[int] = []
    whole = 0

    async def take(index: int) -> None:
        nonlocal whole
        with await transport.get("0", "1", f"k{index}", timeout=120) as delivery:
            value = delivery.value
            fits = value["sequence"] == index and (
                zlib.crc32(value["data"].tobytes()) == value["checksum"]
            )
        if fits:
            whole += 1
        else:
            wrong.append(index)

    for first in range(0, count, WINDOW):
        await asyncio.gather(*map(take, range(first, min(count, first + WINDOW))))
    return {"whole": whole, "wrong": wrong}


async def run(line: Line, job: dict[str, Any]) -> None:
    os.sched_setaffinity(0, {job["core"]})
    sender = job["role"] == "sender"
    async with omni_async.open_transport(
        {"name": "SharedMemoryConnector", "extra": {"memory_pool_size": 8 << 20}},
        role=job["role"],
        stage="0" if sender else "1",
        namespace=job["namespace"],
    ) as transport:
        await line.send_async("ready")
        await line.receive_async()
        outcome = (
            await send(transport, job["count"], job["nbytes"])
            if sender
            else await receive(transport, job["count"])
        )
        await line.send_async(outcome)


def main() -> None:
    line = Line(socket.socket(fileno=int(sys.argv[1])))
    asyncio.run(run(line, line.receive()))


if __name__ == "__main__":
    main()
