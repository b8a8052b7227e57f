"""Bytes without any encoding, for what has a format of its own.

    python examples/raw_buffers.py

A `ManagedBuffer` as the whole value is sent as it is; `raw=True` delivers one on the other side.
"""

from __future__ import annotations

import asyncio

import numpy as np

import omni_async


async def main() -> None:
    async with (
        omni_async.open_transport("shm", role="sender", stage="0") as tx,
        omni_async.open_transport("shm", role="receiver", stage="1") as rx,
    ):
        buffer = await tx.allocate(1 << 20)
        buffer.array[:] = np.arange(1 << 20, dtype=np.uint32).astype(np.uint8)
        receipt = await tx.put("0", "1", "block", buffer)
        buffer.release()  # the put has what it needs

        # Anything that was put can be taken raw; a single buffer arrives without a header.
        with await rx.get("0", "1", "block", raw=True) as delivery:
            got = delivery.value
            print(f"{got.nbytes} bytes, as floats {got.array.view(np.float32).shape}")
            assert got.nbytes == receipt.nbytes == 1 << 20
            assert got.array[255] == 255


asyncio.run(main())
