"""A process that blocks in one call of the library: ``python -m tests.cases.blocked FD``.

In: which call. Out: one word before it.
Never: catches an interrupt.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

import numpy as np

import omni_async
from omni_async.cli.bench.line import Line


async def run(line: Line, job: dict[str, Any]) -> None:
    spec = {"name": "SharedMemoryConnector", "extra": {"memory_pool_size": 300 << 20}}
    name = job["namespace"]
    async with omni_async.open_transport(spec, role="receiver", stage="1", namespace=name) as rx:
        if job["what"] == "get without a sender":
            await line.send_async("blocking")
            await rx.get("0", "1", "never", timeout=None)
        async with omni_async.open_transport(spec, role="sender", stage="0", namespace=name) as tx:
            big = np.ones(200 << 20, dtype=np.uint8)
            await line.send_async("blocking")
            if job["what"] == "get":
                await rx.get("0", "1", "never", timeout=None)
            if job["what"] == "put":
                await tx.put("0", "1", "first", big)
                await tx.put("0", "1", "second", big, timeout=None)
            while True:
                await tx.put("0", "1", "again", big)


def main() -> None:
    line = Line(socket.socket(fileno=int(sys.argv[1])))
    job = line.receive()
    if job["loop"] == "uvloop":
        import uvloop

        uvloop.run(run(line, job))
    else:
        asyncio.run(run(line, job))


if __name__ == "__main__":
    main()
