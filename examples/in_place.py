"""Build a tensor where it will be read: no copy on either side.

    python examples/in_place.py

`tx.empty` gives a tensor in memory that the receiver can map. The model writes its output there,
and `put` only says where it is. Do not write to it after the put.
"""

from __future__ import annotations

import asyncio
import time

import torch

import omni_async

SHAPE = (4096, 4096)


async def main() -> None:
    async with (
        omni_async.open_transport("shm", role="sender", stage="0") as tx,
        omni_async.open_transport("shm", role="receiver", stage="1") as rx,
    ):
        for name in ("copied", "in place"):
            if name == "copied":
                hidden = torch.empty(SHAPE, dtype=torch.bfloat16)
            else:
                hidden = await tx.empty(SHAPE, torch.bfloat16)
            hidden.normal_()  # stands for what a model computes
            total = hidden.sum(dtype=torch.float64)

            waiting = asyncio.create_task(rx.get("0", "1", name))
            await asyncio.sleep(0)
            began = time.perf_counter()
            await tx.put("0", "1", name, {"hidden": hidden, "step": 3})
            delivery = await waiting
            took = (time.perf_counter() - began) * 1e3
            assert delivery.value["hidden"].sum(dtype=torch.float64) == total
            print(f"{name}: {delivery.nbytes / 1e6:.0f} MB usable after {took:.2f} ms")

            # The memory goes back when the last view of it is gone, on both sides.
            del hidden, delivery, waiting


asyncio.run(main())
