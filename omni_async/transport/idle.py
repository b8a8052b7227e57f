"""IdleTrim: memory that nobody leases goes back to the system once a pool has been idle for a while.

In: word that the pool was used. Out: pages given back, piece by piece.
Never: runs a timer while nothing was used; holds up the event loop for more than a millisecond.
"""

from __future__ import annotations

import asyncio

from ..pool import Pool

IDLE_SECONDS = 10.0
"""Without use for this long, memory that nobody leases goes back."""
IDLE_KEEP = 64 << 20
"""Bytes that stay warm even then."""
IDLE_PIECE = 4 << 20
"""Bytes given back in one turn of the loop."""
IDLE_PAUSE = 0.01


class IdleTrim:
    """One pool's."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pool: Pool) -> None:
        self._loop = loop
        self._pool = pool
        self._uses = 0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def used(self) -> None:
        """The pool is not idle."""
        self._uses += 1
        if self._timer is None and not self._closed:
            self._timer = self._loop.call_later(IDLE_SECONDS, self._trim, self._uses)

    def _trim(self, uses: int) -> None:
        now = self._uses
        if now != uses:
            self._timer = self._loop.call_later(IDLE_SECONDS, self._trim, now)
        elif self._pool.trim(IDLE_KEEP, at_most=IDLE_PIECE):
            self._timer = self._loop.call_later(IDLE_PAUSE, self._trim, now)
        else:
            self._timer = None

    def close(self) -> None:
        """Idempotent."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
