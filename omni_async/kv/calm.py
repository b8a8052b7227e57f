"""The moment in which nothing is under way any more.

In: whether something is, word that something has ended. Out: the end of a wait for that moment.
Never: waits longer than it was told; ends anything itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable


class Calm:
    """Of one end.

    Args:
        busy: whether something is under way.
    """

    def __init__(self, busy: Callable[[], bool]) -> None:
        self._busy = busy
        self._come: asyncio.Event | None = None

    def look(self) -> None:
        """Something has ended."""
        if self._come is not None and not self._busy():
            self._come.set()

    async def wait(self, limit: float) -> None:
        """Until nothing is under way, for so many seconds at most.

        Cancellation: safe.
        """
        if self._busy():
            self._come = asyncio.Event()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._come.wait(), limit)
