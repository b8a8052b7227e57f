"""A process that leaves while its engine is there: ``python -m tests.cases.leaver HOW NAMESPACE PORT``.

In: how. Out: an exit code, and nothing on stdout.
Never: ends an engine.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import numpy as np

from omni_async import open_transport
from omni_async.cli.on_this_host import extra_here


async def run(how: str, namespace: str, port: int) -> None:
    def opening(role: Any, stage: str) -> Any:
        spec = {"name": "mooncake", "extra": extra_here("mooncake", role, port)}
        return open_transport(spec, role=role, stage=stage, namespace=namespace, linger=0)

    if how == "many times":
        counts: list[list[int]] = []
        for number in range(200):
            async with opening("sender", "0"), opening("receiver", "1"):
                pass
            if number % 10 == 9:
                counts.append([len(os.listdir(f"/proc/self/{what}")) for what in ("fd", "task")])
        descriptors, threads = zip(*counts, strict=True)
        # The channel's I/O thread closes what was given up a little later.
        assert max(descriptors) - min(descriptors) <= 6, counts
        assert max(threads) - min(threads) <= 2, counts
        return
    sender, receiver = opening("sender", "0"), opening("receiver", "1")
    tx, rx = await sender.__aenter__(), await receiver.__aenter__()
    value = np.ones(100 << 20, np.uint8)
    await tx.put("0", "1", "key", value)
    if how == "in the middle":
        getting = asyncio.ensure_future(rx.get("0", "1", "key"))
        await asyncio.sleep(0.005)
        assert not getting.done()
        return
    assert (await rx.get("0", "1", "key")).nbytes == value.nbytes
    if how == "closed":
        await receiver.__aexit__(None, None, None)
        await sender.__aexit__(None, None, None)
    elif how == "error":
        raise SystemExit(3)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], int(sys.argv[3])))
