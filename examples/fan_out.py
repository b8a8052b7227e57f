"""One payload for several readers: it lies in memory once.

    python examples/fan_out.py

`consumers=3` means any three deliveries; after the third the memory goes back.
"""

from __future__ import annotations

import asyncio

import numpy as np

import omni_async


async def reader(rank: int) -> None:
    async with omni_async.open_transport("shm", role="receiver", stage="talker") as rx:
        # copy=False: read in place, although others read the same bytes. Then it is read-only
        # by agreement. Without it every reader gets a copy of its own.
        with await rx.get("thinker", "talker", "req-1", copy=False) as delivery:
            print(f"reader {rank}: sum {delivery.value['hidden'].sum():.0f}")


async def main() -> None:
    async with omni_async.open_transport("shm", role="sender", stage="thinker") as tx:
        readers = [asyncio.create_task(reader(rank)) for rank in range(3)]
        value = {"hidden": np.ones((512, 2048), np.float32)}
        await tx.put("thinker", "talker", "req-1", value, consumers=len(readers))
        print(f"for {len(readers)} readers: {tx.health().pool_used / 1e6:.1f} MB in the pool")
        await asyncio.gather(*readers)
        # The third delivery was the last one: nothing waits for anybody any more.
        assert await tx.drain(timeout=5) == 0


asyncio.run(main())
