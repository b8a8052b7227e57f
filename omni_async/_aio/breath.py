"""Breath: a busy caller lets the event loop turn now and then.

In: a call at the start of each operation. Out: whether to yield before it.
Never: yields in the middle of an operation.

An operation that finds everything ready does not suspend. A loop of such operations would keep
timers and sockets waiting for as long as it runs.
"""

from __future__ import annotations

import asyncio

BUDGET = 0.001
"""Seconds of one turn of the loop that operations may fill before the next one yields."""


class Breath:
    """How long the present turn of one loop has been used without a pause."""

    __slots__ = ("_began", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._began: float | None = None

    def used_up(self) -> bool:
        """Whether this turn has taken long enough: ``await asyncio.sleep(0)`` now."""
        began = self._began
        return began is not None and self._loop.time() - began > BUDGET

    def used(self) -> None:
        """An operation has begun, or has ended without a pause, in this turn."""
        if self._began is None:
            self._began = self._loop.time()
            self._loop.call_soon(self._turned)

    def _turned(self) -> None:
        self._began = None
