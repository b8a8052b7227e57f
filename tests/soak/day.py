"""A day of serving, compressed: who asks for what when, how much of it is given up, and what it leaves in a pool.

In: seconds for the day, a seed. Out: requests as they come; figures of a pool.
Never: moves anything itself.
"""

from __future__ import annotations

import asyncio
import gc
import math
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

from omni_async.pool import Pool

PAGE = os.sysconf("SC_PAGE_SIZE")
BUSIEST = 24.0
"""Requests per second at noon; at midnight it is a quarter of them."""
LARGEST = 96 << 20
LONGEST = 3.0
"""Seconds that a receiver keeps what it got: seven minutes of the day."""


class Request(NamedTuple):
    """One request and its fate."""

    key: str
    nbytes: int
    """Of its payload; of a chunk where it is a stream."""
    chunks: int
    """0 where it is one payload."""
    fate: str
    """``served``, ``cancelled`` by its receiver, ``aborted`` by its sender, or ``forgotten`` by all."""
    after: float
    """Seconds until it is given up, or for which a receiver keeps what it got."""


class Day:
    """24 hours in ``seconds``."""

    def __init__(self, seconds: float, seed: int) -> None:
        self.seconds = seconds
        self._chance = random.Random(seed)
        self._began = asyncio.get_running_loop().time()
        self._number = 0

    @property
    def hour(self) -> float:
        return (asyncio.get_running_loop().time() - self._began) / self.seconds * 24

    async def requests(self) -> AsyncIterator[Request]:
        """Until the day is over. Cancellation: safe."""
        while (hour := self.hour) < 24:
            yield self._next()
            rate = BUSIEST * (0.25 + 0.75 * math.sin(math.pi * hour / 24) ** 2)
            await asyncio.sleep(self._chance.expovariate(rate))

    def _next(self) -> Request:
        chance, number = self._chance, self._number
        self._number += 1
        kind = chance.random()
        chunks = 0
        if kind < 0.35:  # metadata, texts
            nbytes = chance.randrange(200, 8000)
        elif kind < 0.6:  # codec frames
            nbytes, chunks = 6400, chance.randrange(5, 40)
        elif kind < 0.95:  # hidden states
            nbytes = min(LARGEST, int(math.exp(chance.gauss(math.log(1 << 20), 1.4))))
        else:  # caches
            nbytes = chance.randrange(16 << 20, LARGEST)
        fate = chance.choices(
            ["served", "cancelled", "aborted", "forgotten"], [0.86, 0.07, 0.05, 0.02]
        )[0]
        return Request(f"req-{number}", nbytes, chunks, fate, chance.random() ** 2 * LONGEST)


class Books:
    """What one pool looked like over the day."""

    def __init__(self, name: str, pool: Pool) -> None:
        self._name = name
        self.pool = pool
        self._most = 0
        self._shares: list[float] = []
        self._ranges: list[int] = []

    def look(self) -> None:
        pool = self.pool
        self._most = max(self._most, pool.used)
        ranges = [size for s in pool._segments for _, size in s.allocator.free_ranges()]
        if ranges:
            self._ranges.append(len(ranges))
            self._shares.append(max(ranges) / sum(ranges))

    @property
    def worst(self) -> float:
        """The smallest share of the free memory that was in one piece at any time."""
        return min(self._shares, default=1.0)

    def __str__(self) -> str:
        shares = sorted(self._shares) or [1.0]
        return (
            f"{self._name}: at most {self._most >> 20} MiB in use; of the free memory at least "
            f"{self.worst:.0%} in one piece (p1 {shares[len(shares) // 100]:.0%}, "
            f"median {shares[len(shares) // 2]:.0%}), at most {max(self._ranges, default=0)} pieces"
        )


def resident() -> int:
    """Private bytes of this process."""
    gc.collect()
    fields = Path("/proc/self/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * PAGE


class Tally(Counter[str]):
    """What became of requests."""

    def __str__(self) -> str:
        return ", ".join(f"{count} {what}" for what, count in sorted(self.items()))
