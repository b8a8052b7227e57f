"""LagMonitor: how late an event loop gets.

In: a running loop. Out: quantiles of the gaps of a periodic ticker.
Never: keeps more than a histogram, touches what it measures beyond one timer per tick.
"""

from __future__ import annotations

import asyncio
import math
import time
from types import TracebackType
from typing import NamedTuple

_FIRST = 1e-6
_PER_OCTAVE = 16
_BUCKETS = 30 * _PER_OCTAVE


class Lag(NamedTuple):
    """By how many seconds ticks came late, beyond the period; quantiles are within 5 %."""

    ticks: int
    p50: float
    p99: float
    p999: float
    max: float


class LagMonitor:
    """A ticker on the running loop, from ``start`` to ``stop`` or inside ``with``.

    Args:
        period: seconds between ticks. Loops tell time by the millisecond at best.
    """

    def __init__(self, period: float = 0.001) -> None:
        self.period = period
        self._counts = [0] * _BUCKETS
        self._ticks = 0
        self._worst = 0.0
        self._last = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Begin to tick; what was counted before is kept."""
        if self._timer is None:
            self._loop = asyncio.get_running_loop()
            self._last = time.perf_counter()
            self._timer = self._loop.call_later(self.period, self._tick, self._loop)

    def stop(self) -> None:
        """Stop ticking. A tick that is overdue counts. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            late = time.perf_counter() - self._last - self.period
            if late > 0:
                self._count(late)

    def reset(self) -> None:
        """Forget what was counted."""
        self._counts = [0] * _BUCKETS
        self._ticks = 0
        self._worst = 0.0
        self._last = time.perf_counter()

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        now = time.perf_counter()
        self._count(max(0.0, now - self._last - self.period))
        self._last = now
        self._timer = loop.call_later(self.period, self._tick, loop)

    def _count(self, late: float) -> None:
        self._ticks += 1
        self._worst = max(self._worst, late)
        place = 0 if late < _FIRST else int(math.log2(late / _FIRST) * _PER_OCTAVE) + 1
        self._counts[min(place, _BUCKETS - 1)] += 1

    def lag(self) -> Lag:
        """What was counted so far; zeros before the first tick."""
        return Lag(
            self._ticks,
            self._quantile(0.5),
            self._quantile(0.99),
            self._quantile(0.999),
            self._worst,
        )

    def _quantile(self, share: float) -> float:
        wanted = math.ceil(share * self._ticks)
        seen = 0
        for place, count in enumerate(self._counts):
            seen += count
            if seen >= wanted > 0:
                # The upper edge of the bucket: never better than it was.
                return min(self._worst, _FIRST * 2 ** (place / _PER_OCTAVE))
        return 0.0

    def __enter__(self) -> LagMonitor:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
