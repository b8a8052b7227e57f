"""StallClock: who has waited for too long.

In: who waits, who does no more. Out: a call for each that has waited ``timeout`` seconds.
Never: sets a timer for each of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class StallClock(Generic[K]):
    """All wait equally long, so who began first is late first: one timer is enough."""

    def __init__(self, timeout: float, late: Callable[[K], None]) -> None:
        self.timeout = timeout
        """Seconds; 0 is without a limit."""
        self._late = late
        self._loop = asyncio.get_running_loop()
        self._since: dict[K, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._since)

    def start(self, who: K) -> None:
        """It waits, from now on."""
        if not self.timeout:
            return
        self._since.pop(who, None)
        self._since[who] = now = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_at(now + self.timeout, self._fire)

    def stop(self, who: K) -> None:
        """It does not wait. Idempotent."""
        self._since.pop(who, None)

    def _fire(self) -> None:
        self._timer = None
        now = self._loop.time()
        for who, since in list(self._since.items()):
            if since + self.timeout > now:
                break
            self.stop(who)
            self._late(who)
        if self._since and self._timer is None:
            first = next(iter(self._since.values()))
            self._timer = self._loop.call_at(first + self.timeout, self._fire)

    def close(self) -> None:
        self._since.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
