"""Many large pulls and many small ones at once: the small ones do not wait for the large ones.

In: counts. Out: every byte right, times of the small ones, gaps of the event loop's ticker alone and beside.
Never: compares with another machine; the bounds of the short form are loose, for others run too.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from typing import Any

import pytest

import omni_async
from omni_async.testing.leaks import quiet
from omni_async.testing.recipes import pattern_array
from omni_async.testing.rig import settle
from omni_async.testing.traffic import put_patterns
from tests.ends import ends, led

LARGE = 16 << 20
SMALL = 4096
TICK = 0.001


@pytest.mark.parametrize(
    ("large", "small", "p99", "gap"),
    [
        pytest.param(16, 300, 0.5, 0.3, id="short"),
        pytest.param(
            64, 1000, 0.05, 0.010, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(300)]
        ),
    ],
)
async def test_large_pulls_and_small_ones(
    namespace: str, large: int, small: int, p99: float, gap: float
) -> None:
    pool = (large + 4) * (LARGE + 8192) + (64 << 20)
    with ends("mooncake", namespace, memory_pool_size=pool) as here:
        async with led() as peer, here.open("receiver", "1") as rx:
            side = await here.away(peer, "sender", "0")
            alone: list[float] = []
            beside: list[float] = []
            times: list[float] = []
            for turn in range(3):  # the first meets fresh pages
                for name, count, nbytes in (("large", large, LARGE), ("small", small, SMALL)):
                    await side.use(PUT, prefix=f"{name}-{turn}", count=count, nbytes=nbytes)
                quiet_gaps, _ = await _gaps(asyncio.sleep(0.5))
                found: list[float] = []
                gaps, deliveries = await _gaps(_pull(rx, turn, large, small, found))
                _compare_all(deliveries)
                deliveries.clear()
                if turn:
                    alone += quiet_gaps
                    beside += gaps
                    times += found
                await quiet(rx, within=10)
                await settle(side, within=10)
            usual, late = _share(alone, 0.999), _share(beside, 0.999)
            print(  # noqa: T201
                f"{large} x 16 MB and {small} small on {os.cpu_count()} cores: small p50 "
                f"{_share(times, 0.5) * 1e3:.1f} ms, p99 {_share(times, 0.99) * 1e3:.1f} ms; ticker's "
                f"p99.9 gap {usual * 1e3:.1f} ms alone, {late * 1e3:.1f} ms beside"
            )
            assert _share(times, 0.99) < p99
            assert late <= usual + gap
            await side.close()


PUT = f"{put_patterns.__module__}:{put_patterns.__name__}"


async def _pull(
    rx: omni_async.Transport, turn: int, large: int, small: int, times: list[float]
) -> list[omni_async.Delivery]:
    """All large ones at once, and all small ones while they are on their way."""
    pulls = [
        asyncio.create_task(rx.get("0", "1", f"large-{turn}-{number}", timeout=60))
        for number in range(large)
    ]
    pause = 0.5 * large / 64 / small  # they take a second or so
    gets = []
    for number in range(small):
        gets.append(asyncio.create_task(_timed(rx, f"small-{turn}-{number}", number, times)))
        await asyncio.sleep(pause)
    await asyncio.gather(*gets)
    return await asyncio.gather(*pulls)


async def _timed(rx: omni_async.Transport, key: str, number: int, times: list[float]) -> None:
    began = time.perf_counter()
    delivery = await rx.get("0", "1", key, timeout=60)
    times.append(time.perf_counter() - began)
    _compare(delivery.value, SMALL, number)


def _compare_all(deliveries: list[omni_async.Delivery]) -> None:
    for number, delivery in enumerate(deliveries):
        _compare(delivery.value, LARGE, number)


def _compare(value: Any, nbytes: int, seed: int) -> None:
    assert (value == pattern_array(nbytes, seed)).all(), f"payload {seed} is wrong"


async def _gaps(work: Any) -> tuple[list[float], Any]:
    """The gaps between ticks while something is done, and what came of it."""
    task = asyncio.ensure_future(work)
    ticks = [time.perf_counter()]
    while not task.done():
        await asyncio.sleep(TICK)
        ticks.append(time.perf_counter())
    return [after - before for before, after in itertools.pairwise(ticks)], task.result()


def _share(values: list[float], share: float) -> float:
    return sorted(values)[int(len(values) * share)]
