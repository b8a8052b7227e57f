"""By how much an event loop is late.

In: a running loop. Out: figures in milliseconds.
Never: keeps the loop busy.
"""

from __future__ import annotations

import asyncio
from array import array
from time import perf_counter_ns

from .link import quantile
from .words import Lag

_TICK = 0.005


class LoopLag:
    """Asks to be woken every 5 ms while its ``async with`` is open, and notes how late that was."""

    def __init__(self) -> None:
        self._late = array("q")
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0

    async def __aenter__(self) -> LoopLag:
        self._arm()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def figures(self) -> Lag:
        late = sorted(self._late)
        return Lag(*(quantile(late, q) / 1e6 for q in (0.5, 0.99, 1.0)))

    def _arm(self) -> None:
        self._due = perf_counter_ns() + int(_TICK * 1e9)
        self._timer = asyncio.get_running_loop().call_later(_TICK, self._rang)

    def _rang(self) -> None:
        self._late.append(max(perf_counter_ns() - self._due, 0))
        self._arm()
