"""Many gets that wait: what they cost, and how soon the first of them is answered.

In: a count. Out: CPU, memory and latency within bounds; the figures on stdout.
Never: compares with another machine; the bounds of the short form are loose, for others run too.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import time
from pathlib import Path

import pytest

import omni_async
from omni_async.testing.leaks import quiet
from omni_async.testing.processes import PeerProcess
from omni_async.testing.recipes import literal
from omni_async.testing.rig import settle

PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


@pytest.mark.parametrize(
    ("count", "seconds", "core", "bytes_each", "latency"),
    [
        pytest.param(2_000, 2.0, 0.05, 16_000, 0.05, id="short"),
        pytest.param(10_000, 20.0, 0.01, 8_000, 0.001, id="long", marks=pytest.mark.soak),
    ],
)
async def test_parked_gets(
    namespace: str, count: int, seconds: float, core: float, bytes_each: int, latency: float
) -> None:
    peer = PeerProcess()
    try:
        with peer.attached():
            side = await peer.open("tx", "shm", role="sender", stage="0", namespace=namespace)
            opening = omni_async.open_transport(
                "shm", role="receiver", stage="1", namespace=namespace
            )
            async with opening as rx:
                await side.put("warm", literal(1))
                await rx.get("0", "1", "warm")
                gc.collect()
                before = resident()
                waiting = [
                    asyncio.create_task(rx.get("0", "1", f"k{number}", timeout=None))
                    for number in range(count)
                ]
                await settle(side, parked=count, in_flight=None, within=30.0)
                grown = (resident() - before) / count

                used = time.process_time()
                began = time.monotonic()
                await asyncio.sleep(seconds)
                share = (time.process_time() - used) / (time.monotonic() - began)

                asked = [f"k{number}" for number in range(0, count, count // 50)]
                late: list[float] = []
                watching = [
                    asyncio.create_task(_watch(waiting[int(key[1:])], late)) for key in asked
                ]
                await peer.call(
                    "use",
                    target="omni_async.testing.traffic:timestamps",
                    side=side.name,
                    keys=asked,
                    pause=0.01,
                )
                await asyncio.gather(*watching)
                median = statistics.median(late)
                print(  # noqa: T201
                    f"{count} parked: {share:.3%} of a core, {grown:,.0f} bytes each, "
                    f"first delivery {median * 1e3:.3f} ms (median), {max(late) * 1e3:.3f} ms (worst)"
                )
                for task in waiting:
                    task.cancel()
                await asyncio.wait(waiting)
                await quiet(rx, within=10)
                assert share < core
                assert grown < bytes_each
                assert median < latency
            await side.close()
    finally:
        peer.close()


async def _watch(waiting: asyncio.Task[omni_async.Delivery], late: list[float]) -> None:
    delivery = await waiting
    late.append((time.monotonic_ns() - delivery.value) / 1e9)
