"""Two processes: one puts a value, the other gets it.

    python examples/hello.py

The receiver is started first. Its `get` waits until the value is there; nobody polls.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys

import numpy as np

import omni_async


async def receive() -> None:
    async with omni_async.open_transport("shm", role="receiver", stage="1") as rx:
        delivery = await rx.get("0", "1", "req-1")
        hidden = delivery.value["hidden"]
        # A view of the sender's memory: nothing was copied on this side.
        print(
            f"got {delivery.value['text']!r} and {hidden.dtype} {hidden.shape}, sum {hidden.sum()}"
        )


async def send() -> None:
    async with omni_async.open_transport("shm", role="sender", stage="0") as tx:
        value = {"text": "hello", "hidden": np.arange(12, dtype=np.float32).reshape(3, 4)}
        receipt = await tx.put("0", "1", "req-1", value)
        print(f"put {receipt.nbytes} bytes")
    # Leaving waits until the receiver has fetched it (at most `linger` seconds).


if __name__ == "__main__":
    if sys.argv[1:] == ["receive"]:
        asyncio.run(receive())
    else:
        with subprocess.Popen([sys.executable, __file__, "receive"]) as receiver:
            asyncio.run(send())
        sys.exit(receiver.returncode)
