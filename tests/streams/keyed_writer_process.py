"""A process that writes keyed streams: ``python -m tests.streams.keyed_writer_process NAMESPACE COUNT``.

In: a namespace and how many chunks. Out: streams ``whole``, ``aborted`` and ``cut``.
Never: ends by itself before it is told to, or killed.
"""

from __future__ import annotations

import asyncio
import sys

import numpy as np

import omni_async
from omni_async.transport.streams.keyed import KeyedStreams


async def main(namespace: str, count: int) -> None:
    async with omni_async.open_transport(
        "shm", role="sender", stage="0", namespace=namespace, linger=0
    ) as tx:
        streams = KeyedStreams(tx)
        whole, aborted, cut = (
            streams.writer(tx.enter("sender", "0", "1", key)) for key in ("whole", "aborted", "cut")
        )
        async with whole:
            for number in range(count):
                await whole.send((number, np.full(number * 100, number % 251, np.uint8)))
                if number % 10 == 9:
                    await whole.end_segment()
        async with aborted:
            await aborted.send("before")
            await aborted.abort("out of voices")
        await cut.__aenter__()
        await cut.send("the last word")
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
